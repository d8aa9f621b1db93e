"""Small models of every architecture and axis that decoding has to follow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmctl.models import model_class
from mmctl.models.base import Model

AXES: dict[str, dict[str, Any]] = {
    "mosaic-v2": {},
    "constant": {"bandwidth": "constant"},
    "matched": {"bandwidth": "constant-matched"},
    "fixed-key": {"key_extractor": "fixed"},
    "delay-alone": {"delay": 20},
    "long-only": {"short_term": False},
    "short-only": {"long_term": False},
    "no-look-ahead": {"value_look_ahead": False},
    "mosaic-v1": {"name": "mosaic-v1"},
    "two-banks": {"name": "mosaic-v1", "persistent_count": 2},
    "transformer": {"name": "transformer"},
    "nope": {"name": "transformer", "position": "none"},
    "masks": {"name": "transformer-masks"},
    "mamba2": {"name": "mamba2"},
    "rival-smear": {"name": "transformer-rival", "key_smear": True, "qk_norm": True},
    "rival-alibi": {"name": "transformer-rival", "short_convolution": 3, "position": "alibi"},
    "rival-log-n": {"name": "transformer-rival", "position": "none", "attention_scale": "log-n"},
}
SIZES = {
    "layers": 2,
    "width": 32,
    "heads": 2,
    "ffn_width": 48,
    "window": 24,
    "delay_min": 8,
    "delay_max": 24,
    "persistent_slots": 32,
    "state": 8,
}
VOCABULARY = 300


def small_model(axis: str, dtype: torch.dtype = torch.float64, spread: float = 0.08) -> Model:
    """A model away from its symmetric start, where some faults cancel; h = 24, m = 8."""
    changes = AXES[axis]
    found = model_class(changes.get("name", "mosaic-v2"))
    sizes = {k: v for k, v in SIZES.items() if k in found.Config.__dataclass_fields__}
    model = found(found.Config(**{**sizes, **changes}), VOCABULARY, 64, torch.Generator().manual_seed(0)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(spread * torch.randn(parameter.shape, generator=generator))
    return model.to(dtype)


def random_tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
