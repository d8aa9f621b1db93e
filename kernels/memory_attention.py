"""The associative read of a memory: `memory_attention`."""

from __future__ import annotations

from types import ModuleType

import torch

from . import attention_native as native
from .checks import (
    check_documents,
    check_float,
    check_like,
    check_parameter,
    check_shape,
    check_tensor,
    parameter_dtype,
)
from .dispatch import check_path, choose_path
from .folding import folded_like, head_major
from .reference import memory_attention_reference

Bandwidth = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def memory_attention(
    keys: torch.Tensor,
    values: torch.Tensor,
    bandwidth: Bandwidth,
    *,
    window: int | None = None,
    delay: int | None = None,
    documents: torch.Tensor | None = None,
    query: torch.Tensor | None = None,
    query_offset: int = 0,
    path: str = "auto",
) -> torch.Tensor:
    """Read a memory at every position: f(k_t) = sum_i softmax_i(beta_t k_t . k_i) v_i.

    The sum runs over the pairs visible at t, inside t's document: the ``window`` = h pairs t-h .. t-1
    (short-term memory) or the pairs 0 .. t-m with ``delay`` = m (long-term memory). The bandwidth is
    beta_t = beta1 n_t^alpha + beta0, n_t being the number of visible pairs (memory-mosaics.md, sections 1, 4
    and 5; Memory Mosaics v2, arXiv 2507.03285). A read that sees no pair returns exactly 0 and passes exactly
    zero gradients.

    Differentiable in keys, values, query and the three parameters of the bandwidth. Preconditions that are not
    checked: keys and query are unit vectors, and document ids do not decrease along a sequence.

    Args:
        keys: (B, H, T, D) unit vectors; float32, bfloat16, float16 or float64.
        values: (B, H, T, Dv), dtype of the keys.
        bandwidth: (beta0, beta1, alpha), each (H,), float32 (float64 beside float64 keys), in final form:
            beta0 >= 0, beta1 >= 0, 0 <= alpha <= 1.
        window: h >= 1, number of most recent pairs a read sees. Exactly one of window and delay is given.
        delay: m >= 1, distance in tokens from a read to the newest pair it sees.
        documents: (B, T) int32 or int64 ids, or None for one document a sequence. When ``query`` stands past the
            stored pairs, ids for the positions up to the last query are needed: (B, query_offset + Tq).
        query: (B, H, Tq, D) unit vectors that read instead of the keys themselves (decoding), or None.
        query_offset: position of the first query among the stored pairs, in tokens.
        path: "auto" (Triton on CUDA, native elsewhere), "triton", "native" or "reference" (float64, dense, for tests).
            Triton takes head widths up to 128 in float32 (exact products, no TF32), bfloat16 and float16.

    Returns:
        (B, H, Tq, Dv) in the dtype of the keys; Tq = T without ``query``.

    Raises:
        ValueError: naming the argument, for wrong shapes, dtypes or devices, for a window or delay below 1, and
            for both or neither of them.
    """
    check_arguments(keys, values, bandwidth, window, delay, documents, query, query_offset)
    h = 0 if window is None else window
    m = 0 if delay is None else delay
    beta0, beta1, alpha = bandwidth
    check_path(path)
    if path == "reference":
        return memory_attention_reference(
            keys,
            values,
            bandwidth,
            window=h,
            delay=m,
            documents=documents,
            query=query,
            query_offset=query_offset,
        )
    return memory_attention_op(keys, values, beta0, beta1, alpha, documents, query, h, m, query_offset, path)[0]


def check_arguments(
    keys: torch.Tensor,
    values: torch.Tensor,
    bandwidth: Bandwidth,
    window: int | None,
    delay: int | None,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    query_offset: int,
) -> None:
    """Raise a ``ValueError`` that names the first wrong argument."""
    check_tensor("keys", keys, "B H T D")
    check_float("keys", keys)
    batch, heads, length, width = keys.shape
    check_tensor("values", values, "B H T Dv")
    check_shape("values", values, (batch, heads, length, values.shape[-1]))
    check_like("values", values, "keys", keys)
    if not isinstance(bandwidth, (tuple, list)) or len(bandwidth) != 3:
        raise ValueError("bandwidth: expected the triple (beta0, beta1, alpha)")
    for name, parameter in zip(("beta0", "beta1", "alpha"), bandwidth, strict=True):
        check_parameter(f"bandwidth: {name}", parameter, (heads,), "keys", keys)
    if (window is None) == (delay is None):
        raise ValueError("window, delay: exactly one of the two must be given")
    if window is not None and window < 1:
        raise ValueError(f"window: must be at least 1, got {window}")
    if delay is not None and delay < 1:
        raise ValueError(f"delay: must be at least 1, got {delay}")
    reach = length
    if query is not None:
        check_tensor("query", query, "B H Tq D")
        check_shape("query", query, (batch, heads, query.shape[2], width))
        check_like("query", query, "keys", keys)
        if query_offset < 0:
            raise ValueError(f"query_offset: must be at least 0, got {query_offset}")
        reach = max(length, query_offset + query.shape[2])
    elif query_offset != 0:
        raise ValueError("query_offset: needs query")
    check_documents(documents, batch, reach, "keys", keys)


