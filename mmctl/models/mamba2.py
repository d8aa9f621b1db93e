"""Mamba-2 (arXiv 2405.21060): a state of fixed size in place of stored pairs, so that memory is compressed.

Per block, with d_inner = expand d, H heads of P = d_inner / H, one group (heads share B and C):

    [z, x, B, C, dt] = W_in norm(u);  x, B, C through a causal depth-wise convolution and SiLU
    Delta = softplus(dt + b_Delta);  alpha = exp(-Delta exp(A_log)), one scalar a head and step
    h_t = alpha_t h_{t-1} + Delta_t B_t x_t^T;  o_t = C_t^T h_t + D x_t;  u += W_o RMSNorm(o * SiLU(z))

Convolution and state restart at document boundaries (our choice, as in every other model here). There is no
feed-forward, as in the published models. Embedding and classifier are separate matrices, as in the models it is
compared with (our choice).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmctl.errors import UsageError
from mmctl.kernels.state_space import state_space_scan, state_space_scan_flops
from mmctl.models.base import Model, RMSNorm
from mmctl.models.cache import Cache
from mmctl.models.config import ModelConfig, expect
from mmctl.models.convolution import causal_convolution
from mmctl.models.flops import Ask, Cost, dense, ends, scalars

STEP_RANGE = (1e-3, 0.1)
"""Delta starts log-uniform in this range, at least `STEP_FLOOR` (published initialisation)."""
STEP_FLOOR = 1e-4
DECAY_RANGE = (1.0, 16.0)
"""exp(A_log) starts uniform in this range (published initialisation)."""


@dataclass
class Mamba2Config(ModelConfig):
    """Mamba-2. `heads` are the recurrence's: each is expand d / H wide (64 as published)."""

    matched_by: ClassVar[tuple[str, ...]] = ("model.layers", "model.state")

    name: str = "mamba2"
    expand: int = 2
    """d_inner / d."""
    state: int = 64
    """N: the state of a head is N x P numbers (128 in the published language models)."""
    convolution: int = 4
    """Positions the causal depth-wise convolution sees, the own one included."""

    def validate(self) -> None:
        super().validate()
        for key in ("expand", "state", "convolution"):
            self._at_least_one(key)

    @property
    def inner(self) -> int:
        return self.expand * self.width

    @property
    def state_size(self) -> int:
        """N_S, numbers in the state of the whole model: L H N P (Stuffed Mamba, arXiv 2410.07145)."""
        return self.layers * self.state * self.inner


@dataclass
class StateChanges:
    """Training-free changes of the recurrence at evaluation (arXiv 2410.07145, section 5). The defaults change
    nothing."""

    decay: float = 1.0
    """Factor on alpha: forget a little more at each step (published choice 0.9999)."""
    insert: float = 1.0
    """Factor on B: write less at each step (published choice 0.75)."""
    window: int | None = None
    """r: the state holds only what the last r positions wrote."""

    def validate(self) -> None:
        """UsageError for impossible values."""
        expect(0 < self.decay <= 1, f"decay={self.decay}: expected a factor in (0, 1]")
        expect(self.insert > 0, f"insert={self.insert}: expected a factor above 0")
        expect(self.window is None or self.window >= 1, f"window={self.window}: expected at least 1")


@dataclass
class Mamba2Cache:
    """What decoding keeps of a block: the convolution's last inputs and the state. Neither grows."""

    tail: Tensor | None = None
    """(B, at most convolution - 1, d_inner + 2N)"""
    state: Tensor | None = None
    """(B, H, N, P)"""


