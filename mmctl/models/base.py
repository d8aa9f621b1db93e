"""What every model has in common: embedding, blocks, classifier, and the laboratory's hooks.

Shape suffixes: B sequences, T tokens, d width, H heads, D head width, V vocabulary.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmctl.errors import MmctlError, UsageError
from mmctl.models.cache import Cache
from mmctl.models.config import ModelConfig
from mmctl.models.dropout import Noise
from mmctl.models.flops import Ask, Cost

PREFILL_CHUNK = 1024
"""Tokens of a prompt taken at once: what a chunk needs beside the stored pairs does not grow with the prompt."""


def clipped_normal_(weight: Tensor, std: float, generator: torch.Generator | None) -> None:
    """Gaussian of deviation `std`, truncated at 3 deviations (memory-mosaics.md, section 7)."""
    if weight.is_meta:
        return
    nn.init.trunc_normal_(weight, mean=0.0, std=std, a=-3 * std, b=3 * std, generator=generator)


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in float32 whatever the autocast dtype, eps 1e-5."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


class SwiGLU(nn.Module):
    """Persistent memory of v2 and feed-forward of the transformer: W_2(SiLU(W_1 x) * W_3 x), width d'."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)  # W_1 and W_3 as one product
        self.down = nn.Linear(hidden, width, bias=False)  # W_2

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).split(self.hidden, dim=-1)
        return self.down(F.silu(gate) * up)


