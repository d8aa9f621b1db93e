"""Launches the Triton kernels of `state_space_scan`. Imported only where the path is used."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import triton_states as passes
from . import triton_states_gradient as gradients
from . import triton_states_outputs as outputs
from .triton_memory import blocks, on_device
from .triton_tiles import STATE_HEADS, StateTile, padded, state_tile

LOG2_E = 1 / math.log(2)


def kept_shape(x: Tensor, b: Tensor) -> tuple[int, ...]:
    """Shape of the states chunks start from, (B, H, n, N, P) float32, which the backward keeps."""
    batch, heads, length, width = x.shape
    return batch, heads, blocks(length, state_tile(x.element_size(), b.shape[3]).chunk), b.shape[3], width


def chunk_logs(log_decay: Tensor, chunk: int) -> Tensor:
    """Sums of log decays inside chunks in base 2, as high and low float32 parts: (B, H, T) -> (B, H, 2, n K)."""
    padding = -log_decay.shape[-1] % chunk
    steps = torch.nn.functional.pad(log_decay.detach().double(), (0, padding))
    total = (steps.unflatten(-1, (-1, chunk)).cumsum(-1) * LOG2_E).flatten(-2)
    high = total.float()
    return torch.stack([high, (total - high.double()).float()], dim=2)


def sizes(x: Tensor, b: Tensor, tile: StateTile, documents: Tensor | None) -> dict[str, object]:
    """Compile-time arguments of every kernel."""
    return {
        "SIZE": b.shape[3],
        "WIDTH": x.shape[3],
        "K": tile.chunk,
        "N": padded(b.shape[3]),
        "DOCUMENTED": documents is not None,
    }


def forward(
    x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, documents: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """y laid out as (B, T, H, P), the end state in x's dtype, and the states chunks start from for the backward."""
    batch, heads, length, width = x.shape
    y = x.new_empty((batch, length, heads, width)).transpose(1, 2)
    end = torch.empty((batch, heads, b.shape[3], width), dtype=torch.float32, device=x.device)
    starts = torch.empty(kept_shape(x, b), dtype=torch.float32, device=x.device)
    tile, chunks = state_tile(x.element_size(), b.shape[3]), starts.shape[2]
    logs = chunk_logs(log_decay, tile.chunk)
    ids, id_strides = (logs, (0, 0)) if documents is None else (documents, documents.stride())
    given = end if state is None else state.float().contiguous()
    numbers = (heads, heads // b.shape[1], length, chunks)
    meta = sizes(x, b, tile, documents)
    pass_columns = min(padded(width), tile.pass_columns)
    with on_device(x):
        passes.state_space_states_kernel[(blocks(padded(width), pass_columns), heads, batch)](
            x,
            b,
            logs,
            ids,
            given,
            starts,
            end,
            *x.stride(),
            *b.stride(),
            *id_strides,
            *numbers,
            **meta,
            BP=pass_columns,
            CARRIED=state is not None,
            num_warps=tile.pass_warps,
        )
        outputs.state_space_outputs_kernel[(chunks, heads, batch)](
            x,
            b,
            c,
            logs,
            ids,
            starts,
            y,
            *x.stride(),
            *b.stride(),
            *c.stride(),
            *id_strides,
            *y.stride(),
            *numbers,
            **meta,
            P=padded(width),
            BP=min(padded(width), tile.columns),
            BN=min(padded(b.shape[3]), tile.rows),
            num_warps=tile.warps,
        )
    return y, end.to(x.dtype), starts


def backward(
    grad: Tensor | None,
    grad_end: Tensor | None,
    x: Tensor,
    log_decay: Tensor,
    b: Tensor,
    c: Tensor,
    documents: Tensor | None,
    starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (in its layout), log_decay, b, c and the state given."""
    batch, heads, length, width = x.shape
    groups, size = b.shape[1], b.shape[3]
    share, chunks, tile = heads // groups, starts.shape[2], state_tile(x.element_size(), b.shape[3])
    logs = chunk_logs(log_decay, tile.chunk)
    ids, id_strides = (logs, (0, 0)) if documents is None else (documents, documents.stride())
    grad = torch.zeros((), dtype=x.dtype, device=x.device).expand(x.shape) if grad is None else grad
    ended = logs if grad_end is None else grad_end.float().contiguous()
    adjoints = torch.empty_like(starts)
    grad_given = torch.empty((batch, heads, size, width), dtype=torch.float32, device=x.device)
    grad_x = torch.empty_like(x)
    parts = blocks(share, STATE_HEADS)
    grad_b, grad_c = (
        torch.empty((batch, groups, parts, length, size), dtype=torch.float32, device=x.device) for _ in range(2)
    )
    grad_decay = torch.empty((batch, heads, length), dtype=torch.float32, device=x.device)
    numbers = (heads, share, length, chunks)
    meta = sizes(x, b, tile, documents)
    pass_columns = min(padded(width), tile.pass_columns)
    with on_device(x):
        passes.state_space_adjoints_kernel[(blocks(padded(width), pass_columns), heads, batch)](
            c,
            grad,
            logs,
            ids,
            ended,
            adjoints,
            grad_given,
            *c.stride(),
            *grad.stride(),
            *id_strides,
            *numbers,
            **meta,
            BP=pass_columns,
            ENDED=grad_end is not None,
            num_warps=tile.pass_warps,
        )
        inputs = (*x.stride(), *b.stride(), *c.stride(), *grad.stride(), *id_strides)
        gradients.state_space_input_gradient_kernel[(chunks, heads, batch)](
            x,
            b,
            c,
            grad,
            logs,
            ids,
            starts,
            adjoints,
            grad_x,
            grad_decay,
            *inputs,
            *grad_x.stride(),
            *numbers,
            **meta,
            P=padded(width),
            BP=min(padded(width), tile.columns),
            BN=min(padded(size), tile.rows),
            num_warps=tile.warps,
            num_stages=1,
        )
        rows = min(padded(size), tile.rows)
        splits = padded(size) // rows
        del meta["N"]
        gradients.state_space_shared_gradient_kernel[(chunks * splits, groups * parts, batch)](
            x,
            b,
            c,
            grad,
            logs,
            ids,
            starts,
            adjoints,
            grad_b,
            grad_c,
            *inputs,
            *numbers,
            STATE_HEADS,
            width,
            **meta,
            BN=rows,
            BP=tile.shared_columns,
            BLOCKS=splits,
            num_warps=tile.warps,
            num_stages=1,
        )
    return (
        grad_x,
        grad_decay.to(log_decay.dtype),
        grad_b.sum(2).to(b.dtype),
        grad_c.sum(2).to(c.dtype),
        grad_given.to(x.dtype),
    )
