"""The key extractor's recurrence and normalisation: `key_scan`."""

from __future__ import annotations

from types import ModuleType
from typing import Literal, overload

import torch

from . import scan_native as native
from .checks import check_documents, check_float, check_parameter, check_tensor, parameter_dtype
from .dispatch import check_path, choose_path
from .folding import folded_like
from .reference import key_scan_reference
from .tiles import padded_length

State = tuple[torch.Tensor, torch.Tensor]


@overload
def key_scan(
    x: torch.Tensor,
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    *,
    documents: torch.Tensor | None = None,
    state: State | None = None,
    return_state: Literal[False] = False,
    path: str = "auto",
) -> torch.Tensor: ...


@overload
def key_scan(
    x: torch.Tensor,
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    *,
    documents: torch.Tensor | None = None,
    state: State | None = None,
    return_state: Literal[True],
    path: str = "auto",
) -> tuple[torch.Tensor, State]: ...


def key_scan(
    x: torch.Tensor,
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    *,
    documents: torch.Tensor | None = None,
    state: State | None = None,
    return_state: bool = False,
    path: str = "auto",
) -> torch.Tensor | tuple[torch.Tensor, State]:
    """Unit keys of the gated leaky sum: kbar_t = g_t x_t + lambda_t kbar_{t-1}, k_t = kbar_t / ||kbar_t||.

    g = exp(log_gate) and lambda = exp(log_decay) are one scalar per head and step (Memory Mosaics v2,
    arXiv 2507.03285; memory-mosaics.md, section 2). The fixed extractor of v1 is log_gate = 0 and log_decay = log
    lambda, expanded to (B, H, T). Computed in log space, so no gate is too large. A zero kbar gives a zero key
    and zero gradients; there is no other epsilon.

    Differentiable in x, log_gate, log_decay and the state. The returned maximum is a choice of scale and
    carries no gradient: all of it flows through the returned sum.

    Args:
        x: (B, H, T, D) inputs; float32, bfloat16, float16 or float64. May be a strided view.
        log_gate: (B, H, T), float32 (float64 beside float64 x).
        log_decay: (B, H, T), <= 0 (not checked), dtype of log_gate.
        documents: (B, T) int32 or int64 ids, non-decreasing (not checked); the sum restarts where the id changes.
        state: (sum (B, H, D), maximum (B, H)), dtype of log_gate, as returned by an earlier call: kbar before the
            first position is sum * exp(maximum). With documents, it belongs to the first position's document.
        return_state: return the state after the last position too.
        path: "auto" (Triton on CUDA, native elsewhere), "triton", "native" or "reference" (float64, dense, for tests).
            Triton takes widths up to 128 in float32, bfloat16 and float16.

    Returns:
        keys (B, H, T, D) in the dtype of x, or (keys, state).

    Raises:
        ValueError: naming the argument, for wrong shapes, dtypes or devices.
    """
    check_tensor("x", x, "B H T D")
    check_float("x", x)
    batch, heads, length, width = x.shape
    if length < 1:
        raise ValueError("x: needs at least one position")
    check_parameter("log_gate", log_gate, (batch, heads, length), "x", x)
    check_parameter("log_decay", log_decay, (batch, heads, length), "x", x)
    check_documents(documents, batch, length, "x", x)
    if state is not None:
        if not isinstance(state, (tuple, list)) or len(state) != 2:
            raise ValueError("state: expected the pair (sum, maximum)")
        check_parameter("state: sum", state[0], (batch, heads, width), "x", x)
        check_parameter("state: maximum", state[1], (batch, heads), "x", x)
    check_path(path)
    if path == "reference":
        keys, carried, maximum = key_scan_reference(x, log_gate, log_decay, documents=documents, state=state)
    else:
        before = (None, None) if state is None else state
        keys, carried, maximum, *_ = key_scan_op(x, log_gate, log_decay, documents, *before, path)
    return (keys, (carried, maximum)) if return_state else keys


