"""The recurrence of `state_space_scan` in plain torch operations, forward and backward: chunked matrix products.

With L_t the sum of the log decays of a chunk up to t, E_ti = exp(L_t - L_i) for i <= t of one document, e_t = exp(L_t)
and f_i = exp(L_end - L_i) (0 where another document begins in between):

    y_t = sum_i (c_t . b_i) E_ti x_i + e_t c_t^T h           h: the state the chunk starts from
    h' = sum_i f_i b_i x_i^T + e_end h                       what it hands on

The heads of a group share b and c, so their columns lie side by side in every product with a state, [K, N] x [N, R]
with R = heads of a group x P: that is also how the model's projections lie, and b and c are never copied a head.
What autograd would keep of these lines, and its passes over it, cost more than the products; so the backward is
written out. It keeps E, E (C B^T) and the states chunks start from. Sums are kept as powers of 2: on a CPU torch's exp
takes four times as long as exp2 where many results are 0.

Shape legend: M = B n G chunks, K positions of a chunk, N state size, S heads of a group, P head width, R = S P.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .checks import parameter_dtype
from .tiles import STATE_CHUNK

LOG2_E = 1 / math.log(2)


class Chunks:
    """How sequences are cut into n chunks of K positions, and the factors 0 and 1 by which documents cut them."""

    def __init__(self, x: Tensor, b: Tensor, documents: Tensor | None) -> None:
        self.batch, self.heads, self.length, self.width = x.shape
        self.groups, self.size = b.shape[1], b.shape[3]
        self.share = self.heads // self.groups
        self.positions = min(STATE_CHUNK, self.length)
        self.count = -(-self.length // self.positions)
        self.pad = self.count * self.positions - self.length
        self.work = parameter_dtype(x.dtype)
        # 0 where position t sees i, else -inf: (K, K), with documents (M, 1, K, K).
        self.hidden = torch.full((self.positions, self.positions), -torch.inf, dtype=self.work, device=x.device).triu(1)
        self.entering: Tensor | None = None  # (M, K, 1): reads the state the chunk starts from
        self.leaving: Tensor | None = None  # (M, K, 1): belongs to the state the chunk hands on
        self.passed: Tensor | None = None  # (B, n, 1, 1): the chunk hands on what it starts from
        if documents is None:
            return
        ids = torch.cat([documents, documents[:, -1:].expand(-1, self.pad)], dim=1)
        ids = ids.view(self.batch, self.count, self.positions)
        last = ids[:, :, -1]
        # The state given stands in the first position's document.
        before = torch.cat([ids[:, 0, :1], last[:, :-1]], dim=1)
        apart = torch.where(ids.unsqueeze(-1) == ids.unsqueeze(-2), self.hidden, -torch.inf)
        self.hidden = self._every(apart).unsqueeze(1)
        self.entering = self._every(ids == before.unsqueeze(-1)).unsqueeze(-1)
        self.leaving = self._every(ids == last.unsqueeze(-1)).unsqueeze(-1)
        self.passed = (last == before).to(self.work)[..., None, None]

    def _every(self, factor: Tensor) -> Tensor:
        """(B, n, ...) -> (M, ...): the same for every group."""
        return factor.to(self.work).unsqueeze(2).expand(-1, -1, self.groups, *factor.shape[2:]).flatten(0, 2)

    def fold(self, t: Tensor) -> Tensor:
        """(B, G S or G, T, width) -> (M, K, S width or width); what is filled up is 0: it adds and decays nothing."""
        t = t.to(self.work).transpose(1, 2)
        if self.pad:
            t = torch.nn.functional.pad(t, (0, 0, 0, 0, 0, self.pad))
        t = t.reshape(self.batch, self.count, self.positions, self.groups, -1).transpose(2, 3)
        return t.reshape(-1, self.positions, t.shape[-1])

    def unfold(self, t: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        """(M, K, S width or width) -> (B, G S or G, T, width), laid out by positions."""
        t = t.to(dtype).view(self.batch, self.count, self.groups, self.positions, -1).transpose(2, 3)
        return t.reshape(self.batch, self.count * self.positions, -1, width)[:, : self.length].transpose(1, 2)

    def fold_state(self, state: Tensor) -> Tensor:
        """(B, H, N, P) -> (B, G, N, R)."""
        parts = state.to(self.work).unflatten(1, (self.groups, self.share))
        return parts.transpose(2, 3).flatten(3, 4)

    def unfold_state(self, state: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, G, N, R) -> (B, H, N, P)."""
        parts = state.to(dtype).unflatten(3, (self.share, self.width))
        return parts.transpose(2, 3).flatten(1, 2).contiguous()

    def chunked(self, t: Tensor) -> Tensor:
        """(M, ...) -> (B, n, G, ...), a view."""
        return t.view(self.batch, self.count, self.groups, *t.shape[1:])

    def scaled(self, t: Tensor, factor: Tensor) -> Tensor:
        """(M, K, R) times (M, K, S), a factor a head."""
        return (t.unflatten(2, (self.share, self.width)) * factor.unsqueeze(-1)).flatten(2)

    def sums(self, t: Tensor) -> Tensor:
        """Sums over each head's columns: (..., R) -> (..., S)."""
        return t.unflatten(-1, (self.share, self.width)).sum(-1)

    def decays(self, log_decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """L in base 2 (M, K, S), e and f (M, K, S), and by how much a chunk passes on its start state (B, n, G, S)."""
        total = self.fold(log_decay.unsqueeze(-1)).cumsum(1) * LOG2_E
        e, f = total.exp2(), (total[:, -1:] - total).exp2()
        passes = self.chunked(e[:, -1])
        if self.entering is not None and self.leaving is not None and self.passed is not None:
            e, f, passes = e * self.entering, f * self.leaving, passes * self.passed
        return total, e, f, passes

    def between(self, total: Tensor) -> Tensor:
        """E (M, S, K, K), at most 1; 0 for i > t and across documents."""
        by_head = total.transpose(1, 2).contiguous()
        return (by_head.unsqueeze(-1) - by_head.unsqueeze(-2)).add_(self.hidden).exp2_()

    def by_head(self, t: Tensor) -> Tensor:
        """(M, K, R) -> (M S, K, P), a copy: one batch of products."""
        return t.unflatten(2, (self.share, self.width)).transpose(1, 2).flatten(0, 1)

    def add_heads(self, t: Tensor, heads: Tensor) -> Tensor:
        """(M, K, R) plus (M S, K, P), in place."""
        t.unflatten(2, (self.share, self.width)).add_(heads.unflatten(0, (-1, self.share)).transpose(1, 2))
        return t


def widened(factor: Tensor, width: int) -> Tensor:
    """A factor a head (..., S) for every row and column of a state: (..., 1, R)."""
    return factor.unsqueeze(-1).expand(*factor.shape, width).flatten(-2).unsqueeze(-2)


def forward(
    x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, documents: Tensor | None, state: Tensor | None
) -> tuple[Tensor, ...]:
    """y and the end state as the operation returns them, then what the backward keeps."""
    cut = Chunks(x, b, documents)
    x_, b_, c_ = cut.fold(x), cut.fold(b), cut.fold(c)
    total, e, f, passes = cut.decays(log_decay)
    added = cut.chunked(torch.bmm(b_.transpose(1, 2), cut.scaled(x_, f)))
    h = x_.new_zeros(added[:, 0].shape) if state is None else cut.fold_state(state)
    starts = []
    for chunk in range(cut.count):
        starts.append(h)
        h = torch.addcmul(added[:, chunk], h, widened(passes[:, chunk], cut.width))
    start = torch.stack(starts, dim=1)
    y = cut.scaled(torch.bmm(c_, start.flatten(0, 2)), e)
    decay = cut.between(total)
    weights = decay * torch.bmm(c_, b_.transpose(1, 2)).unsqueeze(1)
    y = cut.add_heads(y, torch.bmm(weights.flatten(0, 1), cut.by_head(x_)))
    return cut.unfold(y, cut.width, x.dtype), cut.unfold_state(h, x.dtype), y, decay, weights, start, h


def backward(
    grad: Tensor | None,
    grad_end: Tensor | None,
    x: Tensor,
    log_decay: Tensor,
    b: Tensor,
    c: Tensor,
    documents: Tensor | None,
    kept: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, log_decay, b, c and the state.

    A log decay at s scales every pair i < s <= t. All of y_t carries exp(L_t) and all that x_i meets exp(-L_i), so the
    gradient of L_t is y_t . dy_t - x_t . dx_t, at the chunk's end also h' . dh'; that of a decay sums those from it on.
    """
    y, decay, weights, start, end = kept
    cut = Chunks(x, b, documents)
    x_, b_, c_ = cut.fold(x), cut.fold(b), cut.fold(c)
    g = torch.zeros_like(x_) if grad is None else cut.fold(grad)
    _, e, f, passes = cut.decays(log_decay)
    scaled = cut.scaled(g, e)
    adjoint = cut.chunked(torch.bmm(c_.transpose(1, 2), scaled))
    dh = torch.zeros_like(end) if grad_end is None else cut.fold_state(grad_end)
    handed = []
    for chunk in reversed(range(cut.count)):
        handed.append(dh)
        dh = torch.addcmul(adjoint[:, chunk], dh, widened(passes[:, chunk], cut.width))
    grads = torch.stack(handed[::-1], dim=1)
    ends = torch.cat([start[:, 1:], end.unsqueeze(1)], dim=1)

    heads, seen = cut.by_head(x_), cut.by_head(g)
    grad_product = torch.bmm(seen, heads.transpose(1, 2)).view(decay.shape).mul_(decay).sum(1)
    grad_c = torch.baddbmm(torch.bmm(scaled, start.flatten(0, 2).transpose(1, 2)), grad_product, b_)
    grad_b = torch.bmm(cut.scaled(x_, f), grads.flatten(0, 2).transpose(1, 2))
    grad_b = torch.baddbmm(grad_b, grad_product.transpose(1, 2), c_)
    grad_x = cut.scaled(torch.bmm(b_, grads.flatten(0, 2)), f)
    grad_x = cut.add_heads(grad_x, torch.bmm(weights.flatten(0, 1).transpose(1, 2), seen))

    grad_total = cut.sums(torch.addcmul(y * g, x_, grad_x, value=-1))
    grad_total[:, -1] += cut.sums((ends * grads).sum(-2)).flatten(0, 2)
    grad_decay = grad_total.sum(1, keepdim=True) - grad_total.cumsum(1) + grad_total
    return (
        cut.unfold(grad_x, cut.width, x.dtype),
        cut.unfold(grad_decay, 1, log_decay.dtype).squeeze(-1),
        cut.unfold(grad_b, cut.size, b.dtype),
        cut.unfold(grad_c, cut.size, c.dtype),
        cut.unfold_state(dh, x.dtype),
    )


class Scan(torch.autograd.Function):
    """`forward` with `backward`. No operator of its own: torch counts its products and compiles it as they are."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        with torch.autocast(inputs[0].device.type, enabled=False):
            y, end, *kept = forward(*inputs)
        ctx.save_for_backward(*inputs[:5], *kept)
        ctx.set_materialize_grads(False)
        return y, end

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, log_decay, b, c, documents, *kept = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            found = backward(grads[0], grads[1], x, log_decay, b, c, documents, tuple(kept))
        return *found[:4], None, found[4] if ctx.needs_input_grad[5] else None