class Model(nn.Module):
    """A sequence model: tokens (B, T) to logits (B, T, V). Subclasses give the blocks and their initialisation."""

    Config: ClassVar[type[ModelConfig]] = ModelConfig
    has_long_term: ClassVar[bool] = False

    @staticmethod
    def costs(config: Any, ask: Ask) -> dict[str, Cost]:
        """Parameters and forward FLOPs per token by part, from the configuration alone (mmctl.models.flops).

        Every model counts itself here, beside the modules it counts; their sum is what `parameters()` has.
        """
        raise NotImplementedError

    def __init__(self, config: ModelConfig, vocabulary: int, length: int) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.length = length
        self.embedding = nn.Embedding(vocabulary, config.width)
        self.blocks = nn.ModuleList()
        self.norm: nn.Module = RMSNorm(config.width)
        self.classifier = nn.Linear(config.width, vocabulary, bias=False)
        self.long_term_removed = False
        self.delay_override: int | None = None
        self.noise: Noise | None = None
        """What this training pass draws its dropout from; None (outside of training) drops nothing."""

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        documents: Tensor | None = None,
        delay: int | None = None,
        labelled: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V), or (N, V) at the N positions where `labelled` (B, T) is true, in row order.

        documents: (B, T) non-decreasing int32 ids; nothing is read across a boundary. delay: this training step's m;
        None reads with the model's m at inference. Models without long-term memory ignore it.
        """
        x = self.hidden(tokens_BT, documents=documents, delay=delay)
        if labelled is not None:
            x = x[labelled]
        return self.classifier(self.norm(x))

    def hidden(self, tokens_BT: Tensor, *, documents: Tensor | None = None, delay: int | None = None) -> Tensor:
        """Residual stream (B, T, d) after the last block, before the final norm."""
        context = self.context(tokens_BT, documents, delay)
        x = self.embedding(tokens_BT)
        for block in self.blocks:
            x = block(x, context)
        return x

    def context(self, tokens_BT: Tensor, documents: Tensor | None, delay: int | None) -> dict[str, Any]:
        """What all blocks share in one pass: documents, this pass's m, masks, rotations."""
        if delay is None:
            delay = self.delay_override or getattr(self.config, "inference_delay", None)
        common = {"documents": documents, "delay": delay, "remove_long_term": self.long_term_removed}
        return {**common, "noise": self.noise}

    def init_cache(self, batch: int, capacity: int = 0) -> Cache:
        """An empty cache for `batch` sequences, with room for `capacity` tokens at once (more are taken all the same).

        Long-term reads follow the m, and the removal, that are in force now. Every block has `init_cache(cache)`, which
        gives its entry of `cache.layers`, and `step(x, entry, context)`, which is its forward pass over new positions.
        MmctlError for a model whose blocks lack them.
        """
        if not all(hasattr(block, "init_cache") and hasattr(block, "step") for block in self.blocks):
            raise MmctlError(f'model "{self.config.name}" cannot decode: its blocks have no init_cache and step')
        delay = self.delay_override or getattr(self.config, "inference_delay", None)
        cache = Cache(batch, delay, self.long_term_removed, capacity)
        cache.layers = [block.init_cache(cache) for block in self.blocks]  # type: ignore[operator]
        return cache

    @torch.inference_mode()
    def step(
        self,
        tokens_BT: Tensor,
        cache: Cache,
        *,
        documents: Tensor | None = None,
        labelled: Tensor | None = None,
    ) -> Tensor:
        """Logits of tokens (B, T) that follow what the cache holds, as `forward` over all of them would give.

        documents: (B, T) ids that go on from those before; None continues each row's last document. Shapes and
        `labelled` as in `forward`.
        """
        x = self.advance(tokens_BT, cache, documents)
        if labelled is not None:
            x = x[labelled]
        return self.classifier(self.norm(x))

    @torch.inference_mode()
    def prefill(
        self, tokens_BT: Tensor, cache: Cache, *, documents: Tensor | None = None, chunk: int = PREFILL_CHUNK
    ) -> Tensor:
        """Take a prompt (B, T), `chunk` tokens at a time; logits (B, V) after its last token."""
        for first in range(0, tokens_BT.shape[1], chunk):
            part = slice(first, first + chunk)
            x = self.advance(tokens_BT[:, part], cache, None if documents is None else documents[:, part])
        return self.classifier(self.norm(x[:, -1]))

    def advance(self, tokens_BT: Tensor, cache: Cache, documents: Tensor | None) -> Tensor:
        """`hidden` of new tokens: residual stream (B, T, d), with the cache brought up to them."""
        context = self.step_context(cache.admit(tokens_BT, documents), tokens_BT)
        x = self.embedding(tokens_BT)
        for block, entry in zip(self.blocks, cache.layers, strict=True):
            x = block.step(x, entry, context)  # type: ignore[operator]
        return x

    def step_context(self, context: dict[str, Any], tokens_BT: Tensor) -> dict[str, Any]:
        """What all blocks share in one step: what the cache says of the new tokens (`Cache.admit`), and rotations."""
        return context

    def sample_delay(self, generator: np.random.Generator) -> int | None:
        """This training step's m, the same for every layer; None for a model without long-term memory."""
        config: Any = self.config
        if not self.has_long_term or not hasattr(config, "delay_min"):
            return None
        if config.long_term_mask == "fixed":
            return int(config.delay_min)
        return int(generator.integers(config.delay_min, config.delay_max + 1))

    @contextlib.contextmanager
    def evaluation_changes(self, *, remove_long_term: bool = False, delay: int | None = None) -> Iterator[None]:
        """Evaluation-time ablations, undone on leaving: drop the long-term memories' outputs, read with another m."""
        asked = "remove-long-term" if remove_long_term else f"m={delay}"
        if (remove_long_term or delay is not None) and not self.has_long_term:
            raise UsageError(f'{asked}: model "{self.config.name}" has no long-term memory to change')
        if remove_long_term and not getattr(self.config, "short_term", True):
            raise UsageError(f"{asked}: the model has only long-term memory; nothing would be left")
        if delay is not None and delay < 1:
            raise UsageError(f"m={delay}: expected a whole number of at least 1")
        before = self.long_term_removed, self.delay_override
        self.long_term_removed, self.delay_override = remove_long_term, delay
        try:
            yield
        finally:
            self.long_term_removed, self.delay_override = before

    @torch.no_grad()
    def last_query_weights(self, tokens_BT: Tensor) -> dict[str, Tensor]:
        """Attention (B, H, T) of the last query on every position, per "layerL/memory", by the model's own operations.

        Reading one-hot values instead of the stored ones makes an operation's output its weights.
        """
        context = self.context(tokens_BT, None, None)
        x = self.embedding(tokens_BT)
        weights: dict[str, Tensor] = {}
        for layer, block in enumerate(self.blocks):
            for memory, w in block.last_query_weights(x, context).items():  # type: ignore[operator]
                weights[f"layer{layer}/{memory}"] = w
            x = block(x, context)
        return weights

    def diagnostics(self) -> dict[str, float]:
        """Learned quantities worth a curve, such as the bandwidth's alpha."""
        return {}

    def parameter_count(self) -> int:
        """Number of distinct trained scalars."""
        return sum(p.numel() for p in self.parameters())

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """AdamW groups: only matrices decay (memory-mosaics.md, section 7)."""
        decayed = [p for p in self.parameters() if p.dim() >= 2 and p.shape[-2:] != (1, 1)]
        kept = [p for p in self.parameters() if not (p.dim() >= 2 and p.shape[-2:] != (1, 1))]
        return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


def block_std(width: int, layer: int) -> float:
    """1 / sqrt(2 width (l + 1)), l from 0: the paper's deviation inside block l (Table 6)."""
    return 1.0 / math.sqrt(2 * width * (layer + 1))


def one_hot_values(batch: int, heads: int, length: int, like: Tensor) -> Tensor:
    """Values (B, H, T, T) whose read-out is the attention weights themselves."""
    return torch.eye(length, device=like.device, dtype=like.dtype).expand(batch, heads, length, length)
