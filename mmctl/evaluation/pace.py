"""PaceLLM's activation memory and cortical experts as an evaluation-time change (models/pace.py has the method)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mmctl.evaluation.changes import Change, Notes
from mmctl.models.pace import PaceSettings, paced


@dataclass(frozen=True)
class Pace(PaceSettings, Change):
    """The settings of PaceSettings: the paper's by default."""

    def check(self, config: Any) -> None:
        import torch

        from mmctl import models

        with torch.device("meta"):
            self.validate(models.build(config))

    @contextlib.contextmanager
    def applied(self, model: Any, config: Any) -> Iterator[Notes]:
        with paced(model, self) as counts:
            hidden = {layer: model.blocks[layer].persistent.hidden for layer in counts}
            yield lambda: {
                f"layer{layer}": {**found.record(), "flops_per_token": self.flops_per_token(hidden[layer])}
                for layer, found in counts.items()
            }
