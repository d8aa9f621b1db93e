"""`memory_attention` in plain torch operations, forward and backward, for the CPU and as the fallback elsewhere.

Queries are taken in blocks; a block is multiplied with the slice of the stored pairs that any of its rows
can see, so the short-term memory costs O(T h) and nothing of size T x T is ever stored. The backward computes
the weights of each tile again from the maximum and the sum of each row.

Everything inside is float32 (float64 for float64 keys) whatever the dtype of the keys: a bandwidth of 100 turns
the rounding of a bf16 score into an error of tens of percent in the weights, and the gradients of the bandwidth
live on what cancels in the rows of ds. The passes that convert tiles to bf16 would cost what its products save.

Exponentials are powers of 2, log2(e) being folded into the bandwidth: the vectorised exp of a CPU is fifty times
slower on arguments whose result underflows, as those of masked pairs do; exp2 is not.

Shape legend: g heads and sequences folded, R rows of a query block, W width of its slice of pairs.
"""

from __future__ import annotations

import math

import torch

from . import attention_sdpa
from .bandwidth import bandwidth_gradients
from .checks import parameter_dtype
from .folding import Group, Scratch, folded_like, groups, head_major
from .reads import Reads, plan_reads
from .tiles import TILE_ELEMENTS

LOG2_E = 1 / math.log(2)


def statistics_shape(
    keys: torch.Tensor,
    values: torch.Tensor,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    delay: int,
) -> tuple[int, ...]:
    """Shape of the second result of `forward`."""
    if attention_sdpa.takes(keys, values, documents, query, delay):
        return attention_sdpa.statistics_shape(values)
    return (*keys.shape[:2], 2, keys.shape[2] if query is None else query.shape[2])


