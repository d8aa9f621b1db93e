"""`memory_attention` in plain torch operations, forward and backward, for the CPU and as the fallback elsewhere.

Queries are taken in blocks; a block is multiplied with the slice of the stored pairs that any of its rows
can see, so the short-term memory costs O(T h) and nothing of size T x T is ever stored. The backward
recomputes the softmax of each tile, which makes the inputs all that has to be kept.

Scores are float32 (float64 for float64 keys) whatever the dtype of the keys: a bandwidth of 100 turns the
rounding of a bf16 score into an error of tens of percent in the weights.

Shape legend: G = B H folded (either order), R rows of a query block, W width of its slice of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from .bandwidth import bandwidth_gradients, bandwidth_table, document_starts, pair_counts, visible_range
from .checks import parameter_dtype
from .tiles import query_blocks

# Stands in for -inf in masks: a row in which everything is masked then has finite weights, which are
# multiplied by 0 afterwards, instead of NaN.
MASKED = -1e30


def head_major(tensor: torch.Tensor) -> bool:
    """Whether (B, H, ...) folds into (H B, ...) rather than (B H, ...) without a copy."""
    return tensor.stride(1) >= tensor.stride(0)


def fold(tensor: torch.Tensor, by_head: bool) -> torch.Tensor:
    """(B, H, ...) -> (G, ...), a view where strides allow it."""
    return (tensor.transpose(0, 1) if by_head else tensor).flatten(0, 1)


def unfold(tensor: torch.Tensor, batch: int, heads: int, by_head: bool) -> torch.Tensor:
    """(G, ...) -> (B, H, ...), a view."""
    if by_head:
        return tensor.unflatten(0, (heads, batch)).transpose(0, 1)
    return tensor.unflatten(0, (batch, heads))


@dataclass
class Reads:
    """What the reads of one call can see: pair ranges, bandwidths, and a mask for each tile."""

    batch: int
    heads: int
    by_head: bool
    length: int
    rows: int
    offset: int
    window: int
    delay: int
    documented: bool
    first: torch.Tensor  # (B or 1, Tq)
    end: torch.Tensor  # (B or 1, Tq)
    counts: torch.Tensor  # (B or 1, Tq)
    beta: torch.Tensor  # (B or 1, H, Tq)
    power: torch.Tensor  # (B or 1, H, Tq)
    masks: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)

    def blocks(self) -> Iterator[tuple[int, int, int, int]]:
        """(row, row end, pair, pair end) of every tile that can hold a visible pair."""
        return query_blocks(self.rows, self.length, self.offset, self.window, self.delay)

    def folded_beta(self) -> torch.Tensor:
        """beta as (G, Tq, 1)."""
        return fold(self.beta.expand(self.batch, -1, -1), self.by_head).unsqueeze(-1)

    def filled(self) -> torch.Tensor | None:
        """(B, 1, Tq, 1) flags, 0 at empty reads; None where the tiles hold no empty read."""
        if not self.documented and self.offset + self.rows <= self.length:
            return None
        return (self.counts > 0).to(self.beta.dtype)[:, None, :, None]

    def mask_(self, scores: torch.Tensor, row: int, pair: int) -> None:
        """Add `MASKED` in place to the scores (G, R, W) of invisible pairs."""
        rows, width = scores.shape[1:]
        clear = 0
        if self.window == 0 and not self.documented:
            # Every row sees the pairs up to that of the block's first row: only the diagonal part needs a mask.
            clear = max(0, min(width, row + self.offset - self.delay + 1 - pair))
            scores = scores[:, :, clear:]
        key = (row + self.offset - pair - clear, rows, width - clear)
        mask = None if self.documented else self.masks.get(key)
        if mask is None:
            pairs = torch.arange(pair + clear, pair + width, device=scores.device)
            first = self.first[:, row : row + rows, None]
            end = self.end[:, row : row + rows, None]
            hidden = (pairs < first) | (pairs >= end)
            mask = torch.zeros(hidden.shape, dtype=scores.dtype, device=scores.device).masked_fill_(hidden, MASKED)
            self.masks[key] = mask
        if self.documented:
            unfolded = unfold(scores, self.batch, self.heads, self.by_head)
            unfolded.add_(mask.unsqueeze(1))
        else:
            scores.add_(mask)


def plan_reads(
    keys: torch.Tensor,
    beta0: torch.Tensor,
    beta1: torch.Tensor,
    alpha: torch.Tensor,
    documents: torch.Tensor | None,
    query: torch.Tensor | None,
    window: int,
    delay: int,
    offset: int,
) -> Reads:
    """Everything about a call that does not depend on the contents of keys and values."""
    batch, heads, length, _ = keys.shape
    rows = length if query is None else query.shape[2]
    positions = torch.arange(offset, offset + rows, device=keys.device)
    starts = None if documents is None else document_starts(documents)[:, offset : offset + rows]
    first, end = visible_range(positions, length, window, delay, starts)
    counts = pair_counts(first, end, parameter_dtype(keys.dtype))
    beta, power = bandwidth_table(counts, beta0, beta1, alpha)
    documented = documents is not None
    by_head = head_major(keys)
    return Reads(
        batch, heads, by_head, length, rows, offset, window, delay, documented, first, end, counts, beta, power
    )


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
) -> torch.Tensor:
    """Read: (B, H, Tq, Dv), laid out as (B, Tq, H, Dv), which is how the output projection takes it."""
    reads = plan_reads(keys, beta0, beta1, alpha, documents, query, window, delay, offset)
    work = parameter_dtype(keys.dtype)
    k = fold(keys, reads.by_head).to(work)
    v = fold(values, reads.by_head).to(work)
    q = k if query is None else fold(query, reads.by_head).to(work)
    q = q * reads.folded_beta()
    out = torch.zeros((reads.batch, reads.rows, reads.heads, v.shape[-1]), dtype=keys.dtype, device=keys.device)
    out = out.transpose(1, 2)
    filled = reads.filled()
    for row, row_end, pair, pair_end in reads.blocks():
        scores = torch.bmm(q[:, row:row_end], k[:, pair:pair_end].transpose(1, 2))
        reads.mask_(scores, row, pair)
        read = unfold(torch.bmm(scores.softmax(-1), v[:, pair:pair_end]), reads.batch, reads.heads, reads.by_head)
        out[:, :, row:row_end] = read if filled is None else read * filled[:, :, row:row_end]
    return out


def backward(
    grad: torch.Tensor,
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of keys, values, beta0, beta1, alpha, and query (an empty tensor where there is none)."""
    reads = plan_reads(keys, beta0, beta1, alpha, documents, query, window, delay, offset)
    batch, heads, by_head = reads.batch, reads.heads, reads.by_head
    work = parameter_dtype(keys.dtype)
    k = fold(keys, by_head).to(work)
    v = fold(values, by_head).to(work)
    q = k if query is None else fold(query, by_head).to(work)
    beta = reads.folded_beta()
    scaled = q * beta
    filled = reads.filled()
    g = fold(grad if filled is None else grad * filled, by_head).to(work)

    grad_k = torch.zeros_like(k)
    grad_v = torch.zeros_like(v)
    grad_scaled = torch.zeros_like(scaled)
    for row, row_end, pair, pair_end in reads.blocks():
        k_tile, v_tile, q_tile, g_tile = (
            k[:, pair:pair_end],
            v[:, pair:pair_end],
            scaled[:, row:row_end],
            g[:, row:row_end],
        )
        scores = torch.bmm(q_tile, k_tile.transpose(1, 2))
        reads.mask_(scores, row, pair)
        weights = scores.softmax(-1)
        grad_v[:, pair:pair_end].baddbmm_(weights.transpose(1, 2), g_tile)
        grad_weights = torch.bmm(g_tile, v_tile.transpose(1, 2))
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, work)
        grad_scaled[:, row:row_end] = torch.bmm(grad_scores, k_tile)
        grad_k[:, pair:pair_end].baddbmm_(grad_scores.transpose(1, 2), q_tile)

    # k is query and key: u_t = sum_i ds_ti k_i gives both the query's part of dk and dbeta_t = u_t . k_t.
    grad_beta = unfold((grad_scaled * q).sum(-1), batch, heads, by_head)
    if not reads.documented:
        grad_beta = grad_beta.sum(0, keepdim=True)
    parameters = bandwidth_gradients(grad_beta, reads.counts, reads.power, beta1)
    if query is None:
        grad_k.addcmul_(grad_scaled, beta)
        grad_query = keys.new_empty(0)
    else:
        grad_query = unfold((grad_scaled * beta).to(query.dtype), batch, heads, by_head)
    grad_keys = unfold(grad_k.to(keys.dtype), batch, heads, by_head)
    grad_values = unfold(grad_v.to(values.dtype), batch, heads, by_head)
    return grad_keys, grad_values, *parameters, grad_query
