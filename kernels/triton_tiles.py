"""Tile sizes of the Triton kernels, chosen per architecture. Free of torch and Triton.

Nothing is tuned at run time: a tile that changed from run to run would change the last bits of a result. What decides
is, in this order: the shared memory of the architecture, the registers (255 a thread; `mmctl.kernels.inspect` fails on
a single spilled byte), and the shape of the tensor-core instructions.

- sm_90 multiplies 64 rows per group of four warps straight from shared memory: 8 warps, 128 rows of the resident side.
- sm_80 has 163 KiB of shared memory, the consumer cards (sm_86, 89, 120) 99 KiB: the same register tiles with fewer
  stages of the pipeline, then smaller tiles.
- sm_100 keeps accumulators outside the registers (tensor memory).
- float32 multiplies on the plain cores ("ieee", no TF32), whose operands all sit in registers: 32 x 32 tiles, or less.
- The short-term memory computes tiles of BM reads x (h + BM) pairs for h useful ones: small BM waste less.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARED_MEMORY = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""Bytes of shared memory a program may use, by architecture (compute capability as a two- or three-digit number)."""

MAX_WIDTH = 128
"""Widest head the Triton path takes, in key and in value width; narrower ones are padded to a power of two."""


@dataclass(frozen=True)
class Tile:
    """One configuration: ``rows`` reads by ``pairs`` stored pairs, warps of a program, stages of its pipeline."""

    rows: int
    pairs: int
    warps: int
    stages: int


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


KERNELS = ("forward", "query_gradient", "pair_gradient")

# (kernel, architectures, padded width, windowed) -> tile, for 16-bit inputs.
_HALF: dict[str, dict[int, dict[int, Tile]]] = {
    "forward": {
        80: {64: Tile(128, 64, 4, 3), 128: Tile(128, 64, 8, 3)},
        86: {64: Tile(128, 64, 4, 2), 128: Tile(64, 64, 4, 2)},
        90: {64: Tile(128, 64, 4, 3), 128: Tile(128, 64, 8, 3)},
        100: {64: Tile(128, 64, 4, 3), 128: Tile(128, 64, 8, 3)},
    },
    "query_gradient": {
        80: {64: Tile(128, 64, 8, 2), 128: Tile(64, 64, 4, 2)},
        86: {64: Tile(64, 64, 4, 2), 128: Tile(64, 32, 4, 2)},
        90: {64: Tile(128, 64, 8, 2), 128: Tile(128, 64, 8, 2)},
        100: {64: Tile(128, 64, 8, 2), 128: Tile(128, 64, 8, 2)},
    },
    "pair_gradient": {
        80: {64: Tile(64, 64, 4, 2), 128: Tile(32, 64, 4, 2)},
        86: {64: Tile(64, 64, 4, 2), 128: Tile(32, 64, 4, 2)},
        90: {64: Tile(64, 128, 8, 2), 128: Tile(32, 128, 8, 2)},
        100: {64: Tile(64, 128, 8, 2), 128: Tile(32, 128, 8, 2)},
    },
}
_FULL = {64: Tile(32, 32, 4, 1), 128: Tile(32, 32, 8, 1)}


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
        return _FULL[size]
    arch = family(capability)
    arch = 86 if arch in (86, 89, 120) else arch
    return _HALF[kernel][arch][size]
