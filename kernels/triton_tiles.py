"""Tile sizes of the Triton kernels, chosen per architecture. Free of torch and Triton.

Nothing is tuned at run time: a tile that changed from run to run would change the last bits of a result. What decides
is, in this order: the shared memory of the architecture, the registers (255 a thread; `mmctl.kernels.inspect` fails on
a single spilled byte), and the shape of the tensor-core instructions.

- sm_90 multiplies 64 rows per group of four warps: 8 warps for 128 rows of the side that stays, 4 for 64.
- sm_80 and the consumer cards (sm_86, 89, 120) hold operands and accumulators in registers: narrower tiles. sm_100
  keeps accumulators in tensor memory instead, so the widest tiles fit.
- float32 multiplies on the plain cores ("ieee", no TF32), whose operands all sit in registers: 16 x 16 to 32 x 32
  tiles.
- The short-term memory computes tiles of BM reads x (h + BM) pairs for h useful ones: half the rows waste half of that,
  at the same work per warp.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARED_MEMORY = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""Bytes of shared memory a program may use, by architecture (compute capability as a two- or three-digit number)."""

MAX_WIDTH = 128
"""Widest head the Triton path takes, in key and in value width; narrower ones are padded to a power of two."""


SCAN_CHUNK = 32
"""Positions of a chunk of `key_scan`, on every architecture.

Its float32-accurate [C, C] x [C, D] products fill the registers: C = 64 spills everywhere, and states between chunks
are already few at 32 (6% of the bytes of x in 16 bits)."""
CARRY_CHUNKS = 32
"""Chunks a step of the serial pass of `key_scan`: 4,096 positions are 4 steps, 65,536 are 64."""
CARRY_WARPS = 8
"""Warps of that pass at every width; with 4 its [G, G] float32 product spills at width 32."""
VALUE_ROWS = 16
"""Positions of a program of `value_extract`: five tiles of it and 128 columns fit the registers of four warps."""
STATE_HEADS = 4
"""Heads a program of the backward of `state_space_scan` works through, so that their sums of db and dc are stored once:
a quarter of the bytes, and still T / 64 programs a sequence and four heads."""


@dataclass(frozen=True)
class Tile:
    """One configuration: ``rows`` reads by ``pairs`` stored pairs, warps of a program, stages of its pipeline."""

    rows: int
    pairs: int
    warps: int
    stages: int


@dataclass(frozen=True)
class StateTile:
    """Positions of a chunk of `state_space_scan`; of the passes over chunks, the columns of P and the warps; of the
    kernels with a program a chunk, the columns of P and of N multiplied at a time, and the warps; the columns of P for
    db and dc, which hold two accumulators."""

    chunk: int
    pass_columns: int
    pass_warps: int
    columns: int
    rows: int
    warps: int
    shared_columns: int


def state_tile(itemsize: int, size: int) -> StateTile:
    """Tile of `state_space_scan`, the same on every architecture.

    Args:
        itemsize: bytes of an input: 2, or 4 for float32.
        size: state size N. On sm_80 a few bytes of the passes spill with 32 columns at 64, and with 16 at 128.
    """
    if itemsize == 4:
        return StateTile(32, 16, 4, 16, 16, 4, 16)
    return StateTile(64, 16 if padded(size) <= 64 else 32, 4, 32, 32, 8, 16)


def family(capability: int) -> int:
    """The architecture of `SHARED_MEMORY` whose tiles a device of this capability takes: the nearest one below.

    Later cards of a generation without a row of their own (sm_87, sm_103, sm_121) take that of a card known to be at
    most as large.
    """
    known = [arch for arch in SHARED_MEMORY if arch <= capability]
    if not known:
        raise ValueError(f"path: the Triton kernels need compute capability 8.0 or newer, got {capability / 10:.1f}")
    return max(known)


def padded(width: int) -> int:
    """Smallest power of two that holds ``width`` and that a tensor core takes (16)."""
    return max(16, 1 << (width - 1).bit_length())


