"""`memory_attention` in plain torch operations, forward and backward, for the CPU and as the fallback elsewhere.

Queries are taken in blocks; a block is multiplied with the slice of the stored pairs that any of its rows
can see, so the short-term memory costs O(T h) and nothing of size T x T is ever stored. The backward computes
the weights of each tile again from the shift and the sum of each row.

Everything inside is float32 (float64 for float64 keys) whatever the dtype of the keys: a bandwidth of 100 turns
the rounding of a bf16 score into an error of tens of percent in the weights, and the gradients of the bandwidth
live on what cancels in the rows of ds. The passes that convert tiles to bf16 would cost what its products save.

Exponentials are powers of 2, log2(e) being folded into the bandwidth: the vectorised exp of a CPU is fifty times
slower on arguments whose result underflows, as those of masked pairs do; exp2 is not.

At these sizes starting an operation costs about as much as a pass over a tile. What can be done once a group of heads
(scaling, sums, normalisation) is therefore not done in the loop over tiles.

Shape legend: g heads and sequences folded, R rows of a query block, W width of its slice of pairs.
"""

from __future__ import annotations

import math

import torch

from . import attention_sdpa
from .bandwidth import bandwidth_gradients
from .checks import parameter_dtype
from .folding import Group, Scratch, folded_like, groups, head_major
from .reads import MASKED, Reads, RowBlocks, plan_reads
from .tiles import TILE_ELEMENTS

LOG2_E = 1 / math.log(2)
HEADROOM = 64.0
"""Largest base-2 exponent of a weight before normalisation, where the scores are bounded."""
SMALLEST_SUM, LARGEST_SUM = 1e-30, 1e25
"""Between these, the sum of a row of weights has lost nothing in float32 and values of any length can be read."""


def statistics_shape(
    keys: torch.Tensor,
    values: torch.Tensor,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    delay: int,
) -> tuple[int, ...]:
    """Shape of the second result of `forward`."""
    if attention_sdpa.takes(keys, values, documents, query, delay):
        return attention_sdpa.statistics_shape(keys, values)
    return (*keys.shape[:2], 2, keys.shape[2] if query is None else query.shape[2])


def keeps_reads(
    keys: torch.Tensor,
    values: torch.Tensor,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    delay: int,
) -> bool:
    """Whether `backward` needs the first result of `forward`."""
    return keys.dtype == parameter_dtype(keys.dtype) and attention_sdpa.takes(keys, values, documents, query, delay)


