"""What the reads of one `memory_attention` call can see: ranges, bandwidths, tiles and their masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from .bandwidth import bandwidth_table, document_starts, pair_counts, visible_range
from .checks import parameter_dtype
from .folding import Scratch
from .tiles import query_blocks

# Stands in for -inf in masks: a row in which everything is masked then has finite weights, which are
# multiplied by 0 afterwards, instead of NaN.
MASKED = -1e30


@dataclass
class Reads:
    """Everything about a call that does not depend on the contents of keys and values."""

    blocks: list[tuple[int, int, int, int]]  # (row, row end, pair, pair end)
    offset: int
    window: int
    delay: int
    documented: bool
    first: torch.Tensor  # (B or 1, Tq) first visible pair
    end: torch.Tensor  # (B or 1, Tq) end of the visible pairs
    counts: torch.Tensor  # (B or 1, Tq) n_t
    beta: torch.Tensor  # (B or 1, H, Tq)
    power: torch.Tensor  # (B or 1, H, Tq) n_t^alpha
    filled: torch.Tensor | None  # (B or 1, 1, Tq, 1), 0 at empty reads; None where no tile holds one
    masks: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def covered(self) -> tuple[int, int]:
        """First row of the first block and end of the last one; the reads outside of them are empty."""
        return (self.blocks[0][0], self.blocks[-1][1]) if self.blocks else (0, 0)

    def uncovered(self) -> tuple[slice, slice]:
        """The rows before and after those that are `covered`."""
        first, end = self.covered
        return slice(0, first), slice(end, self.counts.shape[1])

    def split(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(g, Tq, n) by block, as views (g, R, n)."""
        if not self.blocks:
            return ()
        first, end = self.covered
        return rows[:, first:end].split(self.blocks[0][1] - first, 1)

    def mask(self, block: int, dtype: torch.dtype) -> torch.Tensor:
        """`MASKED` at the invisible pairs of a block's tile, else 0: (B, 1, R, W) or, without documents, (R, W)."""
        mask = self.masks.get(block)
        if mask is None:
            row, row_end, pair, pair_end = self.blocks[block]
            pairs = torch.arange(pair, pair_end, device=self.first.device)
            here = slice(row, row_end)
            hidden = (pairs < self.first[:, here, None]) | (pairs >= self.end[:, here, None])
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, MASKED)
            mask = self.masks[block] = mask.unsqueeze(1) if self.documented else mask[0]
        return mask


class RowBlocks:
    """A buffer (g, Tq, n) laid out block by block, so that each ``part`` (g, R, n) is contiguous.

    Products write only contiguous results without a copy; `pieces` gives most of the blocks to later work at once.
    """

    def __init__(self, scratch: Scratch, name: str, reads: Reads, size: int, width: int, dtype: torch.dtype) -> None:
        self.first, end = reads.covered
        rows = reads.blocks[0][1] - self.first if reads.blocks else 1
        count = end - self.first
        flat = scratch.get(name, (size * count * width,), dtype)
        self.whole, rest = divmod(count, rows)
        even, last = flat.split([size * self.whole * rows * width, size * rest * width])
        self.even, self.last = even.view(self.whole, size, rows, width), last.view(size, rest, width)
        self.parts = [*self.even.unbind(0), *([self.last] if rest else [])]

    def outside(self, low: float, high: float) -> list[torch.Tensor] | None:
        """Which numbers, by part, lie outside of low .. high; None if none does. NaN counts as inside."""
        even, last = ((part <= low) | (part >= high) for part in (self.even, self.last))
        return [*even.unbind(0), last] if even.any() or last.any() else None

    def pieces(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Rows and what is at them, as (g, blocks, R, n): all blocks of full length together, then the last one."""
        middle = self.first + self.whole * self.even.shape[2]
        if self.whole:
            yield slice(self.first, middle), self.even.transpose(0, 1)
        if self.last.shape[1]:
            yield slice(middle, middle + self.last.shape[1]), self.last.unsqueeze(1)


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
    """Work out what a call reads; arguments as those of the operator."""
    length = keys.shape[2]
    rows = length if query is None else query.shape[2]
    positions = torch.arange(offset, offset + rows, device=keys.device)
    starts = None if documents is None else document_starts(documents)[:, offset : offset + rows]
    first, end = visible_range(positions, length, window, delay, starts)
    counts = pair_counts(first, end, parameter_dtype(keys.dtype))
    beta, power = bandwidth_table(counts, beta0, beta1, alpha)
    filled = None
    if documents is not None or offset + rows > length + 1:
        filled = (counts > 0).to(beta.dtype)[:, None, :, None]
    blocks = list(query_blocks(rows, length, offset, window, delay))
    return Reads(blocks, offset, window, delay, documents is not None, first, end, counts, beta, power, filled)
