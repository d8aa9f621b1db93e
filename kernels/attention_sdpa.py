"""Long-term reads of long sequences on a CPU through torch's flash attention.

With delay m the read is plain causal attention on slices: queries k_m .. k_{T-1}, pairs 0 .. T-1-m, the bandwidth
folded into the query (kernels.md, section 2). Torch's kernel is faster than tiles of batched products once the
sequence is long; short sequences, short-term reads, documents and decoding stay with attention_native.py.

Inputs are widened to float32: torch's backward is slower in bf16, and the gradients of the bandwidth live on what
cancels in the rows of ds.
"""

from __future__ import annotations

import torch

from .bandwidth import bandwidth_gradients
from .checks import parameter_dtype
from .folding import Scratch, folded_like, head_major
from .reads import Reads

SHORTEST = 256
"""Length in tokens from which torch's kernel is the faster one."""


def takes(
    keys: torch.Tensor,
    values: torch.Tensor,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    delay: int,
) -> bool:
    """Whether a native call comes here; a function of shapes, so that forward, backward and compiler agree."""
    plain = keys.device.type != "cuda" and documents is None and query is None
    length = keys.shape[2]
    return plain and length >= SHORTEST and 0 < delay < length and keys.shape[-1] == values.shape[-1]


def statistics_shape(keys: torch.Tensor, values: torch.Tensor) -> tuple[int, int, int]:
    """Shape of what the backward keeps: (B, H, T), the log-sum-exp of every position, and below float32 the read too.

    (B, H, T + T D) then, for the read is needed in the working dtype. The gradient of the scores is the difference of
    two numbers, one of which comes from the read: rounded to bf16, it puts errors of several percent into the gradients
    of the bandwidth.
    """
    batch, heads, length, width = values.shape
    return batch, heads, length * (1 if keys.dtype == parameter_dtype(keys.dtype) else 1 + width)


def flash(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read and log-sum-exp of torch's CPU kernel; causal without a mask. The bandwidth is in the query."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, keys, values, 0.0, mask is None, attn_mask=mask, scale=1.0)


def flash_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    read: torch.Tensor,
    lse: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, keys and values of `flash`."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return kernel(grad, query, keys, values, read, lse, 0.0, mask is None, attn_mask=mask, scale=1.0)


def scaled_query(scratch: Scratch, k: torch.Tensor, reads: Reads, delay: int) -> torch.Tensor:
    """beta_t k_t for t >= m: (B, H, T, D) -> (B, H, T-m, D)."""
    batch, heads, length, width = k.shape
    query = scratch.get("query", (batch, heads, length - delay, width), k.dtype)
    return torch.mul(k[:, :, delay:], reads.beta[:, :, delay:, None], out=query)


def forward(keys: torch.Tensor, values: torch.Tensor, reads: Reads, delay: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `attention_native.forward`, with the statistics of `statistics_shape`."""
    work = parameter_dtype(keys.dtype)
    batch, heads, length, width = values.shape
    pairs = length - delay
    scratch = Scratch(keys.device)
    k = scratch.cast("keys", keys, work)
    v = scratch.cast("values", values[:, :, :pairs], work)
    read, lse = flash(scaled_query(scratch, k, reads, delay), k[:, :, :pairs], v)
    out = torch.empty((batch, length, heads, width), dtype=keys.dtype, device=keys.device).transpose(1, 2)
    out[:, :, :delay] = 0
    out[:, :, delay:] = read
    statistics = folded_like(keys, statistics_shape(keys, values), work, head_major(keys))
    statistics[:, :, :delay] = 0
    statistics[:, :, delay:length] = lse
    if keys.dtype != work:
        kept = statistics[:, :, length:].unflatten(2, (length, width))
        kept[:, :, :delay] = 0
        kept[:, :, delay:] = read
    return out, statistics


def backward(
    grad: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    beta1: torch.Tensor,
    reads: Reads,
    out: torch.Tensor | None,
    statistics: torch.Tensor,
    delay: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `attention_native.backward`."""
    work = parameter_dtype(keys.dtype)
    _, heads, length, width = keys.shape
    pairs, by_head = length - delay, head_major(keys)
    scratch = Scratch(keys.device)
    lse = statistics[:, :, delay:length]
    # Kept apart where the reads were rounded.
    read = statistics[:, :, length:].unflatten(2, (length, width)) if out is None else out
    k = scratch.cast("keys", keys, work)
    v = scratch.cast("values", values[:, :, :pairs], work)
    g = scratch.cast("grad", grad[:, :, delay:], work)
    query = scaled_query(scratch, k, reads, delay)
    along, grad_k, grad_v = flash_backward(g, query, k[:, :, :pairs], v, read[:, :, delay:], lse)
    grad_beta = torch.zeros((1, heads, length), dtype=work, device=keys.device)
    torch.sum(torch.mul(k[:, :, delay:], along, out=query).sum(-1), 0, out=grad_beta[0, :, delay:])
    # k is query and key: both parts of its gradient end in one tensor.
    along.mul_(reads.beta[:, :, delay:, None])
    grad_keys = folded_like(keys, keys.shape, keys.dtype, by_head)
    alone, both = min(delay, pairs), max(0, pairs - delay)
    grad_keys[:, :, :alone] = grad_k[:, :, :alone]
    grad_keys[:, :, pairs:delay] = 0
    grad_keys[:, :, delay:pairs] = grad_k[:, :, delay:].add_(along[:, :, :both])
    grad_keys[:, :, max(delay, pairs) :] = along[:, :, both:]
    grad_values = folded_like(values, values.shape, values.dtype, by_head)
    grad_values[:, :, :pairs] = grad_v
    grad_values[:, :, pairs:] = 0
    parameters = bandwidth_gradients(grad_beta, reads.counts, reads.power, beta1)
    return grad_keys, grad_values, *parameters, keys.new_empty(0)
