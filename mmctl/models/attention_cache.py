"""Decoding with softmax attention: cached keys and values, read under causal, delayed, windowed and document masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mmctl.models.cache import Pairs

MASK_ELEMENTS = 1 << 22
"""Most elements (queries x keys) of one mask: a chunk of queries is read in blocks, so that memory stays O(T)."""


@dataclass
class AttentionCache:
    """Keys and values (B, H, n, D) of one set of heads; values have no look-ahead, so none is ever incomplete."""

    pairs: Pairs


def attention_step(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    entry: AttentionCache,
    context: dict[str, Any],
    *,
    delay: int = 0,
    window: int | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """Store new keys and values and read with the new queries, all (B, H, c, D): attention over the positions i of the
    query's document with t - window < i <= t - delay, 0 where there is none.

    context["first"]: (B, c), position at which each query's document starts, or None. slopes: (H, 1, 1), what a head's
    logits lose per position of distance (ALiBi).
    """
    k, v = entry.pairs.extend(keys, values)
    count, stored = query.shape[2], k.shape[2]
    begin = context["position"] + count - stored  # position of the oldest key at hand
    if count == 1 and context["first"] is None and slopes is None:  # everything at hand is visible, save for the delay
        last = max(0, context["position"] + 1 - delay - begin)
        first = 0 if window is None else max(0, last + delay - window)
        if last <= first:
            return torch.zeros_like(query)
        return F.scaled_dot_product_attention(query, k[:, :, first:last], v[:, :, first:last])
    reads = []
    rows = max(1, MASK_ELEMENTS // (stored * (1 if context["first"] is None else len(query))))
    for row in range(0, count, rows):
        some = slice(row, min(row + rows, count))
        t = torch.arange(some.start, some.stop, device=query.device)[:, None] + context["position"]
        lowest = 0 if window is None else max(0, context["position"] + some.start - window + 1 - begin)
        highest = max(lowest, context["position"] + some.stop - delay - begin)
        if highest == lowest:
            reads.append(torch.zeros_like(query[:, :, some]))
            continue
        i = torch.arange(begin + lowest, begin + highest, device=query.device)
        visible = i <= t - delay
        if window is not None:
            visible = visible & (i > t - window)
        visible = visible[None, None]
        if context["first"] is not None:
            visible = visible & (i >= context["first"][:, None, some, None])
        part = slice(lowest, highest)
        mask = visible if slopes is None else (slopes * (i - t)).to(query.dtype).masked_fill(~visible, -torch.inf)
        read = F.scaled_dot_product_attention(query[:, :, some], k[:, :, part], v[:, :, part], attn_mask=mask)
        reads.append(torch.where(visible.any(-1, keepdim=True), read, torch.zeros_like(read)))
    return reads[0] if len(reads) == 1 else torch.cat(reads, dim=2)
