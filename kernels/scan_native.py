"""`key_scan` in plain torch operations, forward and backward: chunked matrix products in log space.

With S_t the cumulative log decay and e_i = a_i - S_i, the weight of x_i in kbar_t is exp(e_i + S_t). The factor
exp(S_t) and a further exp(-M_t), M_t the running maximum of e, do not depend on i and leave the key unchanged:
y_t = sum_{i<=t} exp(e_i - M_t) x_i never overflows and k_t = y_t / ||y_t||. The maximum starts at -inf (a start
at 0 loses everything below it); e and M are float64, for S grows along the sequence while differences matter.
Both are kept as powers of 2: see attention_native.py.

One scalar per head and step makes a chunk of C positions one [C, C] x [C, D] product. The sums at chunk ends are
the same problem, C times shorter, so the function calls itself on them.

Shape legend: G = B H folded head-major, g a group of them; T' is T padded to whole chunks; N chunks of C.
"""

from __future__ import annotations

import math

import torch

from .bandwidth import document_starts
from .checks import parameter_dtype
from .folding import Scratch, fold, folded_like, groups, unfold
from .tiles import SCAN_CHUNK, SCAN_ELEMENTS, padded_length

LOG2_E = 1 / math.log(2)
# Log-space distance between successive documents: far beyond any gate, so weights across a boundary are exactly 0.
APART = 1e5


