"""Memory Mosaics v2 (arXiv 2507.03285): short-term, long-term and persistent memory in every block.

Every ablation axis of the paper is one field of `MosaicV2Config`. Equations: memory-mosaics v2, sections 3-4; what the
paper leaves open and we chose is marked "our choice" at its field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mmctl.kernels import key_scan, memory_attention, value_extract
from mmctl.models.base import Model, RMSNorm, SwiGLU, block_std, clipped_normal_, one_hot_values
from mmctl.models.cache import Cache
from mmctl.models.config import ModelConfig, RangeConfig, expect, one_of
from mmctl.models.flops import Ask, Cost, dense, ends, memory_read, scalars, scan, swiglu
from mmctl.models.mosaic_v2_cache import MemoriesCache, step

THETA_BETA, THETA_ALPHA = 1.5, 1.0 / 3.0
"""Initial theta of beta_0, beta_1 (each exp(1.5) = 4.5) and of alpha (paper, section 3.1)."""


@dataclass
class MosaicV2Config(RangeConfig):
    """Memory Mosaics v2. Counts of pairs, and the key recurrence, restart at document boundaries (our choice)."""

    name: str = "mosaic-v2"
    bandwidth: str = "adaptive"
    """adaptive: beta_t = beta_1 n_t^alpha + beta_0, n_t the pairs that the read at t sees in its document (counted per
    query: our choice). constant: alpha fixed at 0, beta = beta_0 + beta_1 = 9 at the start. constant-matched: alpha
    fixed at 0, beta starting at the adaptive value for n = T/2 (at most h for short-term memory): our choice."""
    key_extractor: str = "gated"
    """gated: kbar_t = exp(W_g x_t) ktilde_t + exp(-|W_lambda x_t|) kbar_{t-1}, one scalar gate a head and step; fixed:
    v1's kbar_t = ktilde_t + lambda kbar_{t-1}, one lambda a head, 10 theta starting at linspace(0.5, 5, H)."""
    long_term: bool = True
    """Long-term memory present: pairs 0 .. t-m."""
    short_term: bool = True
    """Short-term memory present: pairs t-h .. t-1 (h pairs: our choice, the paper also prints t-h+1)."""
    value_look_ahead: bool = True
    """Values mix in the next token's, by a learned gamma. False fixes gamma at 1, so that a value is its own token's,
    as in a transformer: an arm of `confounds`, not of the papers."""

    def validate(self) -> None:
        super().validate()
        one_of("model.bandwidth", self.bandwidth, ("adaptive", "constant", "constant-matched"))
        one_of("model.key_extractor", self.key_extractor, ("gated", "fixed"))
        expect(
            self.long_term or self.short_term, "model.long_term=False: expected at least one of long_term, short_term"
        )

    def validate_length(self, length: int) -> None:
        if self.long_term:
            super().validate_length(length)

    @property
    def memories(self) -> tuple[str, ...]:
        return tuple(m for m, on in (("long-term", self.long_term), ("short-term", self.short_term)) if on)


class Bandwidth(nn.Module):
    """beta = beta_1 n^alpha + beta_0 per head, for M stacked memories; parameters (M, H).

    beta_0, beta_1 = exp(min(theta, 10)); alpha = min(|theta|, 1) (paper, section 3.1).
    """

    def __init__(self, starts: list[float], heads: int, adaptive: bool) -> None:
        super().__init__()
        theta = torch.tensor(starts).unsqueeze(1).repeat(1, heads)
        self.theta_0 = nn.Parameter(theta.clone())
        self.theta_1 = nn.Parameter(theta.clone())
        self.theta_alpha = nn.Parameter(torch.full_like(theta, THETA_ALPHA)) if adaptive else None

    def forward(self) -> tuple[Tensor, Tensor, Tensor]:
        """(beta_0, beta_1, alpha), each (M, H), in final form."""
        beta_0 = self.theta_0.clamp(max=10).exp()
        beta_1 = self.theta_1.clamp(max=10).exp()
        alpha = torch.zeros_like(beta_0) if self.theta_alpha is None else self.theta_alpha.abs().clamp(max=1)
        return beta_0, beta_1, alpha


