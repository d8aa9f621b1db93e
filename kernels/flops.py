"""FLOPs the native path executes, as plain functions, and their registration with torch's counter. Torch-free.

Convention: a multiply-add is 2 FLOPs and only matrix products count. A long-term read is counted as torch counts
causal SDPA, the full square of its slices (Tq' = Tk' = T - m), although only the tiles below the diagonal are
computed; a short-term read and the scans count the tiles and chunks that are really computed. A backward counts
its recomputed scores, as torch does: 5 products for 2, that is 2.5 times the forward at equal widths.
"""

from __future__ import annotations

import math
from typing import Any

from .tiles import SCAN_CHUNK, STATE_CHUNK, padded_length, query_blocks


def memory_attention_flops(
    batch: int,
    heads: int,
    length: int,
    width: int,
    value_width: int | None = None,
    *,
    window: int | None = None,
    delay: int | None = None,
    rows: int | None = None,
    query_offset: int = 0,
    backward: bool = False,
) -> int:
    """FLOPs of one `memory_attention` call, forward or (``backward=True``) the backward alone.

    Args:
        batch, heads, length: B, H and the number of stored pairs T.
        width, value_width: D and Dv (None: the same).
        window, delay: exactly one, as for the operation.
        rows: number of queries Tq (None: T, the keys read).
        query_offset: position of the first query.

    Raises:
        ValueError: not exactly one of window and delay is given.
    """
    if bool(window) == bool(delay):
        raise ValueError("window, delay: exactly one of the two must be given")
    rows = length if rows is None else rows
    value_width = width if value_width is None else value_width
    if delay:
        # Rows from the first that sees a pair, pairs up to the last that is seen.
        reading = max(0, query_offset + rows - max(query_offset, delay))
        pairs = reading * max(0, min(length, query_offset + rows - delay))
    else:
        blocks = query_blocks(rows, length, query_offset, int(window or 0), 0)
        pairs = sum((row_end - row) * (pair_end - pair) for row, row_end, pair, pair_end in blocks)
    score, read = 2 * batch * heads * pairs * width, 2 * batch * heads * pairs * value_width
    return 3 * score + 2 * read if backward else score + read


def key_scan_flops(batch: int, heads: int, length: int, width: int, *, backward: bool = False) -> int:
    """FLOPs of one `key_scan` call over (B, H, T, D), forward or (``backward=True``) the backward alone.

    Every level of chunks of C positions is one [C, C] x [C, D] product a chunk; the backward adds one
    [1, C] x [C, D] product for what each chunk hands to its predecessors.
    """
    padded = padded_length(length)
    chunk = min(padded, SCAN_CHUNK)
    products = padded * chunk
    if padded > SCAN_CHUNK:
        chunks = padded // SCAN_CHUNK
        deeper = key_scan_flops(batch, heads, chunks, width, backward=backward)
        return 2 * batch * heads * (products + (padded if backward else 0)) * width + deeper
    return 2 * batch * heads * products * width


def state_space_scan_flops(
    heads: int, groups: int, length: int, width: int, size: int, *, backward: bool = False
) -> int:
    """FLOPs of one `state_space_scan` over one sequence, forward or (``backward=True``) the backward alone.

    Whole chunks of K positions: C B^T a group; its product with x, the read of the state and what is added to it a
    head. The backward keeps the product with the decays, so it multiplies twice what the forward does.
    """
    k = min(STATE_CHUNK, length)
    positions = -(-length // k) * k
    forward = 2 * positions * (groups * k * size + heads * k * width + 2 * heads * size * width)
    return 2 * forward if backward else forward


def sdpa_flops(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], backward: bool = False) -> int:
    """FLOPs of scaled dot-product attention on (B, H, T, D) shapes, the full square, as torch counts on CUDA."""
    pairs = math.prod(query[:3]) * key[2]
    score, read = 2 * pairs * query[3], 2 * pairs * value[3]
    return 3 * score + 2 * read if backward else score + read


def register_flop_formulas() -> None:
    """Teach `torch.utils.flop_counter` the operators of this package, and SDPA on a CPU, which it counts as 0.

    Changes torch's global registry, so it is called explicitly by whoever counts; calling it again is harmless.
    """
    import torch
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    from . import key_scan, memory_attention, state_space, value_extract  # noqa: F401  (registers the operators)

    def read(keys: Any, values: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return _attention(keys, values, args[4], args[5:8], backward=False)

    def read_backward(grad: Any, keys: Any, values: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return _attention(keys, values, args[4], args[5:8], backward=True)

    def scan(x: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return key_scan_flops(*x)

    def scan_backward(grad_keys: Any, grad_sum: Any, x: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return key_scan_flops(*x, backward=True)

    def states(x: Any, log_decay: Any, b: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return x[0] * state_space_scan_flops(x[1], b[1], x[2], x[3], b[3])

    def states_backward(
        g: Any, end: Any, x: Any, decay: Any, b: Any, *args: Any, out_shape: Any = None, **k: Any
    ) -> int:
        return x[0] * state_space_scan_flops(x[1], b[1], x[2], x[3], b[3], backward=True)

    def sdpa(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return sdpa_flops(query, key, value)

    def sdpa_backward(grad: Any, query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kw: Any) -> int:
        return sdpa_flops(query, key, value, backward=True)

    ours, aten = torch.ops.mmctl, torch.ops.aten
    formulas = {
        ours.memory_attention: read,
        ours.memory_attention_backward: read_backward,
        ours.key_scan: scan,
        ours.key_scan_backward: scan_backward,
        ours.state_space_scan: states,
        ours.state_space_scan_backward: states_backward,
        aten._scaled_dot_product_flash_attention_for_cpu: sdpa,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward,
    }
    for operator, formula in formulas.items():
        if operator not in flop_registry:
            register_flop_formula(operator)(formula)  # type: ignore[arg-type]


def _attention(keys: Any, values: Any, query: Any, span: Any, *, backward: bool) -> int:
    window, delay, offset = span
    batch, heads, length, width = keys
    return memory_attention_flops(
        batch,
        heads,
        length,
        width,
        values[3],
        window=window or None,
        delay=delay or None,
        rows=None if query is None else query[2],
        query_offset=offset,
        backward=backward,
    )