class Mamba2Mixer(nn.Module):
    """The recurrence of one block with its projections, convolution and gated norm."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.config = config
        inner, n, h = config.inner, config.state, config.heads
        self.input = nn.Linear(config.width, 2 * inner + 2 * n + h, bias=False)  # z, then x, B, C, then dt
        self.convolution = nn.Parameter(torch.empty(config.convolution, inner + 2 * n))
        self.convolution_bias = nn.Parameter(torch.empty(inner + 2 * n))
        self.step_bias = nn.Parameter(torch.empty(h))
        self.log_decay_rate = nn.Parameter(torch.empty(h))  # A_log
        self.skip = nn.Parameter(torch.ones(h))  # D
        self.norm = RMSNorm(inner)
        self.output = nn.Linear(inner, config.width, bias=False)

    def recur(
        self,
        u: Tensor,
        documents: Tensor | None,
        entry: Mamba2Cache | None,
        stored: Tensor | None,
        changes: StateChanges,
    ) -> Tensor:
        """The mixer over new positions u (B, T, d); `entry` carries convolution and state, `stored` (B, n) their
        ids."""
        config, (batch, length, _) = self.config, u.shape
        inner, n, h = config.inner, config.state, config.heads
        z, xbc, dt = self.input(u).split([inner, inner + 2 * n, h], dim=-1)
        if entry is not None and entry.tail is not None:
            xbc = torch.cat([entry.tail, xbc], dim=1)
        if entry is not None and config.convolution > 1:
            entry.tail = xbc[:, -(config.convolution - 1) :].clone()
        ids = documents if entry is None or stored is None else stored[:, -xbc.shape[1] :]
        convolved = causal_convolution(xbc, self.convolution, ids, length) + self.convolution_bias
        x, b, c = F.silu(convolved).split([inner, n, n], dim=-1)
        with torch.autocast(u.device.type, enabled=False):  # decays are multiplied over the whole sequence
            exact = self.step_bias.dtype
            delta = F.softplus(dt.to(exact) + self.step_bias)  # (B, T, H)
            log_decay = -delta * self.log_decay_rate.exp() + math.log(changes.decay)
            heads = x.to(exact).view(batch, length, h, inner // h)
            y, state = state_space_scan(
                (heads * delta.unsqueeze(-1)).transpose(1, 2),
                log_decay.transpose(1, 2),
                b.to(exact).unsqueeze(1) * changes.insert,
                c.to(exact).unsqueeze(1),
                documents=documents,
                state=None if entry is None else entry.state,
                window=changes.window,
            )
            y = y.transpose(1, 2) + self.skip.unsqueeze(-1) * heads
            y = self.norm(y.reshape(batch, length, inner) * F.silu(z.to(exact)))
        if entry is not None:
            entry.state = state
        return self.output(y)

    def log_retention(self, u: Tensor) -> Tensor:
        """log alpha (B, H, T) of each step, for u (B, T, d) as one document."""
        dt = self.input(u)[..., -self.config.heads :]
        return -(F.softplus(dt + self.step_bias) * self.log_decay_rate.exp()).transpose(1, 2)

    def reset_parameters(self, layers: int, generator: torch.Generator) -> None:
        if self.step_bias.is_meta:
            return
        low, high = (math.log(bound) for bound in STEP_RANGE)
        with torch.no_grad():
            for linear in (self.input, self.output):
                bound = linear.in_features**-0.5
                linear.weight.uniform_(-bound, bound, generator=generator)
            self.output.weight /= math.sqrt(layers)  # one addition to the residual stream a layer
            bound = self.config.convolution**-0.5
            self.convolution.uniform_(-bound, bound, generator=generator)
            self.convolution_bias.uniform_(-bound, bound, generator=generator)
            delta = self.step_bias.uniform_(low, high, generator=generator).exp().clamp(min=STEP_FLOOR)
            self.step_bias.copy_(delta + torch.log(-torch.expm1(-delta)))  # softplus of it is delta
            self.log_decay_rate.uniform_(*DECAY_RANGE, generator=generator).log_()


class Mamba2Block(nn.Module):
    """u += mixer(norm(u))."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.norm = RMSNorm(config.width)
        self.mixer = Mamba2Mixer(config)

    def forward(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        return x + self.mixer.recur(self.norm(x), context["documents"], None, None, context["changes"])

    def init_cache(self, cache: Cache) -> Mamba2Cache:
        return Mamba2Cache()

    def step(self, x: Tensor, entry: Mamba2Cache, context: dict[str, Any]) -> Tensor:
        documents, before = context["documents"], context["before"]
        if entry.state is not None and before is not None:
            entry.state = entry.state * (documents[:, :1] == before)[..., None, None]
        changes = context["changes"]
        return x + self.mixer.recur(self.norm(x), documents, entry, context["stored"], changes)

    def last_query_weights(self, x: Tensor, context: dict[str, Any]) -> dict[str, Tensor]:
        raise UsageError('model "mamba2" has no attention weights to draw: it keeps a state of fixed size')


class Mamba2(Model):
    """Mamba-2: L blocks between an embedding and a classifier."""

    Config: ClassVar[type[ModelConfig]] = Mamba2Config

    @staticmethod
    def costs(config: Any, ask: Ask) -> dict[str, Cost]:
        d, inner, n, h, layers = config.width, config.inner, config.state, config.heads, config.layers
        if ask.executed:
            recurrence = state_space_scan_flops(h, 1, ask.context, inner // h, n) / ask.context
        else:
            recurrence = 4.0 * n * inner  # write b x^T, read c^T h
        small = (inner + 2 * n) * (config.convolution + 1) + 3 * h + inner
        return {
            "mixer": (dense(d, 2 * inner + 2 * n + h) + dense(inner, d) + scalars(small, ask) + Cost(0, recurrence))
            * layers,
            "norms": scalars((layers + 1) * d, ask),
            **ends(d, ask),
        }

    def __init__(self, config: Mamba2Config, vocabulary: int, length: int, generator: torch.Generator) -> None:
        super().__init__(config, vocabulary, length)
        self.changes = StateChanges()
        self.blocks.extend(Mamba2Block(config) for _ in range(config.layers))
        for block in self.blocks:
            block.mixer.reset_parameters(config.layers, generator)  # type: ignore[union-attr,operator]
        for weight in (self.embedding.weight, self.classifier.weight):
            if not weight.is_meta:
                nn.init.normal_(weight, std=0.02, generator=generator)

    def context(self, tokens_BT: Tensor, documents: Tensor | None, delay: int | None) -> dict[str, Any]:
        return {"documents": documents, "changes": self.changes}

    def step_context(self, context: dict[str, Any], tokens_BT: Tensor) -> dict[str, Any]:
        if self.changes.window is not None:
            raise UsageError(
                "state window: decoding from a cache keeps no states to subtract; evaluate whole sequences"
            )
        return {**context, "changes": self.changes}

    @contextlib.contextmanager
    def state_changes(self, decay: float = 1.0, insert: float = 1.0, window: int | None = None) -> Iterator[None]:
        """Run with a changed recurrence (`StateChanges`), undone on leaving. UsageError for impossible values."""
        wanted = StateChanges(decay, insert, window)
        wanted.validate()
        before, self.changes = self.changes, wanted
        try:
            yield
        finally:
            self.changes = before

    @torch.no_grad()
    def log_retentions(self, tokens_BT: Tensor) -> list[Tensor]:
        """log alpha (B, H, T) of every step, a tensor a layer; retention of token i at t is exp of the sum from i+1 to
        t."""
        context = self.context(tokens_BT, None, None)
        x = self.embedding(tokens_BT)
        found = []
        for block in self.blocks:
            found.append(block.mixer.log_retention(block.norm(x)))  # type: ignore[union-attr,operator]
            x = block(x, context)
        return found

    @torch.no_grad()
    def state_statistics(self, tokens_BT: Tensor, every: int) -> list[dict[str, Tensor]]:
        """Mean and variance over a state's numbers (B, H), each layer, after every `every` tokens: a dict a layer of
        "mean" and "variance", (positions, B, H)."""
        cache = self.init_cache(len(tokens_BT))
        rows: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.blocks]
        for first in range(0, tokens_BT.shape[1] - every + 1, every):
            self.advance(tokens_BT[:, first : first + every], cache, None)
            for row, entry in zip(rows, cache.layers, strict=True):
                row.append((entry.state.mean((-1, -2)), entry.state.var((-1, -2))))
        return [
            {"mean": torch.stack([m for m, _ in row]), "variance": torch.stack([v for _, v in row])} for row in rows
        ]