def scan_warps(width: int) -> int:
    """Warps of a program of `key_scan`; with 4 at width 128 a few bytes spill."""
    return 4 if padded(width) <= 64 else 8


KERNELS = ("forward", "query_gradient", "pair_gradient")

# For 16-bit inputs: kernel -> instruction set -> padded width -> (long-term tile, short-term tile).
# "mma": sm_80, 86, 89 and 120; its tiles fit the smallest shared memory of the four, for the registers bind first.
_HALF: dict[str, dict[str, dict[int, tuple[Tile, Tile]]]] = {
    "forward": {
        "mma": {
            64: (Tile(128, 32, 4, 2), Tile(64, 64, 4, 2)),
            128: (Tile(128, 32, 8, 3), Tile(64, 32, 4, 2)),
        },
        "wgmma": {
            64: (Tile(128, 64, 4, 3), Tile(64, 64, 4, 3)),
            128: (Tile(128, 64, 8, 3), Tile(64, 64, 4, 3)),
        },
        "tcgen05": {
            64: (Tile(128, 64, 4, 3), Tile(128, 64, 4, 3)),
            128: (Tile(128, 64, 8, 3), Tile(128, 64, 8, 3)),
        },
    },
    "query_gradient": {
        "mma": {
            64: (Tile(128, 64, 8, 2), Tile(128, 64, 8, 2)),
            128: (Tile(64, 32, 4, 2), Tile(64, 32, 4, 2)),
        },
        # At width 128, BN = 64 spills 8-20 bytes.
        "wgmma": {
            64: (Tile(128, 64, 8, 2), Tile(64, 64, 4, 2)),
            128: (Tile(128, 32, 8, 2), Tile(64, 32, 4, 2)),
        },
        "tcgen05": {
            64: (Tile(128, 64, 8, 2), Tile(128, 64, 8, 2)),
            128: (Tile(128, 64, 8, 2), Tile(128, 64, 8, 2)),
        },
    },
    "pair_gradient": {
        "mma": {
            64: (Tile(64, 128, 8, 2), Tile(64, 64, 4, 2)),
            128: (Tile(64, 64, 8, 2), Tile(64, 64, 8, 2)),
        },
        # At width 128, BM = 64 spills 80-150 bytes: two accumulators of 128 columns.
        "wgmma": {
            64: (Tile(64, 128, 8, 2), Tile(64, 64, 4, 2)),
            128: (Tile(32, 128, 8, 2), Tile(32, 128, 8, 2)),
        },
        "tcgen05": {
            64: (Tile(64, 128, 8, 2), Tile(64, 128, 8, 2)),
            128: (Tile(64, 128, 8, 2), Tile(64, 128, 8, 2)),
        },
    },
}
# For float32, every architecture.
_FULL = {
    "forward": {64: Tile(16, 16, 4, 1), 128: Tile(16, 32, 8, 1)},
    "query_gradient": {64: Tile(32, 32, 8, 1), 128: Tile(16, 16, 8, 1)},
    "pair_gradient": {64: Tile(32, 32, 8, 1), 128: Tile(16, 16, 8, 1)},
}
_INSTRUCTIONS = {80: "mma", 86: "mma", 89: "mma", 90: "wgmma", 100: "tcgen05", 120: "mma"}


def attention_tile(kernel: str, capability: int, itemsize: int, width: int, windowed: bool) -> Tile:
    """Tile of one kernel of `memory_attention`.

    Args:
        kernel: one of `KERNELS`.
        capability: compute capability, for instance 90.
        itemsize: bytes of a key: 2, or 4 for float32.
        width: the wider of key and value width.
        windowed: short-term memory.
    """
    size = 64 if padded(width) <= 64 else 128
    if itemsize == 4:
        return _FULL[kernel][size]
    return _HALF[kernel][_INSTRUCTIONS[family(capability)]][size][windowed]
