"""`value_extract` in plain torch operations, forward and backward. G = B H folded head-major."""

from __future__ import annotations

import torch

from .attention_native import fold, unfold
from .checks import parameter_dtype
from .scan_native import inverse


def coefficients(
    gamma: torch.Tensor, documents: torch.Tensor | None, batch: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """gamma (G, 1, 1), 1 - gamma (G, 1 or T-1, 1), and with documents the same-document flags (G, T-1, 1)."""
    heads = gamma.shape[0]
    own = gamma.view(-1, 1).expand(heads, batch).reshape(-1, 1, 1)
    if documents is None:
        return own, 1 - own, None
    same = (documents[:, 1:] == documents[:, :-1]).to(gamma.dtype)
    same = same.expand(heads, -1, -1).flatten(0, 1).unsqueeze(-1)
    return own, (1 - own) * same, same


def forward(
    psi: torch.Tensor, gamma: torch.Tensor, scale: torch.Tensor, documents: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values (B, H, T, D) laid out as (H, B, T, D), and ||vbar|| (B, H, T)."""
    batch, heads, _, _ = psi.shape
    p = fold(psi, True).to(parameter_dtype(psi.dtype))
    own, following, _ = coefficients(gamma, documents, batch)
    mixed = p * own
    mixed[:, :-1].addcmul_(p[:, 1:], following)
    norms = torch.linalg.vector_norm(mixed, dim=-1)
    factor = inverse(norms).view(heads, -1).mul_(scale.unsqueeze(-1)).view(norms.shape)
    values = torch.empty(mixed.shape, dtype=psi.dtype, device=psi.device)
    torch.mul(mixed, factor.unsqueeze(-1), out=values)
    return unfold(values, batch, heads, True), unfold(norms, batch, heads, True)


def backward(
    grad: torch.Tensor,
    psi: torch.Tensor,
    gamma: torch.Tensor,
    scale: torch.Tensor,
    documents: torch.Tensor | None,
    norms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of psi, gamma and scale. vbar is computed again rather than stored."""
    batch, heads, _, _ = psi.shape
    work = parameter_dtype(psi.dtype)
    p = fold(psi, True).to(work)
    g = fold(grad, True).to(work)
    own, following, same = coefficients(gamma, documents, batch)
    mixed = p * own
    mixed[:, :-1].addcmul_(p[:, 1:], following)
    inv = inverse(fold(norms, True))
    # v = s u, u = vbar / n: ds = u . dv and dvbar = (s / n) (dv - u (u . dv)).
    along = (g * mixed).sum(-1) * inv
    grad_scale = along.view(heads, -1).sum(-1)
    per_head = scale.view(-1, 1, 1)
    pull = (along * inv).unsqueeze(-1)
    factor = (inv.view(heads, batch, -1) * per_head).view(inv.shape).unsqueeze(-1)
    grad_mixed = torch.addcmul(g, mixed, pull, value=-1).mul_(factor)
    own_part = (grad_mixed * p).view(heads, -1).sum(-1)
    crossed = grad_mixed[:, :-1] * p[:, 1:]
    if same is not None:
        crossed *= same
    grad_gamma = own_part - crossed.view(heads, -1).sum(-1)
    grad_psi = grad_mixed * own
    grad_psi[:, 1:].addcmul_(grad_mixed[:, :-1], following)
    return unfold(grad_psi.to(psi.dtype), batch, heads, True), grad_gamma, grad_scale