@torch.library.custom_op("mmctl::memory_attention", mutates_args=())
def memory_attention_op(
    keys: torch.Tensor,
    values: torch.Tensor,
    beta0: torch.Tensor,
    beta1: torch.Tensor,
    alpha: torch.Tensor,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    window: int,
    delay: int,
    query_offset: int,
    path: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reads and row statistics, whose meaning is the path's own. ``window`` or ``delay`` is 0 where the other rules."""
    with torch.autocast(keys.device.type, enabled=False):
        forward = implementation(path, keys, values).forward
        return forward(keys, values, beta0, beta1, alpha, documents, query, window, delay, query_offset)


def implementation(path: str, keys: torch.Tensor, values: torch.Tensor) -> ModuleType:
    """The module whose `forward` and `backward` run. Triton is imported only here, where it is used."""
    if choose_path(path, "memory_attention", keys, keys.shape[-1], values.shape[-1]) == "native":
        return native
    from . import triton_memory

    return triton_memory


@memory_attention_op.register_fake
def _(keys, values, beta0, beta1, alpha, documents, query, window, delay, query_offset, path="auto"):
    batch, heads, length, _ = keys.shape
    rows = length if query is None else query.shape[2]
    out = keys.new_empty((batch, rows, heads, values.shape[-1])).transpose(1, 2)
    shape: tuple[int, ...] = (batch, heads, 2, rows)
    if implementation(path, keys, values) is native:
        shape = native.statistics_shape(keys, values, documents, query, delay)
    return out, folded_like(keys, shape, parameter_dtype(keys.dtype), head_major(keys))


@torch.library.custom_op("mmctl::memory_attention_backward", mutates_args=())
def memory_attention_backward_op(
    grad: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    beta0: torch.Tensor,
    beta1: torch.Tensor,
    alpha: torch.Tensor,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    window: int,
    delay: int,
    query_offset: int,
    out: torch.Tensor | None,
    statistics: torch.Tensor,
    path: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of keys, values, beta0, beta1, alpha, query."""
    with torch.autocast(keys.device.type, enabled=False):
        inputs = (grad, keys, values, beta0, beta1, alpha, documents, query)
        used = implementation(path, keys, values)
        return used.backward(*inputs, out, statistics, window, delay, query_offset)


@memory_attention_backward_op.register_fake
def _(grad, keys, values, beta0, beta1, alpha, documents, query, window, delay, query_offset, out, statistics, path):
    by_head = head_major(keys)
    grad_query = keys.new_empty(0) if query is None else folded_like(query, query.shape, query.dtype, by_head)
    return (
        folded_like(keys, keys.shape, keys.dtype, by_head),
        folded_like(values, values.shape, values.dtype, by_head),
        torch.empty_like(beta0),
        torch.empty_like(beta1),
        torch.empty_like(alpha),
        grad_query,
    )


def _setup_context(ctx, inputs, output) -> None:
    *tensors, window, delay, query_offset, path = inputs
    out, statistics = output
    keys, values, *_, documents, query = tensors
    # Reads that the backward of the native path has no use for are not held on to.
    unused = implementation(path, keys, values) is native and not native.keeps_reads(
        keys, values, documents, query, delay
    )
    kept = None if unused else out
    ctx.save_for_backward(*tensors, kept, statistics)
    ctx.set_materialize_grads(False)
    ctx.span, ctx.path = (window, delay, query_offset), path


def _backward(ctx, grad, grad_statistics):
    *tensors, out, statistics = ctx.saved_tensors
    if grad is None:
        return (None,) * 11
    *grads, grad_query = memory_attention_backward_op(grad, *tensors, *ctx.span, out, statistics, ctx.path)
    return *grads, None, None if tensors[6] is None else grad_query, None, None, None, None


memory_attention_op.register_autograd(_backward, setup_context=_setup_context)
