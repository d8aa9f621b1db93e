"""The recurrence of Mamba-2: a matrix state a head, decayed by one scalar a step (arXiv 2405.21060, state-space
duality).

    h_t = alpha_t h_{t-1} + b_t x_t^T        (N x P, x_t already multiplied by the step Delta_t)
    y_t = c_t^T h_t

Both the native path (`state_space_native`) and the Triton path (`triton_states`) are chunked: inside a chunk of K
positions the recurrence is a masked [K, K] product, chunks hand on their state. Decays enter as logarithms and only
differences of their sums are exponentiated, each at most 0, so nothing overflows however long the sequence. The native
path is built of torch operations, which count their FLOPs and compile as they are; the Triton path is an operator.

Shape suffixes: B sequences, H heads, G groups of heads that share b and c, T positions, P head width, N state size a
channel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .checks import check_device, check_documents, check_float, check_like
from .dispatch import decide_path
from .flops import state_space_scan_flops
from .state_space_native import Scan
from .tiles import STATE_CHUNK as CHUNK
from .triton_tiles import state_tile

__all__ = ["CHUNK", "state_space_scan", "state_space_scan_flops", "state_space_scan_op"]


def state_space_scan(
    x: Tensor,
    log_decay: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    documents: Tensor | None = None,
    state: Tensor | None = None,
    window: int | None = None,
    path: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run the recurrence over T positions.

    Args:
        x: inputs (B, H, T, P), multiplied by the step; float32, bfloat16, float16 or float64. May be a strided view.
        log_decay: log alpha (B, H, T), at most 0 (not checked); float32 (float64 beside float64 x) keeps it exact.
        b, c: (B, G, T, N), G dividing H: heads hG/H share one. In x's dtype.
        documents: (B, T) non-decreasing int ids; the state is empty again at the start of each.
        state: (B, H, N, P) before the first position, of that position's document. None: empty.
        window: r >= 1 reads only the last r positions: h_t - alpha_{t-r+1:t} h_{t-r} (Stuffed Mamba, arXiv 2410.07145),
            the product of decays from sums of logarithms. Outputs only: the returned state is the whole one.
        path: "auto" (Triton on CUDA, native elsewhere), "triton", "native" or "reference" (the recurrence itself, step
            by step in float64, for tests). Triton takes N and P up to 128 in float32, bfloat16 and float16; it sums in float32, and
            multiplies states in x's dtype.

    Returns:
        y (B, H, T, P) and the state (B, H, N, P) after the last position, both in x's dtype.

    Raises:
        ValueError: naming the argument, for wrong shapes, dtypes, devices, windows or paths.
    """
    _check(x, log_decay, b, c, documents, state, window)
    scan = _scan(_path(path, x.device, x.dtype, max(x.shape[:2]), x.shape[3], b.shape[3]))
    y, end = scan(x, log_decay, b, c, documents, state)
    length = x.shape[2]
    if window is None or (window >= length and state is None):
        return y, end
    if state is not None:
        raise ValueError("window: a carried state does not say what its last positions added; give none")
    # What is older than the window, as c_t reads it from the state r positions ago: a second scan, its c moved by r.
    old = scan(x, log_decay, b, _moved(c, window), documents, None)[0][:, :, : length - window]
    total = log_decay.cumsum(-1)
    old = old * (total[:, :, window:] - total[:, :, : length - window]).exp().unsqueeze(-1)
    if documents is not None:
        same = documents[:, window:] == documents[:, : length - window]
        old = old * same[:, None, :, None]
    return torch.cat([y[:, :, :window], y[:, :, window:] - old], dim=2), end


def _moved(c: Tensor, window: int) -> Tensor:
    """c with position t holding c_{t + window}; the last `window` positions are not read."""
    return torch.cat([c[:, :, window:], torch.zeros_like(c[:, :, :window])], dim=2)


