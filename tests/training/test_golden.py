"""Golden losses: a change of data, initialisation, operations, schedule or optimizer shows here first.

A deliberate change of numbers replaces them, and says why in its commit. The tolerance covers other processors.
"""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_overrides

from mmctl import models
from mmctl.config import load
from mmctl.training.loop import Hooks, train

GOLDEN = {
    "mosaic-v2": [6.67042, 6.60157, 6.56075, 6.02903],
    "mosaic-v1": [6.25203, 6.21522, 6.18917, 6.19595],
    "transformer": [7.03333, 6.91153, 7.26086, 6.75491],
    "transformer-masks": [6.82048, 6.92173, 6.8898, 6.61654],
}
"""Losses at steps 1, 4, 8 and 12 of the tiny run, one thread, float32."""


@pytest.mark.parametrize("model", GOLDEN)
def test_losses_of_a_short_run(model: str) -> None:
    fields = {f"model.{name}" for name in models.config_class(model).__dataclass_fields__}
    words = [w for w in tiny_overrides() if not w.startswith("model.") or w.partition("=")[0] in fields]
    config = load("smoke", [*words, f"model.name={model}"])
    config.operation.log_every = 1
    losses: list[float] = []
    torch.set_num_threads(1)
    hooks = Hooks(metrics=lambda step, values: losses.append(values["loss"]))
    train(models.build(config), config, torch.device("cpu"), hooks)
    assert [losses[i] for i in (0, 3, 7, 11)] == pytest.approx(GOLDEN[model], rel=2e-4)
