"""Memory Mosaics v1 (arXiv 2405.06394): one contextual memory and one slot-based persistent memory in every block.

Scalars are stored divided by 10 ("exp scaling", as in the official code, which so raises their learning rate).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmctl.kernels import key_scan, memory_attention, value_extract
from mmctl.models.base import Model, one_hot_values
from mmctl.models.cache import Cache, Pairs, State, read_step, scan_step, value_step
from mmctl.models.config import ModelConfig, expect
from mmctl.models.dropout import dropout
from mmctl.models.flops import Ask, Cost, dense, ends, memory_read, scalars, scan, slots

EXP_SCALING = 10.0
MAX_LOG_SCALE = math.log(2**16 - 1)
"""Clamp of a key's log scale in the official code (the largest that fits in fp16)."""


@dataclass
class MosaicV1Config(ModelConfig):
    """Memory Mosaics v1, as the official code has it. Classifier and embedding are one matrix."""

    matched_by: ClassVar[tuple[str, ...]] = ("model.persistent_slots",)

    name: str = "mosaic-v1"
    persistent_slots: int = 448
    """N_p, learned (key, value) slots a head in the persistent memory (448 in the authors' RegBench, 2688 at GPT-2
    size)."""
    persistent_count: int = 1
    """Banks of persistent slots, read one by one and averaged."""
    dropout: float = 0.0
    """Share of each memory's output that training sets to 0, after W_o (0.05 in the authors' RegBench, "hd_dropout").
    Their code also drops as many weights of every read ("ic_dropout"), which a fused read does not: left out."""

    def validate(self) -> None:
        super().validate()
        self._at_least_one("persistent_slots")
        self._at_least_one("persistent_count")
        expect(0 <= self.dropout < 1, f"model.dropout={self.dropout}: expected a number in [0, 1)")


