"""`value_extract` in plain torch operations, forward and backward. Works on some sequences at a time."""

from __future__ import annotations

import torch

from .checks import parameter_dtype
from .folding import Group, Scratch, folded_like, groups, unfold
from .normal import normalise, normalise_backward
from .scan_native import joined, scan_group_size


def same_document(documents: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """(B, 1, T-1, 1) flags: 1 where the next position is of the same document; None without documents."""
    if documents is None:
        return None
    return (documents[:, 1:] == documents[:, :-1]).to(dtype)[:, None, :, None]


def mixture(
    p: torch.Tensor, group: Group, gamma: torch.Tensor, same: torch.Tensor | None, scratch: Scratch
) -> torch.Tensor:
    """vbar (b, h, T, D) of psi (b, h, T, D), in a buffer that folds; ``gamma`` is (1, h, 1, 1)."""
    batch, heads, length, width = p.shape
    mixed = group.unfold(scratch.get("mixed", (batch * heads, length, width), p.dtype))
    if same is None:
        torch.lerp(p[:, :, 1:], p[:, :, :-1], gamma, out=mixed[:, :, :-1])
        torch.mul(p[:, :, -1:], gamma, out=mixed[:, :, -1:])
    else:
        torch.mul(p, gamma, out=mixed)
        mixed[:, :, :-1].addcmul_(p[:, :, 1:], (1 - gamma) * same[group.batch])
    return mixed


def lengths_of(scale: torch.Tensor, group: Group, length: int) -> torch.Tensor:
    """The length of every value of a group: (H,) -> (g, T)."""
    batch, heads = group.batch.stop - group.batch.start, scale[group.heads]
    expanded = heads.view(1, -1, 1).expand(batch, -1, length)
    return group.fold_view(expanded)


def forward(
    psi: torch.Tensor, gamma: torch.Tensor, scale: torch.Tensor, documents: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values (B, H, T, D) laid out as (H, B, T, D), and ||vbar|| (B, H, T)."""
    batch, heads, length, width = psi.shape
    work = parameter_dtype(psi.dtype)
    same = same_document(documents, work)
    scratch = Scratch(psi.device)
    parts = []
    for group in groups(batch, heads, True, scan_group_size(length * width, psi.device)):
        p = widened("psi", psi, group, work, scratch)
        mixed = mixture(p, group, gamma[group.heads].view(1, -1, 1, 1), same, scratch)
        parts.append(normalise(group.fold_view(mixed), lengths_of(scale, group, length)))
    wide, norms = (unfold(joined(part), batch, heads, True) for part in zip(*parts, strict=True))
    values = wide if psi.dtype == work else folded_like(psi, psi.shape, psi.dtype, True).copy_(wide)
    return values, norms


def widened(name: str, tensor: torch.Tensor, group: Group, work: torch.dtype, scratch: Scratch) -> torch.Tensor:
    """The group's part (b, h, T, D) in the working dtype."""
    p = group.of(tensor)
    if p.dtype == work:
        return p
    batch, heads, length, width = p.shape
    return group.unfold(scratch.get(name, (batch * heads, length, width), work)).copy_(p)


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
    for group in groups(batch, heads, True, scan_group_size(length * width, psi.device)):
        p = widened("psi", psi, group, work, scratch)
        own = gamma[group.heads].view(1, -1, 1, 1)
        mixed = mixture(p, group, own, same, scratch)
        rows = group.contiguous("grad", grad, work, scratch)
        folded, along = normalise_backward(
            rows, group.fold_view(mixed), lengths_of(scale, group, length), group.fold_view(group.of(norms))
        )
        g = group.unfold(folded)
        group.of(along_all).copy_(group.unfold(along))
        # dgamma = sum_t dvbar_t . (psi_t - psi_{t+1}), without the second term where there is no successor.
        product = group.unfold(scratch.get("product", tuple(rows.shape), work))
        if same is None:
            torch.sub(p[:, :, :-1], p[:, :, 1:], out=product[:, :, :-1])
            product[:, :, -1] = p[:, :, -1]
        else:
            product.copy_(p)[:, :, :-1].addcmul_(p[:, :, 1:], same[group.batch], value=-1)
        torch.sum(product.mul_(g), -1, out=group.of(turn_all))
        narrow = grad_psi.dtype != work
        target = product if narrow else group.of(grad_psi)
        if same is None:
            torch.lerp(g[:, :, :-1], g[:, :, 1:], own, out=target[:, :, 1:])
            torch.mul(g[:, :, :1], own, out=target[:, :, :1])
        else:
            torch.mul(g, own, out=target)
            target[:, :, 1:].addcmul_(g[:, :, :-1], (1 - own) * same[group.batch])
        if narrow:
            group.of(grad_psi).copy_(target)
    return grad_psi, turn_all.sum((0, 2)), along_all.sum((0, 2))
