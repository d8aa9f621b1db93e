"""What the reads of one `memory_attention` call can see: ranges, bandwidths, tiles and their masks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .bandwidth import bandwidth_table, document_starts, pair_counts, visible_range
from .checks import parameter_dtype
from .folding import Group
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
    masks: dict[int, tuple[int, torch.Tensor]] = field(default_factory=dict)

    def mask_(self, scores: torch.Tensor, group: Group, row: int, pair: int) -> None:
        """Add `MASKED` in place to the scores (g, R, W) of invisible pairs."""
        clear, mask = self.masks.get(row) or self._mask(scores, row, pair)
        part = scores[:, :, clear:]
        if self.documented:
            group.unfold(part).add_(mask[group.batch])
        else:
            part.add_(mask)

    def _mask(self, scores: torch.Tensor, row: int, pair: int) -> tuple[int, torch.Tensor]:
        """How many pairs of the tile every row sees, and the mask (B, 1, R, W) or (R, W) of the rest."""
        rows, width = scores.shape[1:]
        clear = 0
        if self.window == 0 and not self.documented:
            # Every row sees the pairs up to that of the block's first row: only the diagonal part needs a mask.
            clear = max(0, min(width, row + self.offset - self.delay + 1 - pair))
        pairs = torch.arange(pair + clear, pair + width, device=scores.device)
        hidden = (pairs < self.first[:, row : row + rows, None]) | (pairs >= self.end[:, row : row + rows, None])
        mask = torch.zeros(hidden.shape, dtype=scores.dtype, device=scores.device).masked_fill_(hidden, MASKED)
        self.masks[row] = clear, mask.unsqueeze(1) if self.documented else mask[0]
        return self.masks[row]


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