class BiasFreeLayerNorm(nn.Module):
    """LayerNorm with a weight and no bias, eps 1e-5."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class FixedKeyExtractor(nn.Module):
    """Unit keys kbar/||kbar||, kbar_t = W x_t + lambda kbar_{t-1}, lambda = exp(-|10 theta|) (v1, section 5)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projection = nn.Linear(width, width, bias=False)
        self.theta_decay = nn.Parameter(torch.linspace(0.5, 5, heads) / EXP_SCALING)
        self.kappa = nn.Parameter(torch.ones(heads) / EXP_SCALING)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """W_phi x (B, H, T, D), log gates and log decays (B, H, T)."""
        b, t, d = x.shape
        projected = self.projection(x).view(b, t, self.heads, d // self.heads).transpose(1, 2)
        log_decay = -(EXP_SCALING * self.theta_decay).abs().view(1, -1, 1).expand(b, self.heads, t)
        return projected, torch.zeros_like(log_decay), log_decay

    def forward(self, x: Tensor, documents: Tensor | None) -> Tensor:
        return key_scan(*self.project(x), documents=documents)

    def step(self, x: Tensor, state: State | None, context: dict[str, Any]) -> tuple[Tensor, State]:
        """`forward` over new positions, and the recurrence's state after them."""
        return scan_step(*self.project(x), state, context)


@dataclass
class BlockCache:
    """What one block carries from token to token: all pairs, both key recurrences, the newest W_psi x (B, H, 1, D)."""

    pairs: Pairs
    contextual: State | None = None
    persistent: State | None = None
    pending: Tensor | None = None


class ContextualMemory(nn.Module):
    """Associative memory over all earlier pairs: f(k_t) = sum_{i<t} softmax_i(exp(20 kappa) k_t . k_i) v_i."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.key = FixedKeyExtractor(width, heads)
        self.value = nn.Linear(width, width, bias=False)
        self.gamma = nn.Parameter(torch.empty(heads))
        self.theta_value = nn.Parameter(torch.full((heads,), -0.5 / EXP_SCALING))
        self.output = nn.Linear(width, width, bias=False)

    def bandwidth(self) -> tuple[Tensor, Tensor, Tensor]:
        """Both keys are scaled by exp(10 kappa), so beta is its square, whatever the number of pairs."""
        beta = (EXP_SCALING * self.key.kappa).clamp(max=MAX_LOG_SCALE).exp().square()
        return beta, torch.zeros_like(beta), torch.zeros_like(beta)

    def forward(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        documents = context["documents"]
        keys = self.key(x, documents)
        values = value_extract(self.psi(x), self.gamma, self.value_length(), documents=documents)
        read = memory_attention(keys, values, self.bandwidth(), delay=1, documents=documents)
        return self.output(read.transpose(1, 2).reshape(x.shape))

    def psi(self, x: Tensor) -> Tensor:
        """W_psi x, (B, H, T, D)."""
        b, t, d = x.shape
        return self.value(x).view(b, t, self.heads, d // self.heads).transpose(1, 2)

    def value_length(self) -> Tensor:
        """alpha_psi (H,), the length of every value."""
        return (EXP_SCALING * self.theta_value).exp()

    def step(self, x: Tensor, entry: BlockCache, context: dict[str, Any]) -> Tensor:
        """`forward` over new positions x (B, T, d), from carried state."""
        keys, entry.contextual = self.key.step(x, entry.contextual, context)
        psi = self.psi(x)
        values = value_step(psi, self.gamma, self.value_length(), entry.pending, context)
        entry.pending = psi[:, :, -1:].clone()
        read = read_step(entry.pairs, keys, values, self.bandwidth(), context, delay=1)
        return self.output(read.transpose(1, 2).reshape(x.shape))

    def last_query_weights(self, x: Tensor) -> Tensor:
        keys = self.key(x, None)
        t = x.shape[1]
        values = one_hot_values(x.shape[0], self.heads, t, keys)
        read = memory_attention(
            keys, values, self.bandwidth(), delay=1, query=keys[:, :, -1:].contiguous(), query_offset=t - 1
        )
        return read[:, :, 0]


class SlotMemory(nn.Module):
    """Persistent memory: N_p learned pairs a head, read with scale exp(20 kappa) on the query only (v1 code)."""

    def __init__(self, width: int, heads: int, slots: int, count: int) -> None:
        super().__init__()
        self.heads = heads
        self.key = FixedKeyExtractor(width, heads)
        self.slot_keys = nn.Parameter(torch.empty(count, heads, slots, width // heads))
        self.slot_values = nn.Parameter(torch.empty(count, heads, slots, width // heads))
        self.theta_output = nn.Parameter(torch.full((heads,), -0.5 / EXP_SCALING))
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, documents: Tensor | None) -> Tensor:
        return self.read(self.key(x, documents))

    def step(self, x: Tensor, entry: BlockCache, context: dict[str, Any]) -> Tensor:
        """`forward` over new positions x (B, T, d), from carried state."""
        keys, entry.persistent = self.key.step(x, entry.persistent, context)
        return self.read(keys)

    def read(self, keys: Tensor) -> Tensor:
        """All slots read with unit keys (B, H, T, D), averaged over banks, through W_o: (B, T, d)."""
        b = keys.shape[0]
        scale = (2 * EXP_SCALING * self.key.kappa).clamp(max=MAX_LOG_SCALE).exp()
        query = keys * scale.view(1, -1, 1, 1).to(keys.dtype)
        reads = [
            F.scaled_dot_product_attention(
                query, k.to(query.dtype).expand(b, -1, -1, -1), v.to(query.dtype).expand(b, -1, -1, -1), scale=1.0
            )
            for k, v in zip(self.slot_keys, self.slot_values, strict=True)
        ]
        read = torch.stack(reads).mean(0) * (EXP_SCALING * self.theta_output).exp().view(1, -1, 1, 1)
        return self.output(read.transpose(1, 2).flatten(2))


class MosaicV1Block(nn.Module):
    """x += contextual(norm(x)); x += persistent(norm(x)), with bias-free LayerNorms."""

    def __init__(self, config: MosaicV1Config, layer: int) -> None:
        super().__init__()
        self.rate, self.layer = config.dropout, layer
        self.memory_norm = BiasFreeLayerNorm(config.width)
        self.memories = ContextualMemory(config.width, config.heads)
        self.persistent_norm = BiasFreeLayerNorm(config.width)
        self.persistent = SlotMemory(config.width, config.heads, config.persistent_slots, config.persistent_count)

    def forward(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        noise = context["noise"]
        x = x + dropout(self.memories(self.memory_norm(x), context), self.rate, noise, 2 * self.layer)
        persistent = self.persistent(self.persistent_norm(x), context["documents"])
        return x + dropout(persistent, self.rate, noise, 2 * self.layer + 1)

    def init_cache(self, cache: Cache) -> BlockCache:
        return BlockCache(Pairs(capacity=cache.capacity))

    def step(self, x: Tensor, entry: BlockCache, context: dict[str, Any]) -> Tensor:
        x = x + self.memories.step(self.memory_norm(x), entry, context)
        return x + self.persistent.step(self.persistent_norm(x), entry, context)

    def last_query_weights(self, x: Tensor, context: dict[str, Any]) -> dict[str, Tensor]:
        return {"contextual": self.memories.last_query_weights(self.memory_norm(x))}


class MosaicV1(Model):
    """Memory Mosaics v1, initialised as the official small implementation (GPT-2 deviations: 0.02, residual scaled)."""

    Config: ClassVar[type[ModelConfig]] = MosaicV1Config

    @staticmethod
    def costs(config: Any, ask: Ask) -> dict[str, Cost]:
        d, h, layers = config.width, config.heads, config.layers
        # W_phi, W_psi, W_o; then theta_decay, kappa, gamma, theta_value.
        contextual = (
            dense(d, 2 * d) + dense(d, d) + scan(ask, d, h) + memory_read(ask, d, h, delay=1) + scalars(4 * h, ask)
        )
        # W_phi, W_o; then theta_decay, kappa, theta_output.
        persistent = dense(d, d) + dense(d, d) + scan(ask, d, h) + scalars(3 * h, ask)
        persistent += slots(d, config.persistent_slots) * config.persistent_count
        return {
            "contextual": contextual * layers,
            "persistent": persistent * layers,
            "norms": scalars((2 * layers + 1) * d, ask),
            **ends(d, ask, tied=True),
        }

    def __init__(self, config: MosaicV1Config, vocabulary: int, length: int, generator: torch.Generator) -> None:
        super().__init__(config, vocabulary, length)
        self.norm = BiasFreeLayerNorm(config.width)
        self.embedding.weight = self.classifier.weight
        self.blocks.extend(MosaicV1Block(config, layer) for layer in range(config.layers))
        if self.classifier.weight.is_meta:
            return
        residual = 0.02 / math.sqrt(2 * config.layers)
        slot = 1.0 / math.sqrt(config.width // config.heads)
        for name, parameter in self.named_parameters():
            if name.endswith("gamma"):
                nn.init.uniform_(parameter, 0.0, 1.0, generator=generator)
            elif "slot_" in name:
                nn.init.normal_(parameter, 0.0, slot, generator=generator)
            elif parameter.dim() == 2:
                std = residual if name.endswith("output.weight") else 0.02
                nn.init.normal_(parameter, 0.0, std, generator=generator)
