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
from collections.abc import Sequence

import torch

from .bandwidth import document_starts
from .checks import parameter_dtype
from .folding import Scratch, fold, folded_like, groups, unfold
from .normal import inverse, normalise, normalise_backward
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
    """e, M and (with documents) the document's place in log space, in base 2, and the end's maximum.

    Args:
        log_gate, log_decay: (B, H, T); maximum: (B, H) of the carried state, or None.

    Returns:
        (G, 2 or 3, T') float64, and the maximum M_T + S_T of the state after the last position, (G,) as log_gate.
    """
    batch, heads, length = log_gate.shape
    dtype = log_gate.dtype
    total = fold(log_decay, True).double().cumsum(-1)
    rows = total.new_empty((batch * heads, 2 if documents is None else 3, padded_length(length)))
    logs, top = rows[:, 0], rows[:, 1]
    torch.sub(fold(log_gate, True).double(), total, out=logs[:, :length])
    # Where every gate so far (in the document) is -inf the maximum must still be finite.
    floor = torch.maximum(logs[:, :length], -0.5 * APART - total)
    place: torch.Tensor | float = 0.0
    if documents is not None:
        begins = document_starts(documents) == torch.arange(length, device=documents.device)
        begins[:, 0] = False
        place = APART * begins.cumsum(1, dtype=torch.float64).expand(heads, batch, -1).flatten(0, 1)
        rows[:, 2, :length] = place
        rows[:, 2, length:] = place[:, -1:]
    placed, index = (floor + place).cummax(-1)
    # Taken from where the maximum is: its place was added for the comparison only, and would round it off.
    highest = placed if documents is None else floor.gather(-1, index)
    if maximum is not None:
        carried = fold(maximum, True).double().unsqueeze(-1)
        highest = torch.where(placed < carried, carried - place, highest)
    # Any M near the maximum serves. This one makes that of the carried-out state a number of its own dtype.
    end = highest[:, -1:] + total[:, -1:]
    highest = highest + (end.to(dtype) - end)
    # Padded positions weigh nothing and read under the last maximum.
    logs[:, length:] = -torch.inf
    top[:, :length] = highest
    top[:, length:] = highest[:, -1:]
    return rows.mul_(LOG2_E), end.squeeze(-1).to(dtype)


def carried_weight(rows: torch.Tensor, maximum: torch.Tensor, length: int, work: torch.dtype) -> torch.Tensor:
    """Weight of the carried state at every position: (g, 2 or 3, T'), (g,) -> (g, T). Its place is 0."""
    weight = maximum.double().unsqueeze(-1) * LOG2_E - rows[:, 1, :length]
    if rows.shape[1] == 3:
        weight -= rows[:, 2, :length]
    return weight.exp2_().to(work)


def chunk_weights(rows: torch.Tensor, work: torch.dtype, scratch: Scratch, level: int) -> torch.Tensor:
    """exp(e_i - M_t) for i <= t of the same document, else 0: (n, 2 or 3, C) -> (n, C, C).

    Differences are taken in the working dtype, from the maximum at the end of the chunk: numbers then are small
    wherever weights matter.
    """
    count, _, chunk = rows.shape
    weights = scratch.get(f"weights{level}", (count, chunk, chunk), work)
    near = torch.sub(rows[:, :2], rows[:, 1:2, -1:]).to(work)
    torch.sub(near[:, 0].unsqueeze(1), near[:, 1].unsqueeze(2), out=weights)
    if rows.shape[1] == 3:
        place = (rows[:, 2] - rows[:, 2, -1:]).to(work)
        apart = scratch.get(f"apart{level}", (count, chunk, chunk), work)
        weights.add_(torch.sub(place.unsqueeze(1), place.unsqueeze(2), out=apart))
    return weights.exp2_().tril_()


def split_chunks(rows: torch.Tensor) -> torch.Tensor:
    """(g, 2 or 3, T') -> (g, 2 or 3, N, C)."""
    return rows.unflatten(2, (-1, SCAN_CHUNK))


