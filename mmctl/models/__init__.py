"""Registry of models: a new model is one file and one line here. Importing this package does not import torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mmctl.errors import UsageError, nearest

if TYPE_CHECKING:
    from mmctl.config import Config
    from mmctl.models.base import Model

MODELS: dict[str, str | type] = {
    "mosaic-v2": "mmctl.models.mosaic_v2:MosaicV2",
    "mosaic-v1": "mmctl.models.mosaic_v1:MosaicV1",
    "mamba2": "mmctl.models.mamba2:Mamba2",
    "transformer": "mmctl.models.transformer:Transformer",
    "transformer-rival": "mmctl.models.transformer_rival:TransformerRival",
    "transformer-masks": "mmctl.models.transformer_masks:TransformerMasks",
}
"""Name -> "module:Class"; plugins add their classes themselves (mmctl/plugins.py)."""


def model_class(name: str) -> Any:
    """The model's class. UsageError with the nearest name when there is none."""
    if name not in MODELS:
        raise UsageError(f'model.name="{name}": no such model{nearest(name, MODELS, "models")}')
    found = MODELS[name]
    if isinstance(found, type):
        return found
    module, _, attribute = found.partition(":")
    return getattr(importlib.import_module(module), attribute)


def config_class(name: str) -> Any:
    """The dataclass of the model's configuration, which lives in the model's own file."""
    return model_class(name).Config


def build(config: Config, seed: int | None = None) -> Model:
    """A freshly initialised model for `config`; weights are a function of the configuration and the seed only."""
    import torch

    generator = torch.Generator().manual_seed(config.seed if seed is None else seed)
    return model_class(config.model.name)(config.model, config.data.vocabulary, config.data.length, generator)


def __getattr__(name: str) -> Any:
    if name == "load_official_v1":
        from mmctl.models.official_v1 import load_official_v1

        return load_official_v1
    raise AttributeError(name)
