"""The model as training takes it: blocks that recompute their activations, or that are compiled. Names stay as they
are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmctl.models.base import Model
    from mmctl.training.config import TrainingConfig


def prepare(model: Model, config: TrainingConfig) -> Model:
    """Apply training.activation_checkpointing and training.compile, block by block, before parameters are divided.

    A block's forward is replaced on the instance: no wrapper comes into the names of the parameters, so checkpoints are
    those of the plain model.
    """
    from torch.utils.checkpoint import checkpoint

    for block in model.blocks:
        if config.activation_checkpointing:
            # Nothing in a block is random, so there is no generator to put back.
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)  # type: ignore[method-assign]
        if config.compile:
            block.compile()  # type: ignore[operator]
    return model
