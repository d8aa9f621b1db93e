"""PaceLLM's plug-ins for a SwiGLU feed-forward, without training (arXiv 2506.17310): activation memory, cortical
experts.

Activation memory bank. With a = SiLU(W_1 x) * W_3 x the feed-forward's activation, and a bank of M slots (key, value,
use):

1. lookup: cosine of a with the keys; mu_pos the mean value of the k nearest slots, mu_neg that of the k' farthest;
2. activation: similarity s > theta_high: r = mu_pos + lambda mu_neg; theta_low < s <= theta_high: r = mu_pos / 2 +
   lambda mu_neg; else r = a. The feed-forward goes on with (1 - mix) a + mix r;
3. store: similar ones change nothing (released code) or count a use (paper); middling ones move the slots they touched
   half-way; dissimilar ones overwrite the least used slot.

A bank belongs to one sequence and one document, starts empty, and is read before it is written, a chunk of tokens at a
time: so a token reads only what earlier chunks stored (causal), and nothing passes between sequences. An empty bank
changes nothing.

Cortical experts. The rows of W_1 in clusters of equal size: a permutation of the hidden units, which leaves the output
as it is. Average-k gating then keeps the k clusters with the highest mean gate and drops the others' units.

Shape suffixes: B sequences, C tokens of a chunk, F hidden width, M slots.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmctl.errors import UsageError
from mmctl.models.base import Model, SwiGLU
from mmctl.models.config import expect, one_of
from mmctl.models.pace_experts import cluster_units


@dataclass(frozen=True)
class PaceSettings:
    """What is plugged in. The defaults are the paper's; `released()` are the released code's."""

    bank: bool = True
    """Activation memory bank."""
    experts: int = 0
    """E, clusters of hidden units; 0: none. The feed-forward's width must be a multiple."""
    kept_experts: int = 0
    """k of average-k gating; 0 keeps all, which changes nothing."""
    layers: tuple[int, ...] | None = None
    """Blocks, from 0. None: the two that stand where 13 and 27 stand among 28 layers, as published."""
    slots: int = 100
    nearest: int = 5
    farthest: int = 2
    high: float = 0.7
    low: float = 0.3
    noise: float = 0.1
    """lambda."""
    mix: float = 0.2
    similarity: str = "mean"
    """s of the activation's three cases: mean of the nearest (paper) or max (released code). Storing always takes the
    mean."""
    update: str = "slot"
    """Middling tokens move a slot half-way to: slot, the mean of those that touched it (our reading of the paper);
    batch, the mean of all middling tokens of the chunk, the same for every touched slot (released code)."""
    count_similar: bool = True
    """Similar tokens count a use of the slots they touched (paper); the released code does nothing."""
    chunk: int = 64
    """Tokens read before they are stored."""
    random: bool = False
    """Control: the same decisions, but slots drawn at random among the filled ones in place of the nearest and
    farthest."""
    seed: int = 0
    """Of the control's draws and of the clustering's start."""

    @classmethod
    def released(cls, **changes: Any) -> PaceSettings:
        """The released code's choices where they differ from the paper's."""
        code = cls(high=0.75, low=0.25, similarity="max", update="batch", count_similar=False)
        return replace(code, **changes)

    def flops_per_token(self, hidden: int) -> int:
        """FLOPs that a bank adds to one token of one feed-forward of width `hidden`: the cosines with M keys and two
        means over M values (the feed-forward itself: 6 d hidden)."""
        return 6 * self.slots * hidden if self.bank else 0

    def validate(self, model: Model) -> tuple[int, ...]:
        """The blocks to plug into. UsageError names the setting that does not fit the model."""
        one_of("pace.similarity", self.similarity, ("mean", "max"))
        one_of("pace.update", self.update, ("slot", "batch"))
        for key in ("slots", "nearest", "farthest", "chunk"):
            expect(getattr(self, key) >= 1, f"pace.{key}={getattr(self, key)}: expected at least 1")
        expect(-1 <= self.low <= self.high <= 1, f"pace.low={self.low}: expected -1 <= low <= high={self.high} <= 1")
        expect(0 <= self.mix <= 1, f"pace.mix={self.mix}: expected 0 to 1")
        count = len(model.blocks)
        chosen = self.layers or tuple(sorted({max(0, round(at * count / 28) - 1) for at in (13, 27)}))
        for layer in chosen:
            expect(0 <= layer < count, f"pace.layers={layer}: the model has blocks 0 to {count - 1}")
            ffn = getattr(model.blocks[layer], "persistent", None)
            expect(
                isinstance(ffn, SwiGLU),
                f'pace: model "{model.config.name}" has no SwiGLU feed-forward in block {layer}',
            )
            hidden = ffn.hidden  # type: ignore[union-attr]
            expect(
                self.experts == 0 or hidden % self.experts == 0,
                f"pace.experts={self.experts}: expected a divisor of {hidden}",
            )
        expect(
            0 <= self.kept_experts <= self.experts,
            f"pace.kept_experts={self.kept_experts}: expected 0 to {self.experts}",
        )
        return chosen