@torch.library.custom_op("mmctl::key_scan", mutates_args=())
def key_scan_op(
    x: torch.Tensor,
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    documents: torch.Tensor | None,
    carried: torch.Tensor | None,
    maximum: torch.Tensor | None,
    path: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, the state after the last position, and what the backward of the path keeps (three tensors)."""
    with torch.autocast(x.device.type, enabled=False):
        used = implementation(path, x)
        if used is native:
            return native.forward(x, log_gate, log_decay, documents, carried, maximum)
        outputs = used.forward(x, log_gate, log_decay, documents, carried, maximum)
        return *outputs[:3], x.new_empty(0, dtype=torch.float32), *outputs[3:]


def implementation(path: str, x: torch.Tensor) -> ModuleType:
    """The module whose `forward` and `backward` run. Triton is imported only here, where it is used."""
    if choose_path(path, "key_scan", x, x.shape[-1]) == "native":
        return native
    from . import triton_key_scan

    return triton_key_scan


@key_scan_op.register_fake
def _(x, log_gate, log_decay, documents, carried, maximum, path="auto"):
    batch, heads, length, width = x.shape
    work = parameter_dtype(x.dtype)
    results = (
        folded_like(x, x.shape, x.dtype, True),
        folded_like(x, (batch, heads, width), work, True),
        folded_like(x, (batch, heads), work, True),
    )
    used = implementation(path, x)
    if used is not native:
        return *results, *(x.new_empty(shape, dtype=work) for shape in ((0,), *used.kept_shapes(x)))
    return (
        *results,
        folded_like(x, (batch, heads, length), work, True),
        folded_like(x, (batch, heads, 2 if documents is None else 3, padded_length(length)), torch.float64, True),
        x.new_empty(0, dtype=work) if x.dtype == work else folded_like(x, x.shape, work, True),
    )


@torch.library.custom_op("mmctl::key_scan_backward", mutates_args=())
def key_scan_backward_op(
    grad_keys: torch.Tensor | None,
    grad_sum: torch.Tensor | None,
    x: torch.Tensor,
    carried: torch.Tensor | None,
    maximum: torch.Tensor | None,
    keys: torch.Tensor,
    state_sum: torch.Tensor,
    norms: torch.Tensor,
    rows: torch.Tensor,
    kept: torch.Tensor,
    log_gate: torch.Tensor | None = None,
    log_decay: torch.Tensor | None = None,
    documents: torch.Tensor | None = None,
    path: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x, log_gate, log_decay, carried sum, carried maximum. Only kernels take gates and documents."""
    with torch.autocast(x.device.type, enabled=False):
        used = implementation(path, x)
        if used is not native:
            return used.backward(grad_keys, grad_sum, x, log_gate, log_decay, documents, carried, rows, kept)
        return native.backward(grad_keys, grad_sum, x, carried, maximum, keys, state_sum, norms, rows, kept)


@key_scan_backward_op.register_fake
def _(grad_keys, grad_sum, x, carried, maximum, keys, state_sum, norms, rows, kept, *args):
    batch, heads, length, width = x.shape
    work = parameter_dtype(x.dtype)
    gates = tuple(folded_like(x, (batch, heads, length), work, True) for _ in range(2))
    if carried is None:
        states = (x.new_empty(0, dtype=work), x.new_empty(0, dtype=work))
    else:
        states = (folded_like(x, (batch, heads, width), work, True), folded_like(x, (batch, heads), work, True))
    return torch.empty_like(x), *gates, *states


def _setup_context(ctx, inputs, output) -> None:
    x, log_gate, log_decay, documents, carried, maximum, path = inputs
    keys, state_sum, _, norms, rows, kept = output
    # The kernels compute a chunk's weights again; the native path keeps what it needs of them in rows.
    gates = (None, None, None) if implementation(path, x) is native else (log_gate, log_decay, documents)
    ctx.save_for_backward(x, carried, maximum, keys, state_sum, norms, rows, kept, *gates)
    ctx.set_materialize_grads(False)
    ctx.path = path


def _backward(ctx, grad_keys, grad_sum, *unused):
    if grad_keys is None and grad_sum is None:
        return (None,) * 7
    saved = ctx.saved_tensors  # asked for once: activation checkpointing gives them a single time
    carried = saved[1]
    grad_x, grad_gate, grad_decay, *states = key_scan_backward_op(grad_keys, grad_sum, *saved, ctx.path)
    return grad_x, grad_gate, grad_decay, None, *((None, None) if carried is None else states), None


key_scan_op.register_autograd(_backward, setup_context=_setup_context)
