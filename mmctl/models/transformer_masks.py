"""The transformer under long/short masks: two sets of attention heads a layer, one near, one far.

The papers' control: does splitting attention into ranges, without the rest of memory mosaics, explain the difference?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmctl.kernels import memory_attention
from mmctl.models.attention_cache import AttentionCache, attention_step
from mmctl.models.base import Model, RMSNorm, SwiGLU, one_hot_values
from mmctl.models.cache import Cache, Pairs
from mmctl.models.config import ModelConfig, RangeConfig
from mmctl.models.flops import Ask, Cost, attention, dense, ends, memory_read, scalars, swiglu
from mmctl.models.transformer import initialise, rotate, rotated, same_document, step_rotated, validate_attention


@dataclass
class TransformerMasksConfig(RangeConfig):
    """Transformer whose long heads at t read i <= t-m and whose short heads read i in [t-h+1, t].

    Its values have no look-ahead, hence the short mask's own position (our choice, as is keeping RoPE).
    """

    name: str = "transformer-masks"
    position: str = "rope"
    """rope: rotary position encoding; none: no position encoding."""
    rope_base: float = 10_000.0
    """Base of the rotary frequencies."""
    initialisation: str = "llama"
    """As in the transformer."""

    def validate(self) -> None:
        super().validate()
        validate_attention(self)


@dataclass
class RangesCache:
    """Every key and value of the long-term heads (None where they are removed), the last h of the short-term ones."""

    long: AttentionCache | None
    short: AttentionCache


class RangedAttention(nn.Module):
    """Two full-width sets of heads, long then short, outputs concatenated, W_o: 2d -> d (8 d^2 parameters)."""

    def __init__(self, config: TransformerMasksConfig) -> None:
        super().__init__()
        self.heads, self.window = config.heads, config.window
        self.qkv = nn.Linear(config.width, 6 * config.width, bias=False)
        self.output = nn.Linear(2 * config.width, config.width, bias=False)

    def project(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v (B, 2H, T, D): long-term heads first."""
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 2 * self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return rotate(q, rotation), rotate(k, rotation), v

    def long_read(self, q: Tensor, k: Tensor, v: Tensor, delay: int, mask: Tensor | None) -> Tensor:
        """Causal attention delayed by m: query t on keys 0 .. t-m; rows t < m read nothing and are 0."""
        t = q.shape[2]
        if t <= delay:
            return torch.zeros_like(v)
        if mask is not None:
            visible = mask.tril(-delay)
            read = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            return torch.where(visible.any(-1, keepdim=True), read, torch.zeros_like(read))
        read = F.scaled_dot_product_attention(
            q[:, :, delay:], k[:, :, : t - delay], v[:, :, : t - delay], is_causal=True
        )
        return F.pad(read, (0, 0, delay, 0))

    def short_read(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The last h positions, the query's own included: what a short-term memory at t+1 would see."""
        if mask is not None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.tril().triu(1 - self.window))
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        scale = torch.full((self.heads,), q.shape[-1] ** -0.5, device=q.device, dtype=dtype)
        bandwidth = (scale, torch.zeros_like(scale), torch.zeros_like(scale))
        return memory_attention(k, v, bandwidth, window=self.window, query=q, query_offset=1)

    def forward(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.project(x, context["rotation"])
        h, mask = self.heads, context["mask"]
        if context["remove_long_term"]:
            long = torch.zeros_like(v[:, :h])
        else:
            long = self.long_read(q[:, :h], k[:, :h], v[:, :h], context["delay"], mask)
        short = self.short_read(q[:, h:], k[:, h:], v[:, h:], mask)
        read = torch.cat([long, short.to(long.dtype)], dim=1)
        return self.output(read.transpose(1, 2).reshape(b, t, 2 * d))

    def step(self, x: Tensor, entry: RangesCache, context: dict[str, Any]) -> Tensor:
        """`forward` over new positions x (B, T, d), with cached keys and values."""
        q, k, v = self.project(x, context["rotation"])
        far, near = slice(0, self.heads), slice(self.heads, None)
        if entry.long is None:
            long = torch.zeros_like(v[:, far])
        else:
            long = attention_step(q[:, far], k[:, far], v[:, far], entry.long, context, delay=context["delay"])
        short = attention_step(q[:, near], k[:, near], v[:, near], entry.short, context, window=self.window)
        return self.output(torch.cat([long, short], dim=1).transpose(1, 2).flatten(2))

    def last_query_weights(self, x: Tensor, context: dict[str, Any]) -> dict[str, Tensor]:
        q, k, _ = self.project(x, context["rotation"])
        b, t, _ = x.shape
        h = self.heads
        one_hot = one_hot_values(b, h, t, k)
        far = t - context["delay"]
        long = torch.zeros(b, h, t, dtype=k.dtype, device=k.device)
        if far > 0:
            long[:, :, :far] = F.scaled_dot_product_attention(q[:, :h, -1:], k[:, :h, :far], one_hot[:, :, :far, :far])[
                :, :, 0
            ]
        near = max(0, t - self.window)
        short = F.scaled_dot_product_attention(q[:, h:, -1:], k[:, h:, near:], one_hot[:, :, near:])[:, :, 0]
        return {"attention-long": long, "attention-short": short}


class MasksBlock(nn.Module):
    """x += ranged attention(norm(x)); x += feed_forward(norm(x))."""

    def __init__(self, config: TransformerMasksConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width)
        self.attention = RangedAttention(config)
        self.persistent_norm = RMSNorm(config.width)
        self.persistent = SwiGLU(config.width, config.ffn_width)

    def forward(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        x = x + self.attention(self.attention_norm(x), context)
        return x + self.persistent(self.persistent_norm(x))

    def init_cache(self, cache: Cache) -> RangesCache:
        long = None if cache.remove_long_term else AttentionCache(Pairs(capacity=cache.capacity))
        return RangesCache(long, AttentionCache(Pairs(keep=self.attention.window)))

    def step(self, x: Tensor, entry: RangesCache, context: dict[str, Any]) -> Tensor:
        x = x + self.attention.step(self.attention_norm(x), entry, context)
        return x + self.persistent(self.persistent_norm(x))

    def last_query_weights(self, x: Tensor, context: dict[str, Any]) -> dict[str, Tensor]:
        return self.attention.last_query_weights(self.attention_norm(x), context)


class TransformerMasks(Model):
    """Llama-style transformer with long and short attention heads in every layer."""

    Config: ClassVar[type[ModelConfig]] = TransformerMasksConfig

    @staticmethod
    def costs(config: Any, ask: Ask) -> dict[str, Cost]:
        d, layers = config.width, config.layers
        projections = dense(d, 3 * d) + dense(d, d)  # one set of heads: q, k, v and its half of W_o
        counted = {}
        if not ask.remove_long_term:
            far = projections + attention(ask, d, config.heads, delay=config.inference_delay)
            counted["attention-long"] = far * layers
        near = projections + memory_read(ask, d, config.heads, window=config.window, offset=1)
        return {
            **counted,
            "attention-short": near * layers,
            "persistent": swiglu(d, config.ffn_width) * layers,
            "norms": scalars((2 * layers + 1) * d, ask),
            **ends(d, ask),
        }

    has_long_term: ClassVar[bool] = True

    def __init__(
        self, config: TransformerMasksConfig, vocabulary: int, length: int, generator: torch.Generator
    ) -> None:
        super().__init__(config, vocabulary, length)
        self.blocks.extend(MasksBlock(config) for _ in range(config.layers))
        initialise(self, config, generator)

    def context(self, tokens_BT: Tensor, documents: Tensor | None, delay: int | None) -> dict[str, Any]:
        shared = super().context(tokens_BT, documents, delay)
        mask = None if documents is None else same_document(documents)
        return {**shared, "rotation": rotated(self.config, tokens_BT), "mask": mask}

    def step_context(self, context: dict[str, Any], tokens_BT: Tensor) -> dict[str, Any]:
        return step_rotated(self.config, context, tokens_BT)
