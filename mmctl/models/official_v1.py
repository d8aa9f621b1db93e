"""Loading weights of the official Memory Mosaics v1 code into our module."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch

from mmctl.errors import MmctlError, UsageError
from mmctl.models import flops
from mmctl.models.mosaic_v1 import MosaicV1, MosaicV1Config

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
        config.validate()
        asked = flops.parameters(config, vocabulary)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise MmctlError(f"{path}: the official configuration lacks or garbles {error}") from None
    have = sum(tensor.numel() for tensor in stored.values())
    if asked > have:  # before a model of that size is made
        raise MmctlError(
            f"{path}: its configuration needs {asked:,} parameters, its tensors hold {have:,}: some missing"
        )
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
