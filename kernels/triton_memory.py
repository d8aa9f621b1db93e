"""Launches the Triton kernels of `memory_attention`; same signatures and layouts as the native path.

Nothing is copied: kernels take every stride, an expanded (stride 0) or transposed gradient included. Imported only
where the path is used, so that the package needs no Triton otherwise.
"""

from __future__ import annotations

import contextlib

import torch

from . import triton_attention as kernels
from .bandwidth import document_starts
from .folding import folded_like, head_major
from .triton_support import capability
from .triton_tiles import Tile, attention_tile, padded

# float32 products are exact float32 ("ieee"), never TF32; 16-bit inputs ignore this.
PRECISION = "ieee"


def on_device(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Make the device of ``tensor`` the current one: kernels launch there, not where the tensors are."""
    return torch.cuda.device(tensor.device) if tensor.device.type == "cuda" else contextlib.nullcontext()


def blocks(size: int, block: int) -> int:
    return -(-size // block)


def document_ranges(
    documents: torch.Tensor | None, length: int, rows: int, offset: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """First position of each read's document (B, rows), end of each pair's document (B, T), int32."""
    if documents is None:
        return None, None
    starts = document_starts(documents).to(torch.int32)
    ends = torch.searchsorted(starts, starts, right=True, out_int32=True)
    return starts[:, offset : offset + rows].contiguous(), ends[:, :length].contiguous()


def reach_of(window: int, delay: int, offset: int, rows: int) -> tuple[int, int, int]:
    """Window and delay, clamped to what fits an int32 and changes nothing, and the first row that sees anything."""
    window, delay = min(window, offset + rows), min(delay, offset + rows)
    return window, delay, min(rows, max(0, (1 if window > 0 else delay) - offset))


def meta(keys: torch.Tensor, values: torch.Tensor, tile: Tile, window: int, documents: torch.Tensor | None) -> dict:
    """Compile-time arguments of a kernel."""
    return {
        "WIDTH": keys.shape[-1],
        "VALUE_WIDTH": values.shape[-1],
        "D": padded(keys.shape[-1]),
        "V": padded(values.shape[-1]),
        "BM": tile.rows,
        "BN": tile.pairs,
        "WINDOWED": window > 0,
        "DOCUMENTED": documents is not None,
        "PRECISION": PRECISION,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def tile_of(kernel: str, keys: torch.Tensor, values: torch.Tensor, window: int) -> Tile:
    width = max(keys.shape[-1], values.shape[-1])
    return attention_tile(kernel, capability(keys.device), keys.element_size(), width, window > 0)


def forward(
    keys: torch.Tensor,
    values: torch.Tensor,
    beta0: torch.Tensor,
    beta1: torch.Tensor,
    alpha: torch.Tensor,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    window: int,
    delay: int,
    offset: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reads (B, H, Tq, Dv), laid out as (B, Tq, H, Dv), and statistics (B, H, 2, Tq) for the backward.

    The statistics are the base-2 log-sum-exp of the scores and beta_t log2(e), in float32.
    """
    batch, heads, length, _ = keys.shape
    queries = keys if query is None else query
    rows = queries.shape[2]
    out = torch.empty((batch, rows, heads, values.shape[-1]), dtype=keys.dtype, device=keys.device).transpose(1, 2)
    statistics = folded_like(keys, (batch, heads, 2, rows), torch.float32, head_major(keys))
    if out.numel() == 0:
        return out, statistics
    tile = tile_of("forward", keys, values, window)
    starts, _ = document_ranges(documents, length, rows, offset)
    window, delay, row_base = reach_of(window, delay, offset, rows)
    main_tiles = blocks(rows - row_base, tile.rows)
    with on_device(keys):
        kernels.memory_attention_forward_kernel[(main_tiles + blocks(row_base, tile.rows), heads, batch)](
            queries,
            keys,
            values,
            out,
            statistics,
            beta0.contiguous(),
            beta1.contiguous(),
            alpha.contiguous(),
            statistics if starts is None else starts,
            *queries.stride(),
            *keys.stride(),
            *values.stride(),
            *out.stride(),
            *statistics.stride()[:2],
            rows,
            length,
            offset,
            window,
            delay,
            row_base,
            main_tiles,
            **meta(keys, values, tile, window, documents),
        )
    return out, statistics


def backward(
    grad: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    beta0: torch.Tensor,
    beta1: torch.Tensor,
    alpha: torch.Tensor,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    out: torch.Tensor,
    statistics: torch.Tensor,
    window: int,
    delay: int,
    offset: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of keys, values, beta0, beta1, alpha, and query (an empty tensor where there is none)."""
    batch, heads, length, _ = keys.shape
    by_head = head_major(keys)
    queries = keys if query is None else query
    rows = queries.shape[2]
    grad_keys = folded_like(keys, keys.shape, keys.dtype, by_head)
    grad_values = folded_like(values, values.shape, values.dtype, by_head)
    grad_query = keys.new_empty(0) if query is None else folded_like(query, query.shape, query.dtype, by_head)
    if batch * heads * rows == 0:
        zeros = (torch.zeros_like(beta0), torch.zeros_like(beta1), torch.zeros_like(alpha))
        return grad_keys.zero_(), grad_values.zero_(), *zeros, grad_query
    target = grad_keys if query is None else grad_query
    starts, ends = document_ranges(documents, length, rows, offset)
    window, delay, row_base = reach_of(window, delay, offset, rows)
    delta = torch.empty((batch, heads, rows), dtype=torch.float32, device=keys.device)
    tile = tile_of("query_gradient", keys, values, window)
    main_tiles = blocks(rows - row_base, tile.rows)
    tiles = main_tiles + blocks(row_base, tile.rows)
    partials = torch.empty((batch, heads, 3, tiles), dtype=torch.float32, device=keys.device)
    with on_device(keys):
        kernels.memory_attention_query_gradient_kernel[(tiles, heads, batch)](
            queries,
            keys,
            values,
            out,
            grad,
            statistics,
            delta,
            target,
            partials,
            beta1.contiguous(),
            alpha.contiguous(),
            statistics if starts is None else starts,
            *queries.stride(),
            *keys.stride(),
            *values.stride(),
            *out.stride(),
            *grad.stride(),
            *target.stride(),
            *statistics.stride()[:2],
            heads,
            rows,
            length,
            offset,
            window,
            delay,
            row_base,
            main_tiles,
            **meta(keys, values, tile, window, documents),
        )
        tile = tile_of("pair_gradient", keys, values, window)
        if length > 0:
            kernels.memory_attention_pair_gradient_kernel[(blocks(length, tile.pairs), heads, batch)](
                queries,
                keys,
                values,
                grad,
                statistics,
                delta,
                grad_keys,
                grad_values,
                statistics if ends is None else ends,
                *queries.stride(),
                *keys.stride(),
                *values.stride(),
                *grad.stride(),
                *grad_keys.stride(),
                *grad_values.stride(),
                *statistics.stride()[:2],
                heads,
                rows,
                length,
                offset,
                window,
                delay,
                ADDED=query is None,
                **meta(keys, values, tile, window, documents),
            )
    beta0, beta1, alpha = (partials[:, :, part].sum((0, 2)) for part in range(3))
    return grad_keys, grad_values, beta0, beta1, alpha, grad_query