def group_size(reads: Reads, device: torch.device) -> int:
    """Heads and sequences to take together, for tiles of about `TILE_ELEMENTS` a thread."""
    threads = torch.get_num_threads() if device.type == "cpu" else 64
    largest = max(((b - a) * (d - c) for a, b, c, d in reads.blocks), default=1)
    return max(1, threads * TILE_ELEMENTS // largest)


def tile_scores(
    scratch: Scratch, reads: Reads, group: Group, q: torch.Tensor, k_t: torch.Tensor, row: int, pair: int
) -> torch.Tensor:
    """Masked scores beta_t k_t . k_i of one tile: (g, R, D), (g, D, W) -> (g, R, W)."""
    scores = scratch.get("scores", (q.shape[0], q.shape[1], k_t.shape[2]), q.dtype)
    torch.bmm(q, k_t, out=scores)
    reads.mask_(scores, group, row, pair)
    return scores


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

    The statistics (B, H, 2, Tq), maximum of the base-2 scores and 1 / sum, are what the backward needs.
    """
    reads = plan_reads(keys, beta0, beta1, alpha, documents, query, window, delay, offset)
    if attention_sdpa.takes(keys, values, documents, query, delay):
        return attention_sdpa.forward(keys, values, reads, delay)
    batch, heads, _, _ = keys.shape
    work = parameter_dtype(keys.dtype)
    by_head = head_major(keys)
    queries = keys if query is None else query
    rows, width = queries.shape[2], values.shape[-1]
    scratch = Scratch(keys.device)
    out = torch.empty((batch, rows, heads, width), dtype=keys.dtype, device=keys.device).transpose(1, 2)
    statistics = folded_like(keys, (batch, heads, 2, rows), work, by_head)
    covered = reads.blocks[0][0] if reads.blocks else rows
    covered_end = reads.blocks[-1][1] if reads.blocks else rows
    for empty in (slice(0, covered), slice(covered_end, rows)):
        out[:, :, empty] = 0
        statistics[:, :, :, empty] = 0

    for group in groups(batch, heads, by_head, group_size(reads, keys.device)):
        k = scratch.cast("keys", group.fold(keys), work)
        k_t = k.transpose(1, 2)
        v = scratch.cast("values", group.fold(values), work)
        q = scratch.get("query", (k.shape[0], rows, k.shape[2]), work)
        torch.mul(group.of(queries), group.of(reads.beta).unsqueeze(-1) * LOG2_E, out=group.unfold(q))
        group_out, group_statistics = group.of(out), group.of(statistics)
        for row, row_end, pair, pair_end in reads.blocks:
            scores = tile_scores(scratch, reads, group, q[:, row:row_end], k_t[:, :, pair:pair_end], row, pair)
            top = scores.amax(-1, keepdim=True)
            weights = scores.sub_(top).exp2_()
            share = weights.sum(-1, keepdim=True).reciprocal_()
            read = scratch.get("read", (k.shape[0], row_end - row, width), work)
            torch.bmm(weights, v[:, pair:pair_end], out=read)
            group_statistics[:, :, 0, row:row_end] = group.unfold(top.squeeze(-1))
            group_statistics[:, :, 1, row:row_end] = group.unfold(share.squeeze(-1))
            share = group.unfold(share)
            if reads.filled is not None:
                share = share * group_flags(reads.filled, group)[:, :, row:row_end]
            torch.mul(group.unfold(read), share, out=group_out[:, :, row:row_end])
    return out, statistics


def group_flags(filled: torch.Tensor, group: Group) -> torch.Tensor:
    """The group's part (b or 1, 1, Tq, 1) of the flags of non-empty reads."""
    return filled[group.batch] if filled.shape[0] > 1 else filled


def backward(
    grad: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    beta0: torch.Tensor,
    beta1: torch.Tensor,
    alpha: torch.Tensor,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    statistics: torch.Tensor,
    window: int,
    delay: int,
    offset: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of keys, values, beta0, beta1, alpha, and query (an empty tensor where there is none)."""
    reads = plan_reads(keys, beta0, beta1, alpha, documents, query, window, delay, offset)
    if attention_sdpa.takes(keys, values, documents, query, delay):
        return attention_sdpa.backward(grad, keys, values, beta1, reads, statistics, delay)
    batch, heads, length, width = keys.shape
    work = parameter_dtype(keys.dtype)
    by_head = head_major(keys)
    queries = keys if query is None else query
    rows = queries.shape[2]
    scratch = Scratch(keys.device)
    grad_keys = folded_like(keys, keys.shape, keys.dtype, by_head)
    grad_values = folded_like(values, values.shape, values.dtype, by_head)
    grad_query = keys.new_empty(0) if query is None else folded_like(query, query.shape, query.dtype, by_head)
    grad_beta = folded_like(keys, (batch, heads, rows), work, by_head)

    for group in groups(batch, heads, by_head, group_size(reads, keys.device)):
        k = scratch.cast("keys", group.fold(keys), work)
        size = k.shape[0]
        beta = group.of(reads.beta).unsqueeze(-1)
        q = scratch.get("query", (size, rows, width), work)
        torch.mul(group.of(queries), beta * LOG2_E, out=group.unfold(q))
        g = scratch.get("grad", (size, rows, values.shape[-1]), work)
        if reads.filled is None:
            group.unfold(g).copy_(group.of(grad))
        else:
            torch.mul(group.of(grad), group_flags(reads.filled, group), out=group.unfold(g))
        v = scratch.cast("values", group.fold(values), work)
        grad_k = scratch.get("grad_k", (size, length, width), work).zero_()
        grad_v = scratch.get("grad_v", (size, length, v.shape[-1]), work).zero_()
        grad_q = scratch.get("grad_q", (size, rows, width), work).zero_()
        k_t, v_t = k.transpose(1, 2), v.transpose(1, 2)
        top, share = group.fold(statistics).unsqueeze(-1).unbind(1)

        for row, row_end, pair, pair_end in reads.blocks:
            here, there = slice(row, row_end), slice(pair, pair_end)
            q_here, g_here = q[:, here], g[:, here]
            scores = tile_scores(scratch, reads, group, q_here, k_t[:, :, there], row, pair)
            weights = scores.sub_(top[:, here]).exp2_().mul_(share[:, here])
            part_v = scratch.get("part_v", (size, pair_end - pair, v.shape[-1]), work)
            grad_v[:, there].add_(torch.bmm(weights.transpose(1, 2), g_here, out=part_v))
            grad_weights = scratch.get("grad_weights", tuple(weights.shape), work)
            torch.bmm(g_here, v_t[:, :, there], out=grad_weights)
            # In place: the kernel reads a row before it writes it.
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, work, grad_input=grad_weights)
            part_q = scratch.get("part_q", (size, row_end - row, width), work)
            grad_q[:, here] = torch.bmm(grad_scores, k[:, there], out=part_q)
            part_k = scratch.get("part_k", (size, pair_end - pair, width), work)
            grad_k[:, there].add_(torch.bmm(grad_scores.transpose(1, 2), q_here, out=part_k))

        # dk_i = sum_t ds_ti beta_t q_t, and q holds a factor log2(e) more.
        grad_k.mul_(1 / LOG2_E)
        # k is query and key: u_t = sum_i ds_ti k_i gives both the query's part of dk and dbeta_t = u_t . k_t.
        dots = torch.mul(group.of(queries), group.unfold(grad_q), out=group.unfold(q))
        torch.sum(dots, -1, out=group.of(grad_beta))
        if query is None:
            group.unfold(grad_k).addcmul_(group.unfold(grad_q), beta)
        else:
            torch.mul(group.unfold(grad_q), beta, out=group.of(grad_query))
        group.of(grad_keys).copy_(group.unfold(grad_k))
        group.of(grad_values).copy_(group.unfold(grad_v))

    if not reads.documented:
        grad_beta = grad_beta.sum(0, keepdim=True)
    parameters = bandwidth_gradients(grad_beta, reads.counts, reads.power, beta1)
    return grad_keys, grad_values, *parameters, grad_query