@dataclass
class Counts:
    """What the banks of one layer did."""

    high: int = 0
    middle: int = 0
    low: int = 0
    diversity: list[float] = field(default_factory=list)
    """1 - mean cosine between two filled slots, of every bank when its document ended."""

    def record(self) -> dict[str, Any]:
        """Shares of high, middle and low among the tokens seen, their number, and the mean diversity of the slots."""
        tokens = self.high + self.middle + self.low
        shares = {name: getattr(self, name) / tokens if tokens else None for name in ("high", "middle", "low")}
        diversity = sum(self.diversity) / len(self.diversity) if self.diversity else None
        return {"tokens": tokens, **shares, "slot_diversity": diversity}


@dataclass
class Bank:
    """B banks of M slots; `used` 0 marks an empty slot."""

    keys: Tensor
    values: Tensor
    used: Tensor

    @classmethod
    def empty(cls, batch: int, slots: int, like: Tensor) -> Bank:
        shape = (batch, slots, like.shape[-1])
        return cls(like.new_zeros(shape), like.new_zeros(shape), like.new_zeros(batch, slots))


def lookup(
    bank: Bank, a_BCF: Tensor, s: PaceSettings, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Similarities (B, C, at most k) of the nearest slots, -1 where a slot is empty, those slots, mu_pos and mu_neg."""
    filled = bank.used > 0
    cosine = F.normalize(a_BCF, dim=-1) @ F.normalize(bank.keys, dim=-1).transpose(1, 2)
    near = cosine.masked_fill(~filled.unsqueeze(1), -2.0).topk(min(s.nearest, s.slots), dim=-1)
    far = (-cosine).masked_fill(~filled.unsqueeze(1), -2.0).topk(min(s.farthest, s.slots), dim=-1)
    indices = [near.indices, far.indices]
    if s.random:
        draws = torch.rand(cosine.shape, generator=generator, dtype=cosine.dtype).to(cosine.device)
        draws = draws.masked_fill(~filled.unsqueeze(1), -1.0)
        indices = [draws.topk(i.shape[-1], dim=-1).indices for i in indices]
    means = []
    for chosen in indices:
        there = filled.unsqueeze(1).expand_as(cosine).gather(2, chosen).to(a_BCF.dtype)
        weights = torch.zeros_like(cosine).scatter_(2, chosen, there)
        means.append(weights @ bank.values / weights.sum(-1, keepdim=True).clamp(min=1))
    return near.values.clamp(min=-1), near.indices, means[0], means[1]


def store(bank: Bank, a: Tensor, o: Tensor, near: Tensor, slots: Tensor, s: PaceSettings) -> None:
    """Write one chunk's activations a and outputs o (B, C, F) by their mean similarity to the nearest slots."""
    similarity = near.mean(-1)
    middle = (similarity > s.low) & (similarity <= s.high)
    touched = torch.zeros(*a.shape[:2], s.slots, dtype=a.dtype, device=a.device).scatter_(
        2, slots, (near > -1).to(a.dtype)
    )
    by_middle = touched * middle.unsqueeze(-1)
    hit = by_middle.sum(1) > 0  # (B, M)
    for table, new in ((bank.keys, a), (bank.values, o)):
        if s.update == "slot":
            mean = by_middle.transpose(1, 2) @ new / by_middle.sum(1).clamp(min=1).unsqueeze(-1)
        else:
            weight = middle.to(a.dtype)
            mean = ((weight.unsqueeze(1) @ new) / weight.sum(1).clamp(min=1)[:, None, None]).expand_as(table)
        table.copy_(torch.where(hit.unsqueeze(-1), 0.5 * table + 0.5 * mean, table))
    bank.used += hit
    if s.count_similar:
        bank.used += (touched * (similarity > s.high).unsqueeze(-1)).sum(1) > 0
    for row, low in enumerate(similarity <= s.low):
        tokens = low.nonzero().flatten()[: s.slots]
        least = bank.used[row].argsort(stable=True)[: len(tokens)]
        bank.keys[row, least], bank.values[row, least] = a[row, tokens], o[row, tokens]
        bank.used[row, least] = 1


class PacedFeedForward(nn.Module):
    """A SwiGLU with an activation memory bank and cortical experts, in evaluation only."""

    def __init__(self, ffn: SwiGLU, settings: PaceSettings) -> None:
        super().__init__()
        self.hidden, self.settings, self.counts = ffn.hidden, settings, Counts()
        self.gate_up, self.down = ffn.gate_up.weight.detach(), ffn.down.weight.detach()
        self.documents: Tensor | None = None
        if settings.experts:
            order = cluster_units(self.gate_up[: self.hidden], settings.experts, settings.seed)
            self.gate_up = torch.cat([part[order] for part in self.gate_up.split(self.hidden)])
            self.down = self.down[:, order]

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, self.gate_up).split(self.hidden, dim=-1)
        gate = F.silu(gate)
        a = gate * up
        s = self.settings
        if s.experts and s.kept_experts:
            means = gate.unflatten(-1, (s.experts, -1)).mean(-1)
            kept = torch.zeros_like(means).scatter_(-1, means.topk(s.kept_experts, dim=-1).indices, 1.0)
            a = (a.unflatten(-1, (s.experts, -1)) * kept.unsqueeze(-1)).flatten(-2)
        if s.bank:
            a = self.remember(a)
        return F.linear(a, self.down)

    def remember(self, a: Tensor) -> Tensor:
        """Pass activations (B, T, F) through banks that start empty with every sequence and document."""
        if self.documents is None:
            return self.one_document(a)
        rows = []
        for row, ids in enumerate(self.documents):
            lengths = torch.unique_consecutive(ids, return_counts=True)[1].tolist()
            rows.append(torch.cat([self.one_document(part) for part in a[row : row + 1].split(lengths, dim=1)], dim=1))
        return torch.cat(rows)

    def one_document(self, a: Tensor) -> Tensor:
        s = self.settings
        generator = torch.Generator().manual_seed(s.seed)
        exact = a.float() if a.dtype in (torch.bfloat16, torch.float16) else a
        bank = Bank.empty(len(a), s.slots, exact)
        outputs = []
        for part in exact.split(s.chunk, dim=1):
            near, slots, positive, negative = lookup(bank, part, s, generator)
            level = (near.mean(-1) if s.similarity == "mean" else near.amax(-1)).unsqueeze(-1)
            noise = s.noise * negative
            retrieved = torch.where(
                level > s.high, positive + noise, torch.where(level > s.low, 0.5 * positive + noise, part)
            )
            out = (1 - s.mix) * part + s.mix * retrieved
            out = torch.where(level > s.low, out, part)  # exactly a where nothing was retrieved
            outputs.append(out)
            self.counts.high += int((level > s.high).sum())
            self.counts.middle += int(((level > s.low) & (level <= s.high)).sum())
            self.counts.low += int((level <= s.low).sum())
            store(bank, part, out, near, slots, s)
        self.counts.diversity.extend(_diversity(bank))
        return torch.cat(outputs, dim=1).to(a.dtype)