def carry_weights(chunks: torch.Tensor, work: torch.dtype) -> torch.Tensor:
    """exp(M at the previous chunk's end - M_t), 0 across documents: (g, 2 or 3, N, C) -> (g, N-1, C)."""
    fade = chunks[:, 1, :-1, -1:] - chunks[:, 1, 1:]
    if chunks.shape[1] == 3:
        fade += chunks[:, 2, :-1, -1:] - chunks[:, 2, 1:]
    return fade.to(work).exp2_()


def end_rows(chunks: torch.Tensor) -> torch.Tensor:
    """Exponents of the scan over chunk ends, whose sums stand under their own maximum; padded to whole chunks."""
    ends = chunks[..., -1]
    ends = torch.cat([ends[:, 1:2], ends[:, 1:]], 1)
    missing = padded_length(ends.shape[2]) - ends.shape[2]
    if missing:
        ends = torch.cat([ends, ends[:, :, -1:].expand(-1, -1, missing)], 2)
        ends[:, 0, -missing:] = -torch.inf
    return ends


def pad_positions(x: torch.Tensor) -> torch.Tensor:
    """(g, T, D) -> (g, T', D), zeros at the end."""
    missing = padded_length(x.shape[1]) - x.shape[1]
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x


def weighted_prefix(rows: torch.Tensor, x: torch.Tensor, scratch: Scratch, level: int = 0) -> torch.Tensor:
    """y_t = sum_{i<=t} exp(e_i - M_t) x_i: (g, 2 or 3, T'), (g, T', D) -> (g, T', D), a buffer of ``scratch``."""
    size, length, width = x.shape
    y = scratch.get(f"y{level}", (size, length, width), x.dtype)
    if length <= SCAN_CHUNK:
        return torch.bmm(chunk_weights(rows, x.dtype, scratch, level), x, out=y)
    chunks = split_chunks(rows)
    count = chunks.shape[2]
    weights = chunk_weights(chunks.transpose(1, 2).flatten(0, 1), x.dtype, scratch, level)
    torch.bmm(weights, x.view(-1, SCAN_CHUNK, width), out=y.view(-1, SCAN_CHUNK, width))
    sums = y.view(size, count, SCAN_CHUNK, width)
    carried = weighted_prefix(end_rows(chunks), pad_positions(sums[:, :, -1]), scratch, level + 1)[:, : count - 1]
    # What a chunk takes over from its predecessors, under the maximum of each of its positions.
    sums[:, 1:].addcmul_(carry_weights(chunks, x.dtype).unsqueeze(-1), carried.unsqueeze(2))
    return y


def weighted_suffix(rows: torch.Tensor, grad: torch.Tensor, scratch: Scratch, level: int = 0) -> torch.Tensor:
    """Transpose of `weighted_prefix`: dx_i = sum_{t>=i} exp(e_i - M_t) dy_t. Overwrites ``grad``."""
    size, length, width = grad.shape
    grad_x = scratch.get(f"grad_x{level}", (size, length, width), grad.dtype)
    if length <= SCAN_CHUNK:
        return torch.bmm(chunk_weights(rows, grad.dtype, scratch, level).transpose(1, 2), grad, out=grad_x)
    chunks = split_chunks(rows)
    count = chunks.shape[2]
    grads = grad.view(size, count, SCAN_CHUNK, width)
    # All chunks in one product, though nothing comes before the first one: a part of ``grad`` would have to be copied.
    fades = torch.nn.functional.pad(carry_weights(chunks, grad.dtype), (0, 0, 1, 0)).view(-1, 1, SCAN_CHUNK)
    taken = torch.bmm(fades, grad.view(-1, SCAN_CHUNK, width)).view(size, count, width)
    carried = torch.nn.functional.pad(taken[:, 1:], (0, 0, 0, padded_length(count) - count + 1))
    grads[:, :, -1].add_(weighted_suffix(end_rows(chunks), carried, scratch, level + 1)[:, :count])
    weights = chunk_weights(chunks.transpose(1, 2).flatten(0, 1), grad.dtype, scratch, level)
    torch.bmm(weights.transpose(1, 2), grad.view(-1, SCAN_CHUNK, width), out=grad_x.view(-1, SCAN_CHUNK, width))
    return grad_x