def _recurrent(
    x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, documents: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The definition, one position after another, in float64."""
    dtype = x.dtype
    x, log_decay, b, c = (t.double() for t in (x, log_decay, b, c))
    batch, heads, length, width = x.shape
    share = heads // b.shape[1]
    h = x.new_zeros(batch, heads, b.shape[3], width) if state is None else state.double()
    reads = []
    for t in range(length):
        decay = log_decay[:, :, t].exp()
        if documents is not None and t:
            decay = decay * (documents[:, t] == documents[:, t - 1])[:, None]
        b_t, c_t = (v[:, :, t].repeat_interleave(share, dim=1) for v in (b, c))
        h = decay[..., None, None] * h + b_t.unsqueeze(-1) * x[:, :, t].unsqueeze(-2)
        reads.append((c_t.unsqueeze(-2) @ h).squeeze(-2))
    return torch.stack(reads, dim=2).to(dtype), h.to(dtype)


@torch.compiler.assume_constant_result
def _path(path: str, device: torch.device, dtype: torch.dtype, programs: int, *widths: int) -> str:
    """Decided outside of compiled graphs: it may ask the driver, and may warn."""
    return decide_path(path, "state_space_scan", device, dtype, programs, *widths)


def _scan(path: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The implementation of a path."""
    if path == "triton":
        return lambda *inputs: state_space_scan_op(*inputs)[:2]
    return Scan.apply if path == "native" else _recurrent  # type: ignore[return-value]


@torch.library.custom_op("mmctl::state_space_scan", mutates_args=())
def state_space_scan_op(
    x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, documents: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The Triton path: y, the end state, and the states chunks start from, which the backward keeps."""
    from . import triton_state_space

    with torch.autocast(x.device.type, enabled=False):
        return triton_state_space.forward(x, log_decay, b, c, documents, state)


@state_space_scan_op.register_fake
def _(x, log_decay, b, c, documents, state):
    batch, heads, length, width = x.shape
    chunk = state_tile(x.element_size(), b.shape[3]).chunk
    return (
        x.new_empty((batch, length, heads, width)).transpose(1, 2),
        x.new_empty((batch, heads, b.shape[3], width)),
        x.new_empty((batch, heads, -(-length // chunk), b.shape[3], width), dtype=torch.float32),
    )


@torch.library.custom_op("mmctl::state_space_scan_backward", mutates_args=())
def state_space_scan_backward_op(
    grad: Tensor | None,
    grad_end: Tensor | None,
    x: Tensor,
    log_decay: Tensor,
    b: Tensor,
    c: Tensor,
    documents: Tensor | None,
    starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, log_decay, b, c, and of the state given."""
    from . import triton_state_space

    with torch.autocast(x.device.type, enabled=False):
        return triton_state_space.backward(grad, grad_end, x, log_decay, b, c, documents, starts)


@state_space_scan_backward_op.register_fake
def _(grad, grad_end, x, log_decay, b, c, documents, starts):
    batch, heads, _, width = x.shape
    return (
        torch.empty_like(x),
        log_decay.new_empty(log_decay.shape),
        b.new_empty(b.shape),
        c.new_empty(c.shape),
        x.new_empty((batch, heads, b.shape[3], width)),
    )


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:5], output[2])
    ctx.carried = inputs[5] is not None
    ctx.set_materialize_grads(False)


def _backward(ctx, grad, grad_end, grad_starts):
    if grad is None and grad_end is None:
        return (None,) * 6
    *found, grad_state = state_space_scan_backward_op(grad, grad_end, *ctx.saved_tensors)
    return *found, None, grad_state if ctx.carried else None


state_space_scan_op.register_autograd(_backward, setup_context=_setup_context)


def _check(
    x: Tensor,
    log_decay: Tensor,
    b: Tensor,
    c: Tensor,
    documents: Tensor | None,
    state: Tensor | None,
    window: int | None,
) -> None:
    if x.dim() != 4 or x.shape[2] < 1:
        raise ValueError(f"x: expected (B, H, T, P) with T at least 1, got {tuple(x.shape)}")
    check_float("x", x)
    batch, heads, length, width = x.shape
    if tuple(log_decay.shape) != (batch, heads, length):
        raise ValueError(f"log_decay: expected {(batch, heads, length)}, got {tuple(log_decay.shape)}")
    check_float("log_decay", log_decay)
    check_device("log_decay", log_decay, "x", x)
    if b.dim() != 4 or (b.shape[0], b.shape[2]) != (batch, length) or heads % b.shape[1]:
        raise ValueError(f"b: expected ({batch}, G, {length}, N) with G dividing {heads}, got {tuple(b.shape)}")
    if c.shape != b.shape:
        raise ValueError(f"c: expected b's shape {tuple(b.shape)}, got {tuple(c.shape)}")
    check_like("b", b, "x", x)
    check_like("c", c, "x", x)
    check_documents(documents, batch, length, "x", x)
    if state is not None:
        if tuple(state.shape) != (batch, heads, b.shape[3], width):
            raise ValueError(f"state: expected {(batch, heads, b.shape[3], width)}, got {tuple(state.shape)}")
        check_like("state", state, "x", x)
    if window is not None and window < 1:
        raise ValueError(f"window: expected at least 1, got {window}")