def group_size(reads: Reads, device: torch.device) -> int:
    """Heads and sequences to take together, for tiles of about `TILE_ELEMENTS` a thread."""
    threads = torch.get_num_threads() if device.type == "cpu" else 64
    largest = max(((b - a) * (d - c) for a, b, c, d in reads.blocks), default=1)
    return max(1, threads * TILE_ELEMENTS // largest)


def scaled(own: torch.Tensor, reads: Reads, group: Group, scratch: Scratch) -> tuple[torch.Tensor, torch.Tensor]:
    """beta_t log2(e) q_t and beta_t log2(e) of a group's queries (g, Tq, D): (g, Tq, D), (g, Tq, 1)."""
    bound = scratch.get("bound", (*own.shape[:2], 1), own.dtype)
    group.unfold(bound).copy_(group.of(reads.beta).unsqueeze(-1))
    bound.mul_(LOG2_E)
    return torch.mul(own, bound, out=scratch.get("query", tuple(own.shape), own.dtype)), bound


def likely_shift(bound: torch.Tensor) -> torch.Tensor:
    """Shift of base-2 scores that are at most ``bound``, so that 2^(score - shift) neither overflows nor vanishes.

    Scores are bounded because keys are unit vectors; half the bound serves any row whose best pair is not behind it.
    """
    return torch.maximum(bound * 0.5, bound - HEADROOM)


def scores(
    tile: torch.Tensor, mask: torch.Tensor, shift: torch.Tensor, q: torch.Tensor, k_t: torch.Tensor, group: Group
) -> torch.Tensor:
    """q . k_i - shift into ``tile``, far below at invisible pairs: (g, R, 1), (g, R, D), (g, D, W) -> (g, R, W).

    Shift and mask are what the product adds to, rather than passes over its result.
    """
    if mask.dim() == 2:
        torch.sub(mask, shift, out=tile)
    else:
        torch.sub(mask[group.batch], group.unfold(shift), out=group.unfold(tile))
    return torch.baddbmm(tile, q, k_t, out=tile)


def forward(
    keys: torch.Tensor,
    values: torch.Tensor,
    beta0: torch.Tensor,
    beta1: torch.Tensor,
    alpha: torch.Tensor,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    window: int,
    delay: int,
    offset: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reads (B, H, Tq, Dv), laid out as (B, Tq, H, Dv) as the output projection takes them, and row statistics.

    The statistics (B, H, 2, Tq), the shift of the base-2 scores and 1 / sum of the weights, are what the backward
    needs. They are kept apart: added up, they would round the weights by the size of the bandwidth.
    """
    reads = plan_reads(keys, beta0, beta1, alpha, documents, query, window, delay, offset)
    if attention_sdpa.takes(keys, values, documents, query, delay):
        return attention_sdpa.forward(keys, values, reads, delay)
    batch, heads, _, _ = keys.shape
    work = parameter_dtype(keys.dtype)
    by_head = head_major(keys)
    rows, width = reads.counts.shape[1], values.shape[-1]
    scratch = Scratch(keys.device)
    out = torch.empty((batch, rows, heads, width), dtype=keys.dtype, device=keys.device).transpose(1, 2)
    statistics = folded_like(keys, (batch, heads, 2, rows), work, by_head)
    for empty in reads.uncovered():
        out[:, :, empty] = 0
        statistics[:, :, :, empty] = 0

    for group in groups(batch, heads, by_head, group_size(reads, keys.device)):
        k = scratch.cast("keys", group.fold(keys), work)
        v = scratch.cast("values", group.fold(values), work)
        q, bound = scaled(k if query is None else scratch.cast("own", group.fold(query), work), reads, group, scratch)
        read = RowBlocks(scratch, "read", reads, q.shape[0], width, work)
        sums = RowBlocks(scratch, "sums", reads, q.shape[0], 1, work)
        # The maxima of the scores are looked for, at the cost of a second pass, only where the weights of a row vanish
        # without (or explode, if the keys are not the unit vectors they should be).
        shift = likely_shift(bound)
        if keys.device.type == "cpu":
            read_blocks(reads, group, q, k, v, shift, read, sums, scratch)
            lost = sums.outside(SMALLEST_SUM, LARGEST_SUM)
        else:
            lost = [torch.ones_like(part, dtype=torch.bool) for part in sums.parts]
        if lost:
            read_blocks(reads, group, q, k, v, shift, read, sums, scratch, lost)
        group_out, group_statistics = group.of(out), group.of(statistics)
        for (here, part), (_, total) in zip(read.pieces(), sums.pieces(), strict=True):
            share = total.reciprocal_()
            target = group_out[:, :, here].unflatten(2, share.shape[1:3])
            if keys.dtype == work:
                torch.mul(group.unfold(part), group.unfold(share), out=target)
            else:
                target.copy_(group.unfold(part.mul_(share)))
            group_statistics[:, :, 0, here] = group.unfold(shift[:, here, 0])
            group_statistics[:, :, 1, here].unflatten(2, share.shape[1:3]).copy_(group.unfold(share.squeeze(-1)))
    return out, statistics


def read_blocks(
    reads: Reads,
    group: Group,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    shift: torch.Tensor,
    read: RowBlocks,
    sums: RowBlocks,
    scratch: Scratch,
    lost: list[torch.Tensor] | None = None,
) -> None:
    """Weighted sums of values into ``read`` and sums of weights into ``sums`` (1 for an empty read).

    Rows flagged in ``lost``, (g, R, 1) for every block, have the maximum of their scores written into ``shift``
    (g, Tq, 1) first; what is read in other rows does not depend on it.
    """
    k_t = k.transpose(1, 2)
    queries, shifts = reads.split(q), reads.split(shift)
    for i, (row, row_end, pair, pair_end) in enumerate(reads.blocks):
        k_there = k_t.narrow(2, pair, pair_end - pair)
        tile = scratch.get("weights", (q.shape[0], row_end - row, pair_end - pair), q.dtype)
        mask = reads.mask(i, q.dtype)
        if lost is not None:
            top = scores(tile, mask, torch.zeros_like(shifts[i]), queries[i], k_there, group).amax(-1, keepdim=True)
            # The scores of an empty read are all those of invisible pairs, and have to stay far below.
            shifts[i].copy_(torch.where(lost[i], top.clamp_(min=MASKED / 2), shifts[i]))
        weights = scores(tile, mask, shifts[i], queries[i], k_there, group).exp2_()
        torch.sum(weights, -1, keepdim=True, out=sums.parts[i])
        torch.bmm(weights, v.narrow(1, pair, pair_end - pair), out=read.parts[i])
        if reads.filled is not None:
            sums.parts[i].add_(1 - group.fold_rows(reads.filled, row, row_end - row))


def backward(
    grad: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    beta0: torch.Tensor,
    beta1: torch.Tensor,
    alpha: torch.Tensor,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    out: torch.Tensor | None,
    statistics: torch.Tensor,
    window: int,
    delay: int,
    offset: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of keys, values, beta0, beta1, alpha, and query (an empty tensor where there is none).

    ``out``, the reads, is needed where `keeps_reads` says so.
    """
    reads = plan_reads(keys, beta0, beta1, alpha, documents, query, window, delay, offset)
    if attention_sdpa.takes(keys, values, documents, query, delay):
        return attention_sdpa.backward(grad, keys, values, beta1, reads, out, statistics, delay)
    batch, heads, length, width = keys.shape
    work = parameter_dtype(keys.dtype)
    by_head = head_major(keys)
    rows = reads.counts.shape[1]
    scratch = Scratch(keys.device)
    grad_keys = folded_like(keys, keys.shape, keys.dtype, by_head)
    grad_values = folded_like(values, values.shape, values.dtype, by_head)
    grad_query = keys.new_empty(0) if query is None else folded_like(query, query.shape, query.dtype, by_head)
    grad_beta = folded_like(keys, (batch, heads, rows), work, by_head)
    for empty in reads.uncovered():
        grad_beta[:, :, empty] = 0
        if query is not None:
            grad_query[:, :, empty] = 0

    for group in groups(batch, heads, by_head, group_size(reads, keys.device)):
        k = scratch.cast("keys", group.fold(keys), work)
        size = k.shape[0]
        own = k if query is None else scratch.cast("own", group.fold(query), work)
        q, _ = scaled(own, reads, group, scratch)
        g = group.contiguous("grad", grad, work, scratch)
        v = scratch.cast("values", group.fold(values), work)
        grad_k = scratch.get("grad_k", (size, length, width), work).zero_()
        grad_v = scratch.get("grad_v", (size, length, v.shape[-1]), work).zero_()
        along = RowBlocks(scratch, "along", reads, size, width, work)
        k_t, v_t = k.transpose(1, 2), v.transpose(1, 2)
        queries, grads = reads.split(q), reads.split(g)
        shifts, shares = (reads.split(part) for part in group.fold(statistics).unsqueeze(-1).unbind(1))

        for i, (row, row_end, pair, pair_end) in enumerate(reads.blocks):
            count = pair_end - pair
            tile = scratch.get("weights", (size, row_end - row, count), work)
            k_there, mask = k_t.narrow(2, pair, count), reads.mask(i, work)
            weights = scores(tile, mask, shifts[i], queries[i], k_there, group).exp2_().mul_(shares[i])
            part_v = scratch.get("part_v", (size, count, v.shape[-1]), work)
            grad_v.narrow(1, pair, count).add_(torch.bmm(weights.transpose(1, 2), grads[i], out=part_v))
            grad_weights = scratch.get("grad_weights", tuple(weights.shape), work)
            torch.bmm(grads[i], v_t.narrow(2, pair, count), out=grad_weights)
            # In place: the kernel reads a row before it writes it.
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, work, grad_input=grad_weights)
            torch.bmm(grad_scores, k.narrow(1, pair, count), out=along.parts[i])
            part_k = scratch.get("part_k", (size, count, width), work)
            torch.bmm(grad_scores.transpose(1, 2), queries[i], out=part_k)
            # dk_i = sum_t ds_ti beta_t q_t, and the scaled query holds a factor log2(e) more.
            grad_k.narrow(1, pair, count).add_(part_k, alpha=1 / LOG2_E)

        # k is query and key: u_t = sum_i ds_ti k_i gives both the query's part of dk and dbeta_t = u_t . k_t.
        for here, part in along.pieces():
            blocks = part.shape[1:3]
            dots = torch.mul(own[:, here].unflatten(1, blocks), part, out=q[:, here].unflatten(1, blocks))
            torch.sum(group.unfold(dots), -1, out=group.of(grad_beta)[:, :, here].unflatten(2, blocks))
            beta = group.of(reads.beta)[:, :, here].unflatten(2, blocks).unsqueeze(-1)
            if query is None:
                group.unfold(grad_k)[:, :, here].unflatten(2, blocks).addcmul_(group.unfold(part), beta)
            else:
                target = group.of(grad_query)[:, :, here].unflatten(2, blocks)
                target.copy_(torch.mul(group.unfold(part), beta))
        group.of(grad_keys).copy_(group.unfold(grad_k))
        group.of(grad_values).copy_(group.unfold(grad_v))

    if not reads.documented:
        grad_beta = grad_beta.sum(0, keepdim=True)
    parameters = bandwidth_gradients(grad_beta, reads.counts, reads.power, beta1)
    return grad_keys, grad_values, *parameters, grad_query