def scan_group_size(elements: int, device: torch.device) -> int:
    """Heads and sequences of ``elements`` numbers each to take together, for `SCAN_ELEMENTS` a thread."""
    return max(1, (torch.get_num_threads() if device.type == "cpu" else 64) * SCAN_ELEMENTS // elements)


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Parts (g, ...) that follow each other as one (G, ...); a single part as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def forward(
    x: torch.Tensor,
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    documents: torch.Tensor | None,
    carried: torch.Tensor | None,
    maximum: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys (B, H, T, D) laid out as (H, B, T, D), state sum and maximum, then what the backward needs.

    That is ||y|| (B, H, T), the exponents (B, H, 2 or 3, T'), and the keys before rounding for low precision: the
    gradient of the decays lives on what cancels in x . dx, so the direction of kbar is needed to float32, which keys of
    16 bits do not hold. For wider keys the last result is empty.
    """
    batch, heads, length, width = x.shape
    work = parameter_dtype(x.dtype)
    narrow = x.dtype != work
    rows, state_maximum = exponents(log_gate, log_decay, documents, maximum)
    rows = unfold(rows, batch, heads, True)
    state_sum = folded_like(x, (batch, heads, width), work, True)
    scratch = Scratch(x.device)
    padded = padded_length(length)
    parts = []
    for group in groups(batch, heads, True, scan_group_size(padded * width, x.device)):
        group_rows = group.fold(rows)
        inputs = scratch.get("x", (group_rows.shape[0], padded, width), work)
        group.unfold(inputs)[:, :, :length].copy_(group.of(x))
        if padded > length:
            inputs[:, length:] = 0
        y = weighted_prefix(group_rows, inputs, scratch)[:, :length]
        if carried is not None and maximum is not None:
            weight = carried_weight(group_rows, group.fold(maximum), length, work)
            y.addcmul_(weight.unsqueeze(-1), group.fold(carried).unsqueeze(1))
        group.of(state_sum).copy_(group.unfold(y[:, -1]))
        parts.append(normalise(y.contiguous(), y.new_ones(y.shape[:2])))
    wide, norms = (unfold(joined(part), batch, heads, True) for part in zip(*parts, strict=True))
    keys = folded_like(x, x.shape, x.dtype, True).copy_(wide) if narrow else wide
    kept = wide if narrow else x.new_empty(0, dtype=work)
    return keys, state_sum, unfold(state_maximum, batch, heads, True), norms, rows, kept


def backward(
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
    for group in groups(batch, heads, True, scan_group_size(padded * width, x.device)):
        group_rows = group.fold(rows)
        size = group_rows.shape[0]
        if grad_keys is None:
            grad = x.new_zeros((size, length, width), dtype=work)
        else:
            # k = y / n: dy = (dk - k (k . dk)) / n.
            lengths = inverse(group.fold(norms))
            grad, _ = normalise_backward(
                group.contiguous("grad", grad_keys, work, scratch),
                group.contiguous("directions", directions, work, scratch),
                lengths,
                torch.ones_like(lengths),
            )
        if grad_sum is not None:
            grad[:, -1].add_(group.fold(grad_sum))
        if carried is not None and maximum is not None:
            weight = carried_weight(group_rows, group.fold(maximum), length, work)
            through = group.unfold(torch.bmm(weight.unsqueeze(1), grad).squeeze(1))
            group.of(grad_carried).copy_(through)
            torch.sum(through * group.of(carried), -1, out=group.of(grad_maximum))
        group_x = group.unfold(weighted_suffix(group_rows, pad_positions(grad), scratch)[:, :length])
        product = group.unfold(scratch.get("product", (size, length, width), work))
        torch.sum(torch.mul(group.of(x), group_x, out=product), -1, out=group.of(grad_gate))
        group.of(grad_x).copy_(group_x)

    # The sum over i >= j as a float64 sum from the far end; a scale of the carried-out sum moves all of it.
    grad_decay = grad_gate.double().flip(-1).cumsum_(-1).flip(-1).neg_()
    if grad_sum is not None:
        grad_decay += (grad_sum * state_sum).sum(-1, dtype=torch.float64).unsqueeze(-1)
    return grad_x, grad_gate, grad_decay.to(work, copy=True), grad_carried, grad_maximum
