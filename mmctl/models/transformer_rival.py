"""The transformer with what the mosaic might owe its advantage to, one field each: the arms of `confounds`.

Keys that mix in their predecessors (smear, short convolution), normalised queries and keys, other ways to tell
positions (ALiBi, none with log-n scaling, another RoPE base). With none of them it is the plain transformer, number for
number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmctl.models.attention_cache import AttentionCache, attention_step
from mmctl.models.base import RMSNorm, one_hot_values
from mmctl.models.cache import document_firsts
from mmctl.models.config import ModelConfig, expect, one_of
from mmctl.models.convolution import causal_convolution
from mmctl.models.flops import Ask, Cost, scalars
from mmctl.models.transformer import (
    Attention,
    Transformer,
    TransformerConfig,
    rotate,
    rotated,
    same_document,
    step_rotated,
)


@dataclass
class TransformerRivalConfig(TransformerConfig):
    """A transformer with fair chances. `initialisation: mosaic` belongs to the plain one and works here too."""

    name: str = "transformer-rival"
    position: str = "rope"
    """rope; none; alibi: a head's logits fall by slope x distance, slopes 2^(-8/H), 2^(-16/H), ... (arXiv
    2108.12409)."""
    qk_norm: bool = False
    """RMSNorm, with a learned weight a channel, of every query and key before the rotation."""
    key_smear: bool = False
    """k_t = (1 - s) k_t + s k_{t-1}, s = sigmoid(theta) a head, theta = 0 at the start (smeared keys, Olsson et al.
    2022)."""
    short_convolution: int = 0
    """K > 1: keys and values pass a causal depth-wise convolution over K positions, which starts as the identity; 0:
    none."""
    attention_scale: str = "constant"
    """constant: 1 / sqrt(D). log-n: times log n / log T, n the keys a query sees and T the training length, so that
    attention stays as sharp over longer contexts (arXiv 2202.12172)."""

    def validate(self) -> None:
        position, self.position = self.position, "none" if self.position == "alibi" else self.position
        try:
            super().validate()
        finally:
            self.position = position
        one_of("model.attention_scale", self.attention_scale, ("constant", "log-n"))
        expect(
            self.short_convolution == 0 or self.short_convolution >= 2,
            f"model.short_convolution={self.short_convolution}: expected 0 or at least 2 positions",
        )
        expect(
            not (self.key_smear and self.short_convolution),
            f"model.short_convolution={self.short_convolution}: smears keys already; expected 0 beside model.key_smear",
        )


class RivalAttention(Attention):
    """Causal attention with the fields of `TransformerRivalConfig`."""

    def __init__(self, config: TransformerRivalConfig) -> None:
        super().__init__(config.width, config.heads)
        self.config = config
        each = config.width // config.heads
        if config.qk_norm:
            self.query_norm, self.key_norm = RMSNorm(each), RMSNorm(each)
        if config.key_smear:
            self.smear = nn.Parameter(torch.zeros(config.heads))
        if config.short_convolution:
            kernel = torch.zeros(config.short_convolution, 2 * config.width)
            kernel[0] = 1
            self.convolution = nn.Parameter(kernel)

    def kernel(self) -> Tensor | None:
        """(K, 2d) weights with which the last K keys and values are mixed; None where they are not."""
        if self.config.short_convolution:
            return self.convolution
        if not self.config.key_smear:
            return None
        s = self.smear.sigmoid().repeat_interleave(self.config.width // self.heads)
        one = torch.ones_like(s)
        return torch.stack([torch.cat([1 - s, one]), torch.cat([s, 0 * one])])

    def prepare(
        self, x: Tensor, context: dict[str, Any], entry: RivalCache | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v (B, H, T, D) of new positions x (B, T, d); `entry` carries the keys and values still to be mixed
        in."""
        b, t, d = x.shape
        q, kv = self.qkv(x).split([d, 2 * d], dim=-1)
        if (kernel := self.kernel()) is not None:
            ids = context["documents"]
            if entry is not None:
                kv = kv if entry.tail is None else torch.cat([entry.tail, kv], dim=1)
                entry.tail = kv[:, 1 - kernel.shape[0] :].clone()
                ids = None if context["stored"] is None else context["stored"][:, -kv.shape[1] :]
            kv = causal_convolution(kv, kernel.to(kv.dtype), ids, t)
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in (q, *kv.split(d, dim=-1)))
        if self.config.qk_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        q, k = rotate(q, context["rotation"]), rotate(k, context["rotation"])
        if context["scale"] is not None:
            q = q * context["scale"].to(q.dtype)
        return q, k, v

    def forward(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        q, k, v = self.prepare(x, context)
        mask = context["mask"]
        read = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask if mask is None or mask.dtype == torch.bool else mask.to(q.dtype),
            is_causal=mask is None,
        )
        return self.output(read.transpose(1, 2).flatten(2))

    def step(self, x: Tensor, entry: AttentionCache, context: dict[str, Any]) -> Tensor:
        assert isinstance(entry, RivalCache)
        q, k, v = self.prepare(x, context, entry)
        return self.output(attention_step(q, k, v, entry, context, slopes=context["slopes"]).transpose(1, 2).flatten(2))

    def last_query_weights(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        q, k, _ = self.prepare(x, context)
        values = one_hot_values(x.shape[0], self.heads, x.shape[1], k)
        mask = None if context["mask"] is None else context["mask"][:, :, -1:]
        return F.scaled_dot_product_attention(q[:, :, -1:], k, values, attn_mask=mask)[:, :, 0]


@dataclass
class RivalCache(AttentionCache):
    """Beside the pairs, the last K - 1 keys and values (B, K-1, 2d) before mixing."""

    tail: Tensor | None = None


def slopes(heads: int, device: torch.device) -> Tensor:
    """ALiBi's slopes (H, 1, 1): 2^(-8/H), 2^(-16/H), ..."""
    return (2.0 ** (-8.0 / heads * torch.arange(1, heads + 1, device=device))).view(heads, 1, 1)


class TransformerRival(Transformer):
    """Transformer whose attention is `RivalAttention`."""

    Config: ClassVar[type[ModelConfig]] = TransformerRivalConfig

    @staticmethod
    def costs(config: Any, ask: Ask) -> dict[str, Cost]:
        counted = Transformer.costs(config, ask)
        small = 2 * (config.width // config.heads) * config.qk_norm + config.heads * config.key_smear
        small += 2 * config.width * config.short_convolution
        return {**counted, "variants": scalars(small * config.layers, ask)}

    def __init__(
        self, config: TransformerRivalConfig, vocabulary: int, length: int, generator: torch.Generator
    ) -> None:
        super().__init__(config, vocabulary, length, generator)
        for block in self.blocks:
            plain = block.attention
            block.attention = RivalAttention(config)  # type: ignore[assignment]
            block.attention.qkv, block.attention.output = plain.qkv, plain.output  # type: ignore[union-attr,assignment]
            block.init_cache = _init_cache  # type: ignore[assignment]

    def context(self, tokens_BT: Tensor, documents: Tensor | None, delay: int | None) -> dict[str, Any]:
        made: dict[str, Any] = {"documents": documents, "stored": documents, "rotation": None}
        visible = None if documents is None else same_document(documents).tril()
        if self.config.position == "rope":  # type: ignore[attr-defined]
            made["rotation"] = rotated(self.config, tokens_BT)
        t = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        if self.config.position == "alibi":  # type: ignore[attr-defined]
            past = (t[:, None] >= t)[None, None] if visible is None else visible
            far = slopes(self.config.heads, tokens_BT.device) * (t - t[:, None])
            visible = far.to(self.embedding.weight.dtype).masked_fill(~past, -torch.inf)
        made["mask"] = visible
        made["scale"] = self.scale(t, document_firsts(documents, len(t)))
        return made

    def step_context(self, context: dict[str, Any], tokens_BT: Tensor) -> dict[str, Any]:
        alibi = self.config.position == "alibi"  # type: ignore[attr-defined]
        if self.config.position == "rope":  # type: ignore[attr-defined]
            context = step_rotated(self.config, context, tokens_BT)
        else:
            context = {**context, "rotation": None, "first": context["first"]}
        t = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) + context["position"]
        context["slopes"] = slopes(self.config.heads, tokens_BT.device) if alibi else None
        return {**context, "scale": self.scale(t, context["first"])}

    def scale(self, t: Tensor, first: Tensor | None) -> Tensor | None:
        """log n / log T of queries at positions t (T,), (1, T, 1) or (B, 1, T, 1); `first` (B, T): where documents
        start."""
        if self.config.attention_scale == "constant":  # type: ignore[attr-defined]
            return None
        seen = (t + 1 if first is None else (t - first + 1).unsqueeze(1)).to(torch.float64)
        return (seen.log() / math.log(max(2, self.length))).unsqueeze(-1)


def _init_cache(cache: Any) -> RivalCache:
    from mmctl.models.cache import Pairs

    return RivalCache(Pairs(capacity=cache.capacity))
