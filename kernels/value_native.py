"""`value_extract` in plain torch operations, forward and backward. Works on some sequences at a time."""

from __future__ import annotations

import torch

from .checks import parameter_dtype
from .folding import Group, Scratch, folded_like, groups
from .scan_native import inverse, scan_group_size


def same_document(documents: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """(B, 1, T-1, 1) flags: 1 where the next position is of the same document; None without documents."""
    if documents is None:
        return None
    return (documents[:, 1:] == documents[:, :-1]).to(dtype)[:, None, :, None]


def mixture(
    p: torch.Tensor, group: Group, own: torch.Tensor, following: torch.Tensor, scratch: Scratch
) -> torch.Tensor:
    """vbar (b, h, T, D) of psi (b, h, T, D), in a buffer that folds."""
    batch, heads, length, width = p.shape
    mixed = group.unfold(scratch.get("mixed", (batch * heads, length, width), p.dtype))
    torch.mul(p, own, out=mixed)
    mixed[:, :, :-1].addcmul_(p[:, :, 1:], following)
    return mixed


def forward(
    psi: torch.Tensor, gamma: torch.Tensor, scale: torch.Tensor, documents: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values (B, H, T, D) laid out as (H, B, T, D), and ||vbar|| (B, H, T)."""
    batch, heads, length, width = psi.shape
    work = parameter_dtype(psi.dtype)
    same = same_document(documents, work)
    values = folded_like(psi, psi.shape, psi.dtype, True)
    norms = folded_like(psi, psi.shape[:3], work, True)
    scratch = Scratch(psi.device)
    for group in groups(batch, heads, False, scan_group_size(length * width, psi.device)):
        p = widened(psi, group, work, scratch)
        own = gamma[group.heads].view(1, -1, 1, 1)
        following = 1 - own if same is None else (1 - own) * same[group.batch]
        mixed = mixture(p, group, own, following, scratch)
        group_norms = group.of(norms)
        torch.linalg.vector_norm(mixed, dim=-1, out=group_norms)
        factor = inverse(group_norms).mul_(scale[group.heads].view(1, -1, 1))
        torch.mul(mixed, factor.unsqueeze(-1), out=group.of(values))
    return values, norms


def widened(psi: torch.Tensor, group: Group, work: torch.dtype, scratch: Scratch) -> torch.Tensor:
    """The group's psi (b, h, T, D) in the working dtype."""
    p = group.of(psi)
    if p.dtype == work:
        return p
    batch, heads, length, width = p.shape
    return group.unfold(scratch.get("psi", (batch * heads, length, width), work)).copy_(p)


def backward(
    grad: torch.Tensor,
    psi: torch.Tensor,
    gamma: torch.Tensor,
    scale: torch.Tensor,
    documents: torch.Tensor | None,
    norms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of psi (in the layout of psi), gamma and scale. vbar is computed again rather than stored."""
    batch, heads, length, width = psi.shape
    work = parameter_dtype(psi.dtype)
    same = same_document(documents, work)
    grad_psi = torch.empty_like(psi)
    # One row sum per position, reduced to heads at the end: deterministic, and accurate over long batches.
    along_all = folded_like(psi, psi.shape[:3], work, True)
    turn_all = folded_like(psi, psi.shape[:3], work, True)
    scratch = Scratch(psi.device)
    for group in groups(batch, heads, False, scan_group_size(length * width, psi.device)):
        p = widened(psi, group, work, scratch)
        own = gamma[group.heads].view(1, -1, 1, 1)
        following = 1 - own if same is None else (1 - own) * same[group.batch]
        mixed = mixture(p, group, own, following, scratch)
        shape = (p.shape[0] * p.shape[1], length, width)
        product = group.unfold(scratch.get("product", shape, work))
        g = group.unfold(scratch.get("grad", shape, work)).copy_(group.of(grad))
        # v = s u, u = vbar / n: ds = u . dv and dvbar = (s / n) (dv - u (u . dv)).
        inv = inverse(group.of(norms))
        along = torch.sum(torch.mul(g, mixed, out=product), -1, out=group.of(along_all)).mul_(inv)
        pull = (along * inv).unsqueeze(-1)
        g.addcmul_(mixed, pull, value=-1).mul_((inv * scale[group.heads].view(1, -1, 1)).unsqueeze(-1))
        # dgamma = sum_t dvbar_t . (psi_t - psi_{t+1}), without the second term where there is no successor.
        if same is None:
            torch.sub(p[:, :, :-1], p[:, :, 1:], out=product[:, :, :-1])
            product[:, :, -1] = p[:, :, -1]
        else:
            product.copy_(p)[:, :, :-1].addcmul_(p[:, :, 1:], same[group.batch], value=-1)
        torch.sum(product.mul_(g), -1, out=group.of(turn_all))
        torch.mul(g, own, out=product)
        product[:, :, 1:].addcmul_(g[:, :, :-1], following)
        group.of(grad_psi).copy_(product)
    return grad_psi, turn_all.sum((0, 2)), along_all.sum((0, 2))
