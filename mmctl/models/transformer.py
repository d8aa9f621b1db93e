"""The transformer both papers compare with: llama architecture (RoPE, multi-head attention, RMSNorm, SwiGLU)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmctl.models.attention_cache import AttentionCache, attention_step
from mmctl.models.base import Model, RMSNorm, SwiGLU, block_std, clipped_normal_, one_hot_values
from mmctl.models.cache import Cache, Pairs
from mmctl.models.config import FeedForwardConfig, ModelConfig, expect, one_of
from mmctl.models.flops import Ask, Cost, attention, dense, ends, scalars, swiglu


@dataclass
class TransformerConfig(FeedForwardConfig):
    """Llama-style transformer, same d, H, d', data and schedule as the mosaic it is compared with."""

    name: str = "transformer"
    position: str = "rope"
    """rope: rotary position encoding; none: no position encoding (NoPE)."""
    rope_base: float = 10_000.0
    """Base of the rotary frequencies."""
    initialisation: str = "llama"
    """llama: deviation 1/sqrt(fan-in), the projections into the residual stream divided by sqrt(2(l+1)); mosaic: the
    deviations of memory mosaics v2 in every matrix. The papers do not state the baseline's: our choice."""

    def validate(self) -> None:
        super().validate()
        validate_attention(self)


def validate_attention(config: Any) -> None:
    """Checks shared by the transformers."""
    one_of("model.position", config.position, ("rope", "none"))
    one_of("model.initialisation", config.initialisation, ("llama", "mosaic"))
    expect(config.rope_base > 1, f"model.rope_base={config.rope_base}: expected more than 1")
    if config.position == "rope" and (config.width // config.heads) % 2:
        expect(
            False,
            f"model.heads={config.heads}: rotary encoding needs an even head width, not {config.width // config.heads}",
        )


def rotations(positions: Tensor, head_width: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin (..., T, D) of the rotary angles at positions (..., T), in float64 (far positions need it), halves
    side by side (as in llama)."""
    frequency = base ** (-torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float64) / head_width)
    angle = positions.to(torch.float64)[..., None] * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x_BHTD: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
    """RoPE: rotate each pair (x_j, x_{j+D/2}) by its angle."""
    if rotation is None:
        return x_BHTD
    cos, sin = rotation
    first, second = x_BHTD.chunk(2, dim=-1)
    return x_BHTD * cos.to(x_BHTD.dtype) + torch.cat([-second, first], dim=-1) * sin.to(x_BHTD.dtype)


def rotated(config: Any, tokens_BT: Tensor) -> tuple[Tensor, Tensor] | None:
    """Rotations for one pass; None without position encoding. Relative, so documents need no restart."""
    if config.position == "none":
        return None
    positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
    return rotations(positions, config.width // config.heads, config.rope_base)


def step_rotated(config: Any, context: dict[str, Any], tokens_BT: Tensor) -> dict[str, Any]:
    """A step's context (`Cache.admit`) with rotations.

    Positions count from the start of the document, so that what stands before a document (padding) cannot touch even
    its rounding.
    """
    first, rotation = context["first"], None
    if config.position != "none":
        positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) + context["position"]
        if first is not None:
            positions = (positions - first).unsqueeze(1)  # (B, 1, T), the same for all heads
        rotation = rotations(positions, config.width // config.heads, config.rope_base)
    return {**context, "rotation": rotation}


def same_document(documents_BT: Tensor) -> Tensor:
    """Mask (B, 1, T, T): true where query and key are of one document."""
    return (documents_BT[:, :, None] == documents_BT[:, None, :]).unsqueeze(1)


class Attention(nn.Module):
    """Causal multi-head attention through torch SDPA."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def project(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return rotate(q, rotation), rotate(k, rotation), v

    def forward(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.project(x, context["rotation"])
        mask = context["mask"]
        read = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.output(read.transpose(1, 2).reshape(b, t, d))

    def step(self, x: Tensor, entry: AttentionCache, context: dict[str, Any]) -> Tensor:
        """`forward` over new positions x (B, T, d), with cached keys and values."""
        read = attention_step(*self.project(x, context["rotation"]), entry, context)
        return self.output(read.transpose(1, 2).flatten(2))

    def last_query_weights(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        q, k, _ = self.project(x, context["rotation"])
        values = one_hot_values(x.shape[0], self.heads, x.shape[1], k)
        return F.scaled_dot_product_attention(q[:, :, -1:], k, values)[:, :, 0]


class TransformerBlock(nn.Module):
    """x += attention(norm(x)); x += feed_forward(norm(x))."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width)
        self.attention = Attention(config.width, config.heads)
        self.persistent_norm = RMSNorm(config.width)
        self.persistent = SwiGLU(config.width, config.ffn_width)

    def forward(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        x = x + self.attention(self.attention_norm(x), context)
        return x + self.persistent(self.persistent_norm(x))

    def init_cache(self, cache: Cache) -> AttentionCache:
        return AttentionCache(Pairs(capacity=cache.capacity))

    def step(self, x: Tensor, entry: AttentionCache, context: dict[str, Any]) -> Tensor:
        x = x + self.attention.step(self.attention_norm(x), entry, context)
        return x + self.persistent(self.persistent_norm(x))

    def last_query_weights(self, x: Tensor, context: dict[str, Any]) -> dict[str, Tensor]:
        return {"attention": self.attention.last_query_weights(self.attention_norm(x), context)}


def initialise(model: Model, config: Any, generator: torch.Generator) -> None:
    """Weights of a transformer's embedding, classifier and blocks, by `config.initialisation`."""
    mosaic = config.initialisation == "mosaic"
    outer = 1.0 / math.sqrt((2 if mosaic else 1) * config.width)
    clipped_normal_(model.embedding.weight, outer, generator)
    clipped_normal_(model.classifier.weight, outer, generator)
    for layer, block in enumerate(model.blocks):
        for name, weight in block.named_parameters():
            if weight.dim() != 2:
                continue
            into_residual = name.endswith(("output.weight", "down.weight"))
            # The paper gives W_o, whose fan-in is 2d, the deviation of width d: fan-in here is the block's width.
            fan_in = config.ffn_width if name.endswith("down.weight") else config.width
            deep = mosaic or into_residual
            clipped_normal_(weight, block_std(fan_in, layer) if deep else fan_in**-0.5, generator)


class Transformer(Model):
    """Llama-style transformer."""

    Config: ClassVar[type[ModelConfig]] = TransformerConfig

    @staticmethod
    def costs(config: Any, ask: Ask) -> dict[str, Cost]:
        d, layers = config.width, config.layers
        heads = dense(d, 3 * d) + dense(d, d) + attention(ask, d, config.heads)
        return {
            "attention": heads * layers,
            "persistent": swiglu(d, config.ffn_width) * layers,
            "norms": scalars((2 * layers + 1) * d, ask),
            **ends(d, ask),
        }

    def __init__(self, config: TransformerConfig, vocabulary: int, length: int, generator: torch.Generator) -> None:
        super().__init__(config, vocabulary, length)
        self.blocks.extend(TransformerBlock(config) for _ in range(config.layers))
        initialise(self, config, generator)

    def context(self, tokens_BT: Tensor, documents: Tensor | None, delay: int | None) -> dict[str, Any]:
        mask = None
        if documents is not None:
            mask = same_document(documents).tril()
        return {"rotation": rotated(self.config, tokens_BT), "mask": mask}

    def step_context(self, context: dict[str, Any], tokens_BT: Tensor) -> dict[str, Any]:
        return step_rotated(self.config, context, tokens_BT)