def exponents(
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    documents: torch.Tensor | None,
    maximum: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """e and M in base 2 as (G, 2, T') float64, and S_T (G,), from gates and decays (B, H, T)."""
    batch, heads, length = log_gate.shape
    total = fold(log_decay, True).double().cumsum(-1)
    if documents is not None:
        begins = document_starts(documents) == torch.arange(length, device=documents.device)
        begins[:, 0] = False
        rank = begins.cumsum(1, dtype=torch.float64)
        total -= APART * rank.expand(heads, batch, -1).flatten(0, 1)
    both = total.new_empty((batch * heads, 2, padded_length(length)))
    logs, top = both[:, 0], both[:, 1]
    torch.sub(fold(log_gate, True).double(), total, out=logs[:, :length])
    # Where every gate so far (in the document) is -inf the maximum must still be finite.
    highest = torch.maximum(logs[:, :length], -0.5 * APART - total).cummax(-1).values
    if maximum is not None:
        highest = torch.maximum(highest, fold(maximum, True).double().unsqueeze(-1))
    # Padded positions weigh nothing and read under the last maximum.
    logs[:, length:] = -torch.inf
    top[:, :length] = highest
    top[:, length:] = highest[:, -1:]
    return both.mul_(LOG2_E), total[:, -1]


def chunk_weights(logs: torch.Tensor, top: torch.Tensor, work: torch.dtype, scratch: Scratch, level: int):
    """exp(e_i - M_t) for i <= t, else 0: (n, C) -> (n, C, C)."""
    count, chunk = logs.shape
    weights = scratch.get(f"weights{level}", (count, chunk, chunk), work)
    return torch.sub(logs.unsqueeze(1), top.unsqueeze(2), out=weights).exp2_().tril_()


def carry_weights(top: torch.Tensor, ends: torch.Tensor, work: torch.dtype) -> torch.Tensor:
    """exp(M at the previous chunk's end - M_t): (g, N, C), (g, N) -> (g, N-1, C)."""
    return (ends[:, :-1].unsqueeze(-1) - top[:, 1:]).to(work).exp2_()


def pad_chunks(logs: torch.Tensor, top: torch.Tensor, x: torch.Tensor):
    """Pad (g, T), (g, T), (g, T, D) to whole chunks; padded pairs weigh nothing."""
    missing = padded_length(x.shape[1]) - x.shape[1]
    if missing:
        logs = torch.nn.functional.pad(logs, (0, missing), value=-torch.inf)
        top = torch.cat([top, top[:, -1:].expand(-1, missing)], 1)
        x = torch.nn.functional.pad(x, (0, 0, 0, missing))
    return logs, top, x


def weighted_prefix(
    logs: torch.Tensor, top: torch.Tensor, x: torch.Tensor, scratch: Scratch, level: int = 0
) -> torch.Tensor:
    """y_t = sum_{i<=t} exp(e_i - M_t) x_i: (g, T'), (g, T'), (g, T', D) -> (g, T', D), a buffer of ``scratch``."""
    size, length, width = x.shape
    y = scratch.get(f"y{level}", (size, length, width), x.dtype)
    if length <= SCAN_CHUNK:
        return torch.bmm(chunk_weights(logs, top, x.dtype, scratch, level), x, out=y)
    split, folded = (size, length // SCAN_CHUNK, SCAN_CHUNK), (-1, SCAN_CHUNK)
    weights = chunk_weights(logs.reshape(folded), top.reshape(folded), x.dtype, scratch, level)
    torch.bmm(weights, x.view(-1, SCAN_CHUNK, width), out=y.view(-1, SCAN_CHUNK, width))
    chunks, tops = y.view(*split, width), top.reshape(split)
    ends = tops[:, :, -1]
    carried = weighted_prefix(*pad_chunks(ends, ends, chunks[:, :, -1]), scratch, level + 1)[:, : split[1]]
    # What a chunk takes over from its predecessors, under the maximum of each of its positions.
    fade = carry_weights(tops, ends, x.dtype)
    chunks[:, 1:].addcmul_(fade.unsqueeze(-1), carried[:, :-1].unsqueeze(2))
    return y


def weighted_suffix(
    logs: torch.Tensor, top: torch.Tensor, grad: torch.Tensor, scratch: Scratch, level: int = 0
) -> torch.Tensor:
    """Transpose of `weighted_prefix`: dx_i = sum_{t>=i} exp(e_i - M_t) dy_t. Overwrites ``grad``."""
    size, length, width = grad.shape
    grad_x = scratch.get(f"grad_x{level}", (size, length, width), grad.dtype)
    if length <= SCAN_CHUNK:
        return torch.bmm(chunk_weights(logs, top, grad.dtype, scratch, level).transpose(1, 2), grad, out=grad_x)
    split, folded = (size, length // SCAN_CHUNK, SCAN_CHUNK), (-1, SCAN_CHUNK)
    chunks, tops = grad.view(*split, width), top.reshape(split)
    ends = tops[:, :, -1]
    fade = carry_weights(tops, ends, grad.dtype)
    carried = grad.new_zeros((size, split[1], width))
    carried[:, :-1] = torch.matmul(fade.unsqueeze(2), chunks[:, 1:]).squeeze(2)
    chunks[:, :, -1] += weighted_suffix(*pad_chunks(ends, ends, carried), scratch, level + 1)[:, : split[1]]
    weights = chunk_weights(logs.reshape(folded), top.reshape(folded), grad.dtype, scratch, level)
    torch.bmm(weights.transpose(1, 2), grad.view(-1, SCAN_CHUNK, width), out=grad_x.view(-1, SCAN_CHUNK, width))
    return grad_x


def inverse(norms: torch.Tensor) -> torch.Tensor:
    """1 / norm, and 0 for a zero norm: a zero kbar gives a zero key and no gradient."""
    return norms.reciprocal().masked_fill_(norms == 0, 0.0)


def forward(
    x: torch.Tensor,
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    documents: torch.Tensor | None,
    carried: torch.Tensor | None,
    maximum: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys (B, H, T, D) laid out as (H, B, T, D), state sum and maximum, then what the backward needs.

    That is ||y|| (B, H, T), the exponents (B, H, 2, T'), and y for low precision: the gradient of the decays
    lives on what cancels in x . dx, so the direction of kbar is needed to float32, which keys of 16 bits do not
    hold. For wider keys the last result is empty.
    """
    batch, heads, length, width = x.shape
    work = parameter_dtype(x.dtype)
    narrow = x.dtype != work
    both, total = exponents(log_gate, log_decay, documents, maximum)
    state_maximum = both[:, 1, length - 1].div(LOG2_E).add_(total).to(work)
    both = unfold(both, batch, heads, True)
    keys = folded_like(x, x.shape, x.dtype, True)
    norms = folded_like(x, (batch, heads, length), work, True)
    state_sum = folded_like(x, (batch, heads, width), work, True)
    kept = folded_like(x, x.shape, work, True) if narrow else x.new_empty(0, dtype=work)
    scratch = Scratch(x.device)
    padded = padded_length(length)
    for group in groups(batch, heads, True, SCAN_ELEMENTS // (padded * width)):
        logs, top = group.fold(both).unbind(1)
        inputs = scratch.get("x", (logs.shape[0], padded, width), work)
        group.unfold(inputs)[:, :, :length].copy_(group.of(x))
        inputs[:, length:] = 0
        y = weighted_prefix(logs, top, inputs, scratch)[:, :length]
        if carried is not None:
            weight = (group.fold(maximum).double().unsqueeze(-1) * LOG2_E - top[:, :length]).exp2_().to(work)
            y.addcmul_(weight.unsqueeze(-1), group.fold(carried).unsqueeze(1))
        group_norms = group.fold(norms)
        torch.linalg.vector_norm(y, dim=-1, out=group_norms)
        torch.mul(y, inverse(group_norms).unsqueeze(-1), out=group.fold(keys))
        group.fold(state_sum).copy_(y[:, -1])
        if narrow:
            group.fold(kept).copy_(y)
    return keys, state_sum, unfold(state_maximum, batch, heads, True), norms, both, kept


def backward(
    grad_keys: torch.Tensor | None,
    grad_sum: torch.Tensor | None,
    x: torch.Tensor,
    carried: torch.Tensor | None,
    maximum: torch.Tensor | None,
    keys: torch.Tensor,
    state_sum: torch.Tensor,
    norms: torch.Tensor,
    both: torch.Tensor,
    kept: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x (in the layout of x), log_gate, log_decay, carried sum and maximum (empty without a state).

    The gradient of a log gate is x_i . dx_i, and because a key does not change when kbar_t is scaled, that of a
    log decay is what is left of -da from it on: dlog_decay_j = -sum_{i>=j} da_i.
    """
    batch, heads, length, width = x.shape
    work = parameter_dtype(x.dtype)
    narrow = x.dtype != work
    directions = kept if narrow else keys
    grad_x = torch.empty_like(x)
    grad_gate = folded_like(x, (batch, heads, length), work, True)
    grad_carried, grad_maximum = x.new_empty(0, dtype=work), x.new_empty(0, dtype=work)
    if carried is not None:
        grad_carried = folded_like(x, (batch, heads, width), work, True)
        grad_maximum = folded_like(x, (batch, heads), work, True)
    scratch = Scratch(x.device)
    padded = padded_length(length)
    for group in groups(batch, heads, True, SCAN_ELEMENTS // (padded * width)):
        logs, top = group.fold(both).unbind(1)
        size = logs.shape[0]
        buffer = scratch.get("grad", (size, padded, width), work)
        buffer[:, length:] = 0
        grad = buffer[:, :length]
        product = scratch.get("product", (size, length, width), work)
        if grad_keys is None:
            grad.zero_()
        else:
            # k = y / n: dy = (dk - k (k . dk)) / n.
            k = group.fold(directions)
            inv = inverse(group.fold(norms)).unsqueeze(-1)
            group.unfold(grad).copy_(group.of(grad_keys))
            along = torch.mul(grad, k, out=product).sum(-1, keepdim=True)
            if narrow:
                along.mul_(inv).mul_(inv)
            grad.addcmul_(k, along, value=-1).mul_(inv)
        if grad_sum is not None:
            grad[:, -1] += group.fold(grad_sum)
        if carried is not None:
            weight = (group.fold(maximum).double().unsqueeze(-1) * LOG2_E - top[:, :length]).exp2_().to(work)
            through = torch.bmm(weight.unsqueeze(1), grad).squeeze(1)
            group.fold(grad_carried).copy_(through)
            group.fold(grad_maximum).copy_((through * group.fold(carried)).sum(-1))
        group_x = group.unfold(weighted_suffix(logs, top, buffer, scratch)[:, :length])
        torch.mul(group.of(x), group_x, out=group.unfold(product))
        torch.sum(product, -1, out=group.fold(grad_gate))
        group.of(grad_x).copy_(group_x)

    # The sum over i >= j as a float64 sum from the far end; a scale of the carried-out sum moves all of it.
    grad_decay = grad_gate.double().flip(-1).cumsum_(-1).flip(-1).neg_()
    if grad_sum is not None:
        grad_decay += (grad_sum * state_sum).sum(-1, dtype=torch.float64).unsqueeze(-1)
    return grad_x, grad_gate, grad_decay.to(work, copy=True), grad_carried, grad_maximum
