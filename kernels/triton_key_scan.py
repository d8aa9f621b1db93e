"""Launches the Triton kernels of `key_scan`. Imported only where the path is used."""

from __future__ import annotations

import torch

from . import triton_scan as kernels
from .folding import folded_like
from .triton_memory import blocks, document_ranges, on_device
from .triton_tiles import CARRY_CHUNKS, CARRY_WARPS, SCAN_CHUNK, padded, scan_warps


def kept_shapes(x: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the states chunks start from: maxima (B, H, N) and sums (B, H, N, D)."""
    batch, heads, length, width = x.shape
    chunks = blocks(length, SCAN_CHUNK)
    return (batch, heads, chunks), (batch, heads, chunks, width)


def forward(
    x: torch.Tensor,
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    documents: torch.Tensor | None,
    carried: torch.Tensor | None,
    maximum: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """Keys laid out as (H, B, T, D), state sum and maximum; for the backward maxima and sums at chunk starts."""
    batch, heads, length, width = x.shape
    keys = folded_like(x, x.shape, x.dtype, True)
    state_sum = folded_like(x, (batch, heads, width), torch.float32, True)
    state_maximum = folded_like(x, (batch, heads), torch.float32, True)
    tops, sums = (torch.empty(shape, dtype=torch.float32, device=x.device) for shape in kept_shapes(x))
    added_tops, passes = torch.empty_like(tops), torch.empty_like(tops)
    if batch * heads * width == 0:
        return keys, state_sum, state_maximum.zero_(), tops, sums
    starts, _ = document_ranges(documents, length, length, 0)
    starts = sums if starts is None else starts
    has_state = carried is not None
    carried, maximum = (state_sum, state_maximum) if carried is None or maximum is None else (carried, maximum)
    chunks = sums.shape[2]
    meta = {"WIDTH": width, "C": SCAN_CHUNK, "D": padded(width), "DOCUMENTED": documents is not None}
    inputs = (*x.stride(), *log_gate.stride(), *log_decay.stride())
    with on_device(x):
        kernels.key_scan_state_kernel[(chunks, heads, batch)](
            x,
            log_gate,
            log_decay,
            starts,
            sums,
            added_tops,
            passes,
            *inputs,
            heads,
            length,
            **meta,
            num_warps=scan_warps(width),
        )
        kernels.key_scan_carry_kernel[(heads, batch)](
            starts,
            sums,
            added_tops,
            passes,
            tops,
            carried,
            maximum,
            state_sum,
            state_maximum,
            *carried.stride(),
            *maximum.stride(),
            *state_sum.stride()[:2],
            *state_maximum.stride(),
            heads,
            length,
            chunks,
            CARRIED=has_state,
            G=CARRY_CHUNKS,
            **meta,
            num_warps=CARRY_WARPS,
        )
        kernels.key_scan_keys_kernel[(chunks, heads, batch)](
            x,
            log_gate,
            log_decay,
            starts,
            sums,
            tops,
            keys,
            *inputs,
            *keys.stride(),
            heads,
            length,
            **meta,
            num_warps=scan_warps(width),
        )
    return keys, state_sum, state_maximum, tops, sums


def backward(
    grad_keys: torch.Tensor | None,
    grad_sum: torch.Tensor | None,
    x: torch.Tensor,
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    documents: torch.Tensor | None,
    carried: torch.Tensor | None,
    tops: torch.Tensor,
    sums: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x (in its layout), log_gate, log_decay, carried sum and maximum (empty without a state)."""
    batch, heads, length, width = x.shape
    grad_x = torch.empty_like(x)
    grad_gate = folded_like(x, (batch, heads, length), torch.float32, True)
    grad_decay = folded_like(x, (batch, heads, length), torch.float32, True)
    empty = (x.new_empty(0, dtype=torch.float32), x.new_empty(0, dtype=torch.float32))
    if batch * heads * width == 0:
        shapes = () if carried is None else ((batch, heads, width), (batch, heads))
        states = [folded_like(x, shape, torch.float32, True).zero_() for shape in shapes] or empty
        return grad_x, grad_gate.zero_(), grad_decay.zero_(), *states
    if grad_keys is None:
        grad_keys = torch.zeros((), dtype=x.dtype, device=x.device).expand(x.shape)
    adjoints, factors = torch.empty_like(sums), torch.empty_like(tops)
    grad_carried = folded_like(x, (batch, heads, width), torch.float32, True)
    starts, _ = document_ranges(documents, length, length, 0)
    starts = sums if starts is None else starts
    chunks = sums.shape[2]
    meta = {"WIDTH": width, "C": SCAN_CHUNK, "D": padded(width), "DOCUMENTED": documents is not None}
    inputs = (*x.stride(), *log_gate.stride(), *log_decay.stride(), *grad_keys.stride())
    grad_end = grad_carried if grad_sum is None else grad_sum
    with on_device(x):
        kernels.key_scan_adjoint_kernel[(chunks, heads, batch)](
            x,
            log_gate,
            log_decay,
            starts,
            sums,
            tops,
            grad_keys,
            adjoints,
            factors,
            *inputs,
            heads,
            length,
            **meta,
            num_warps=scan_warps(width),
        )
        kernels.key_scan_carry_adjoint_kernel[(heads, batch)](
            adjoints,
            factors,
            grad_end,
            grad_carried,
            *grad_end.stride(),
            *grad_carried.stride()[:2],
            heads,
            chunks,
            WIDTH=width,
            D=padded(width),
            G=CARRY_CHUNKS,
            ENDED=grad_sum is not None,
            num_warps=CARRY_WARPS,
        )
        kernels.key_scan_gradient_kernel[(chunks, heads, batch)](
            x,
            log_gate,
            log_decay,
            starts,
            sums,
            tops,
            grad_keys,
            adjoints,
            grad_x,
            grad_gate,
            grad_decay,
            *inputs,
            *grad_x.stride(),
            *grad_gate.stride()[:2],
            heads,
            length,
            **meta,
            num_warps=scan_warps(width),
        )
    if carried is None:
        return grad_x, grad_gate, grad_decay, *empty
    grad_maximum = folded_like(x, (batch, heads), torch.float32, True).copy_((grad_carried * carried).sum(-1))
    return grad_x, grad_gate, grad_decay, grad_carried, grad_maximum