class AssociativeMemories(nn.Module):
    """The long-term and short-term memories of one block: distinct extractors, concatenated outputs, one W_o.

    The memories' projections are stacked into one product, and their heads into one key scan and one value pass: the
    parameters stay distinct, the work is shared.
    """

    def __init__(self, config: MosaicV2Config, length: int) -> None:
        super().__init__()
        self.config = config
        self.names = config.memories
        m, h, d = len(self.names), config.heads, config.width
        self.key_value = nn.Linear(d, 2 * m * d, bias=False)  # W_phi of each memory, then W_psi of each
        if config.key_extractor == "gated":
            self.gates = nn.Linear(d, 2 * m * h, bias=False)  # W_g of each memory, then W_lambda of each
        else:
            self.theta_decay = nn.Parameter((torch.linspace(0.5, 5, h) / 10).repeat(m, 1))
        if config.value_look_ahead:
            self.gamma = nn.Parameter(torch.empty(m, h))
        else:
            self.register_buffer("gamma", torch.ones(m, h), persistent=False)
        # exp(min(|theta|, 15)) with theta = 0, as published; |.| has gradient 0 there, so it stays at 1.
        self.theta_value = nn.Parameter(torch.zeros(m, h))
        self.bandwidth = Bandwidth(
            [self._theta_start(name, length) for name in self.names], h, config.bandwidth == "adaptive"
        )
        self.output = nn.Linear(m * d, d, bias=False)  # W_o

    def _theta_start(self, memory: str, length: int) -> float:
        if self.config.bandwidth != "constant-matched":
            return THETA_BETA
        pairs = max(1, length // 2 if memory == "long-term" else min(length // 2, self.config.window))
        start = math.exp(THETA_BETA)
        return math.log((start * pairs**THETA_ALPHA + start) / 2)

    def reset_parameters(self, layer: int, generator: torch.Generator) -> None:
        std = block_std(self.config.width, layer)
        for linear in (self.key_value, getattr(self, "gates", None), self.output):
            if linear is not None:
                clipped_normal_(linear.weight, std, generator)
        if self.config.value_look_ahead and not self.gamma.is_meta:
            nn.init.uniform_(self.gamma, 0.0, 1.0, generator=generator)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Of the stacked memories, from x (B, T, d): W_phi x and W_psi x (B, M*H, T, D), log gates and log decays
        (B, M*H, T), and the length of the values (M*H,)."""
        b, t, d = x.shape
        m, h = len(self.names), self.config.heads
        # Cut before the heads are: the gradients are then put together in one copy.
        parts = self.key_value(x).split(m * d, dim=-1)
        phi, psi = (part.view(b, t, m * h, d // h).transpose(1, 2) for part in parts)
        if self.config.key_extractor == "gated":
            with torch.autocast(x.device.type, enabled=False):
                # Log-gates are summed over the sequence: bf16 would lose them.
                gates = torch.nn.functional.linear(x.to(self.gates.weight.dtype), self.gates.weight)
            log_gate, decay = gates.view(b, t, 2, m * h).permute(2, 0, 3, 1)
            log_decay = -decay.abs()
        else:
            log_decay = -(10 * self.theta_decay).abs().view(1, m * h, 1).expand(b, m * h, t)
            log_gate = torch.zeros_like(log_decay)
        return phi, psi, log_gate, log_decay, self.theta_value.abs().clamp(max=15).exp().flatten()

    def extract(self, x: Tensor, documents: Tensor | None) -> tuple[Tensor, Tensor]:
        """Unit keys and values (B, M*H, T, D) of the stacked memories, from x (B, T, d)."""
        phi, psi, log_gate, log_decay, scale = self.project(x)
        keys = key_scan(phi, log_gate, log_decay, documents=documents)
        return keys, value_extract(psi, self.gamma.flatten(), scale, documents=documents)

    def ranges(self, context: dict[str, Any]) -> list[dict[str, Any]]:
        """window= or delay= of each memory, in the order of `names`."""
        return [{"delay": context["delay"]} if n == "long-term" else {"window": self.config.window} for n in self.names]

    def by_memory(self, stacked: Tensor) -> list[Tensor]:
        """The memories' (B, H, T, D) of a (B, M*H, T, D).

        Split along the dimension that is the outer one in memory, so that the gradients of the parts are put together
        in one copy; the gradient of a slice is a tensor of zeros that each of them is added to.
        """
        return [part.transpose(0, 1) for part in stacked.transpose(0, 1).split(self.config.heads)]

    def forward(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        keys, values = (self.by_memory(stacked) for stacked in self.extract(x, context["documents"]))
        beta = self.bandwidth()
        outputs = []
        for i, (name, reach) in enumerate(zip(self.names, self.ranges(context), strict=True)):
            if name == "long-term" and context["remove_long_term"]:
                outputs.append(torch.zeros_like(values[i]))
                continue
            bandwidth = (beta[0][i], beta[1][i], beta[2][i])
            outputs.append(memory_attention(keys[i], values[i], bandwidth, documents=context["documents"], **reach))
        # Reads come laid out as (B, T, H, D), so this copies each of them once.
        return self.output(torch.cat([read.transpose(1, 2).flatten(2) for read in outputs], dim=-1))

    def last_query_weights(self, x: Tensor, context: dict[str, Any]) -> dict[str, Tensor]:
        keys, _ = self.extract(x, None)
        h, t = self.config.heads, x.shape[1]
        beta = self.bandwidth()
        weights = {}
        for i, (name, reach) in enumerate(zip(self.names, self.ranges(context), strict=True)):
            part = keys[:, i * h : (i + 1) * h].contiguous()
            read = memory_attention(
                part,
                one_hot_values(x.shape[0], h, t, part),
                (beta[0][i], beta[1][i], beta[2][i]),
                query=part[:, :, -1:],
                query_offset=t - 1,
                **reach,
            )
            weights[name] = read[:, :, 0]
        return weights


class MosaicV2Block(nn.Module):
    """x += memories(norm(x)); x += persistent(norm(x)). RMSNorm as in the llama baseline (our choice)."""

    def __init__(self, config: MosaicV2Config, length: int) -> None:
        super().__init__()
        self.memory_norm = RMSNorm(config.width)
        self.memories = AssociativeMemories(config, length)
        self.persistent_norm = RMSNorm(config.width)
        self.persistent = SwiGLU(config.width, config.ffn_width)

    def forward(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        x = x + self.memories(self.memory_norm(x), context)
        return x + self.persistent(self.persistent_norm(x))

    def init_cache(self, cache: Cache) -> MemoriesCache:
        return MemoriesCache.empty(self.memories, cache)

    def step(self, x: Tensor, entry: MemoriesCache, context: dict[str, Any]) -> Tensor:
        x = x + step(self.memories, self.memory_norm(x), entry, context)
        return x + self.persistent(self.persistent_norm(x))

    def last_query_weights(self, x: Tensor, context: dict[str, Any]) -> dict[str, Tensor]:
        return self.memories.last_query_weights(self.memory_norm(x), context)

    def reset_parameters(self, layer: int, generator: torch.Generator) -> None:
        self.memories.reset_parameters(layer, generator)
        clipped_normal_(
            self.persistent.gate_up.weight, block_std(self.persistent_norm.weight.numel(), layer), generator
        )
        clipped_normal_(self.persistent.down.weight, block_std(self.persistent.hidden, layer), generator)


class MosaicV2(Model):
    """Memory Mosaics v2: L blocks of associative and persistent memories between an embedding and a classifier."""

    Config: ClassVar[type[ModelConfig]] = MosaicV2Config

    @staticmethod
    def costs(config: Any, ask: Ask) -> dict[str, Cost]:
        d, h, layers = config.width, config.heads, config.layers
        gated, adaptive = config.key_extractor == "gated", config.bandwidth == "adaptive"
        counted = {}
        for name in config.memories:
            if name == "long-term" and ask.remove_long_term:
                continue
            reach = {"delay": config.inference_delay} if name == "long-term" else {"window": config.window}
            memory = dense(d, 2 * d) + dense(d, d)  # W_phi, W_psi; this memory's half of W_o
            memory += scan(ask, d, h) + memory_read(ask, d, h, **reach)
            if not gated:
                memory += scalars(h, ask)  # theta_decay
            elif ask.executed:
                memory += dense(d, 2 * h)  # W_g, W_lambda
            # gamma, theta_value, theta_0, theta_1, theta_alpha
            memory += scalars((3 + config.value_look_ahead + adaptive) * h, ask)
            counted[name] = memory * layers
        return {
            **counted,
            "persistent": swiglu(d, config.ffn_width) * layers,
            "norms": scalars((2 * layers + 1) * d, ask),
            **ends(d, ask),
        }

    def __init__(self, config: MosaicV2Config, vocabulary: int, length: int, generator: torch.Generator) -> None:
        super().__init__(config, vocabulary, length)
        self.has_long_term = config.long_term  # type: ignore[misc]
        self.blocks.extend(MosaicV2Block(config, length) for _ in range(config.layers))
        std = 1.0 / math.sqrt(2 * config.width)
        clipped_normal_(self.embedding.weight, std, generator)
        clipped_normal_(self.classifier.weight, std, generator)
        for layer, block in enumerate(self.blocks):
            block.reset_parameters(layer, generator)  # type: ignore[operator]

    def diagnostics(self) -> dict[str, float]:
        """Learned bandwidth per memory: alpha, beta_0, beta_1 (means over heads), by layer and over layers."""
        values: dict[str, list[float]] = {}
        result: dict[str, float] = {}
        with torch.no_grad():
            for layer, block in enumerate(self.blocks):
                names = block.memories.names  # type: ignore[union-attr]
                for what, table in zip(("beta_0", "beta_1", "alpha"), block.memories.bandwidth(), strict=True):  # type: ignore[union-attr,operator]
                    for i, name in enumerate(names):  # type: ignore[arg-type,union-attr]
                        mean = float(table[i].mean())
                        result[f"bandwidth/{what}/{name}/layer{layer}"] = mean
                        values.setdefault(f"bandwidth/{what}/{name}", []).append(mean)
        return {**{k: sum(v) / len(v) for k, v in values.items()}, **result}
