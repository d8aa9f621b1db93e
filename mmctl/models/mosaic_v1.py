"""Memory Mosaics v1 (arXiv 2405.06394): one contextual memory and one slot-based persistent memory in every block.

Scalars are stored divided by 10 ("exp scaling", as in the official code, which so raises their learning rate).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmctl.errors import MmctlError
from mmctl.kernels import key_scan, memory_attention, value_extract
from mmctl.models.base import Model, one_hot_values
from mmctl.models.config import ModelConfig
from mmctl.models.flops import Ask, Cost, dense, ends, memory_read, scalars, scan, slots

EXP_SCALING = 10.0
MAX_LOG_SCALE = math.log(2**16 - 1)
"""Clamp of a key's log scale in the official code (the largest that fits in fp16)."""


@dataclass
class MosaicV1Config(ModelConfig):
    """Memory Mosaics v1, as the official code has it. Classifier and embedding are one matrix."""

    name: str = "mosaic-v1"
    persistent_slots: int = 448
    """N_p, learned (key, value) slots a head in the persistent memory (448 in the authors' RegBench, 2688 at GPT-2 size)."""
    persistent_count: int = 1
    """Banks of persistent slots, read one by one and averaged."""

    def validate(self) -> None:
        super().validate()
        self._at_least_one("persistent_slots")
        self._at_least_one("persistent_count")


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

    def forward(self, x: Tensor, documents: Tensor | None) -> Tensor:
        b, t, d = x.shape
        projected = self.projection(x).view(b, t, self.heads, d // self.heads).transpose(1, 2)
        log_decay = -(EXP_SCALING * self.theta_decay).abs().view(1, -1, 1).expand(b, self.heads, t)
        return key_scan(projected, torch.zeros_like(log_decay), log_decay, documents=documents)


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
        b, t, d = x.shape
        documents = context["documents"]
        keys = self.key(x, documents)
        psi = self.value(x).view(b, t, self.heads, d // self.heads).transpose(1, 2)
        values = value_extract(psi, self.gamma, (EXP_SCALING * self.theta_value).exp(), documents=documents)
        read = memory_attention(keys, values, self.bandwidth(), delay=1, documents=documents)
        return self.output(read.transpose(1, 2).reshape(b, t, d))

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
        b, t, d = x.shape
        scale = (2 * EXP_SCALING * self.key.kappa).clamp(max=MAX_LOG_SCALE).exp()
        keys = self.key(x, documents)
        query = keys * scale.view(1, -1, 1, 1).to(keys.dtype)
        reads = [
            F.scaled_dot_product_attention(
                query, k.to(query.dtype).expand(b, -1, -1, -1), v.to(query.dtype).expand(b, -1, -1, -1), scale=1.0
            )
            for k, v in zip(self.slot_keys, self.slot_values, strict=True)
        ]
        read = torch.stack(reads).mean(0) * (EXP_SCALING * self.theta_output).exp().view(1, -1, 1, 1)
        return self.output(read.transpose(1, 2).reshape(b, t, d))


class MosaicV1Block(nn.Module):
    """x += contextual(norm(x)); x += persistent(norm(x)), with bias-free LayerNorms."""

    def __init__(self, config: MosaicV1Config) -> None:
        super().__init__()
        self.memory_norm = BiasFreeLayerNorm(config.width)
        self.memories = ContextualMemory(config.width, config.heads)
        self.persistent_norm = BiasFreeLayerNorm(config.width)
        self.persistent = SlotMemory(config.width, config.heads, config.persistent_slots, config.persistent_count)

    def forward(self, x: Tensor, context: dict[str, Any]) -> Tensor:
        x = x + self.memories(self.memory_norm(x), context)
        return x + self.persistent(self.persistent_norm(x), context["documents"])

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
        self.blocks.extend(MosaicV1Block(config) for _ in range(config.layers))
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


OFFICIAL_NAMES = {
    "lm_head.weight": "embedding.weight",  # tied: one matrix, which torch names by its first owner
    "mosaic.ln_f.weight": "norm.weight",
    "ln_1.weight": "memory_norm.weight",
    "ln_2.weight": "persistent_norm.weight",
    "attn.k_featurizer.W_k.weight": "memories.key.projection.weight",
    "attn.k_featurizer.leaky_avg.leaky_key_beta": "memories.key.theta_decay",
    "attn.k_featurizer.key_scale": "memories.key.kappa",
    "attn.v_featurizer.W_v.weight": "memories.value.weight",
    "attn.v_featurizer.coef": "memories.gamma",
    "attn.v_featurizer.val_scale": "memories.theta_value",
    "attn.c_proj.weight": "memories.output.weight",
    "mlp.k_featurizer.W_k.weight": "persistent.key.projection.weight",
    "mlp.k_featurizer.leaky_avg.leaky_key_beta": "persistent.key.theta_decay",
    "mlp.k_featurizer.key_scale": "persistent.key.kappa",
    "mlp.P_k": "persistent.slot_keys",
    "mlp.P_v": "persistent.slot_values",
    "mlp.out_scale": "persistent.theta_output",
    "mlp.c_proj.weight": "persistent.output.weight",
}
"""Official parameter names (without the "mosaic.h.N." of a block) and ours."""


def official_to_ours(name: str) -> str | None:
    """Our name of an official parameter; None for its derived buffers (masks, decay tables)."""
    name = name.replace("mosaic.wte.weight", "lm_head.weight")
    prefix = ""
    if name.startswith("mosaic.h."):
        layer, _, name = name.removeprefix("mosaic.h.").partition(".")
        prefix = f"blocks.{layer}."
    return prefix + OFFICIAL_NAMES[name] if name in OFFICIAL_NAMES else None


def load_official_v1(path: str | Path) -> MosaicV1:
    """Official v1 weights (safetensors, names as that code has them, an optional "param." prefix) as our module.

    The file's metadata holds the official configuration as JSON under "config" (n_layer, n_head, n_embd, pmem_size,
    pmem_count, vocab_size). Returns a float32 module with `model(tokens) -> logits`. MmctlError in one line when the
    file is not such a checkpoint.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            stored = {k.removeprefix("param."): file.get_tensor(k) for k in _parameters(file.keys())}
    except (OSError, SafetensorError) as error:
        raise MmctlError(f"{path}: not a readable safetensors file ({str(error).splitlines()[0]})") from None
    if "config" not in metadata:
        raise MmctlError(f'{path}: no "config" in the metadata; expected the official v1 configuration as JSON')
    try:
        official = json.loads(metadata["config"])
        config = MosaicV1Config(
            layers=official["n_layer"],
            heads=official["n_head"],
            width=official["n_embd"],
            persistent_slots=official["pmem_size"],
            persistent_count=official["pmem_count"],
        )
        vocabulary, length = int(official["vocab_size"]), int(official.get("block_size", 1024))
    except (ValueError, KeyError, TypeError) as error:
        raise MmctlError(f"{path}: the official configuration lacks or garbles {error}") from None
    if any(k.endswith(".bias") and official_to_ours(k) is None and "weight" not in k for k in stored if "c_proj" in k):
        raise MmctlError(f"{path}: weights with biases; expected the official bias=False configuration")
    model = MosaicV1(config, vocabulary, length, torch.Generator().manual_seed(0))
    own = dict(model.named_parameters())
    found = {ours: tensor for k, tensor in stored.items() if (ours := official_to_ours(k)) is not None}
    missing = sorted(set(own) - set(found))
    if missing:
        raise MmctlError(f"{path}: parameter {missing[0]} is missing (and {len(missing) - 1} more)")
    with torch.no_grad():
        for name, tensor in found.items():
            if own[name].numel() != tensor.numel():
                raise MmctlError(f"{path}: {name} has {tensor.numel()} numbers; expected {own[name].numel()}")
            own[name].copy_(tensor.reshape(own[name].shape))
    return model


def _parameters(keys: Iterable[str]) -> list[str]:
    names = list(keys)
    prefixed = [k for k in names if k.startswith("param.")]
    return prefixed or [k for k in names if not k.startswith("grad.")]
