"""The memories' three operations at a single new position, in a handful of small products.

The operations of mmctl.kernels are made for many positions; at one, preparing their tiles costs more than the
arithmetic. Same equations, same results (memory-mosaics.md, sections 2 to 5).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

EXACT = (torch.float32, torch.float64)
"""Dtypes in which the bandwidth may be folded into the query (half precision would lose it)."""


def scan_one(x: Tensor, log_gate: Tensor, log_decay: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple]:
    """Unit key (B, H, 1, D) of kbar_t = g_t x_t + lambda_t kbar_{t-1}, and the state after it."""
    carried, maximum = state
    gate, faded = log_gate[..., 0].double(), maximum.double() + log_decay[..., 0].double()
    # Any number near the maximum serves as the new scale; one of the state's own dtype loses nothing when stored.
    scale = torch.maximum(gate, faded).to(maximum.dtype)
    kept, taken = (faded - scale).exp(), (gate - scale).exp()
    total = carried * kept.to(carried.dtype).unsqueeze(-1) + x[:, :, 0] * taken.to(carried.dtype).unsqueeze(-1)
    return unit(total).to(x.dtype).unsqueeze(2), (total, scale)


def unit(x: Tensor) -> Tensor:
    """x / ||x||; a zero vector stays zero."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def value_one(psi: Tensor, gamma: Tensor, scale: Tensor, pending: Tensor) -> Tensor:
    """Values (B, H, 2, D): that of the pending position, now complete, and room for the new one's, which no read
    sees."""
    share = gamma.view(-1, 1, 1)
    mixed = unit(torch.lerp(psi, pending, share)) * scale.view(-1, 1, 1)
    return torch.cat([mixed, psi], dim=2)


def read_one(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bandwidth: tuple[Tensor, Tensor, Tensor],
    begin: int,
    first: Tensor | None,
    delay: int,
) -> Tensor:
    """`memory_attention` of one query (B, H, 1, D), that of the newest of the stored pairs (B, H, n, D).

    Sees the pairs up to `delay` before its own (a ring holds the h pairs before it and no more, so its delay is 1).
    begin: position of the oldest pair at hand. first: (B, 1) position at which each row's document starts, or None.
    """
    end = keys.shape[2] - delay
    if end <= 0:
        return torch.zeros_like(query)
    keys, values = keys[:, :, :end], values[:, :, :end]
    beta0, beta1, alpha = (parameter.view(1, -1, 1, 1) for parameter in bandwidth)
    if first is None:
        beta = beta1 * alpha.new_tensor(float(end)).pow(alpha) + beta0
        return F.scaled_dot_product_attention(query * beta, keys, values, scale=1.0)
    start = (first - begin).clamp(min=0)[:, :, None, None]
    count = (end - start).clamp(min=0)
    beta = beta1 * count.clamp(min=1).to(beta1.dtype).pow(alpha) + beta0
    visible = torch.arange(end, device=query.device) >= start
    read = F.scaled_dot_product_attention(query * beta, keys, values, attn_mask=visible, scale=1.0)
    return torch.where(count > 0, read, torch.zeros_like(read))
