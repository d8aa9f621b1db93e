"""Decoding with the memories of Memory Mosaics v2: the same equations as `AssociativeMemories`, from carried state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmctl.models.cache import Cache, Pairs, State, read_step, scan_step, value_step

if TYPE_CHECKING:
    from mmctl.models.mosaic_v2 import AssociativeMemories


@dataclass
class MemoriesCache:
    """What the stacked memories of one block carry from token to token."""

    pairs: list[Pairs | None]
    """One a memory: every pair of the long-term one, the last h of the short-term one; None where it is removed."""
    scan: State | None = None
    """State of the key recurrence, (B, M*H, D) and (B, M*H)."""
    pending: Tensor | None = None
    """W_psi x (B, M*H, 1, D) of the newest position, whose value waits for the next one."""

    @classmethod
    def empty(cls, memories: AssociativeMemories, cache: Cache) -> MemoriesCache:
        pairs = []
        for name in memories.names:
            if name == "long-term":
                pairs.append(None if cache.remove_long_term else Pairs(capacity=cache.capacity))
            else:
                pairs.append(Pairs(keep=memories.config.window))
        return cls(pairs)


def step(memories: AssociativeMemories, x: Tensor, entry: MemoriesCache, context: dict[str, Any]) -> Tensor:
    """`AssociativeMemories.forward` over new positions x (B, T, d)."""
    phi, psi, log_gate, log_decay, scale = memories.project(x)
    keys, entry.scan = scan_step(phi, log_gate, log_decay, entry.scan, context)
    values = value_step(psi, memories.gamma.flatten(), scale, entry.pending, context)
    entry.pending = psi[:, :, -1:].clone()  # a clone: psi is a view of the whole projection
    beta, h = memories.bandwidth(), memories.config.heads
    reads = []
    for i, (pairs, reach) in enumerate(zip(entry.pairs, memories.ranges(context), strict=True)):
        part = slice(i * h, (i + 1) * h)
        if pairs is None:
            reads.append(torch.zeros_like(keys[:, part]))
            continue
        bandwidth = (beta[0][i], beta[1][i], beta[2][i])
        reads.append(read_step(pairs, keys[:, part], values[:, part], bandwidth, context, **reach))
    return memories.output(torch.cat([read.transpose(1, 2).flatten(2) for read in reads], dim=-1))