def _diversity(bank: Bank) -> list[float]:
    found = []
    for keys, used in zip(bank.keys, bank.used, strict=True):
        unit = F.normalize(keys[used > 0], dim=-1)
        if (n := len(unit)) > 1:
            found.append(1 - float(((unit @ unit.T).sum() - n) / (n * (n - 1))))
    return found


@contextlib.contextmanager
def paced(model: Model, settings: PaceSettings) -> Iterator[dict[int, Counts]]:
    """Run `model` with the plug-ins in the chosen blocks, undone on leaving. Gives each block's counts, filled as it
    runs.

    Whole sequences only: decoding from a cache is refused, since a bank would start anew with every token.
    """
    layers = settings.validate(model)
    blocks: list[Any] = [model.blocks[layer] for layer in layers]
    before = [block.persistent for block in blocks]
    plugged = [PacedFeedForward(ffn, settings) for ffn in before]

    def documents_known(module: Model, args: Any, kwargs: dict[str, Any]) -> None:
        for ffn in plugged:
            ffn.documents = kwargs.get("documents")

    def no_cache(*_: Any, **__: Any) -> Any:
        raise UsageError(
            "pace: decoding from a cache would start a bank anew with every token; evaluate whole sequences"
        )

    hook = model.register_forward_pre_hook(documents_known, with_kwargs=True)
    for block, ffn in zip(blocks, plugged, strict=True):
        block.persistent = ffn
    model.init_cache = no_cache  # type: ignore[method-assign]
    try:
        yield dict(zip(layers, (ffn.counts for ffn in plugged), strict=True))
    finally:
        hook.remove()
        del model.init_cache
        for block, ffn in zip(blocks, before, strict=True):
            block.persistent = ffn
