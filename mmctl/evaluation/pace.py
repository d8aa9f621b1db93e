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
        self.validate(_unfilled(config))

    def added_flops(self, config: Any) -> int:
        model = _unfilled(config)
        blocks: list[Any] = [model.blocks[layer] for layer in self.validate(model)]
        return sum(self.flops_per_token(block.persistent.hidden) for block in blocks)

    @contextlib.contextmanager
    def applied(self, model: Any, config: Any) -> Iterator[Notes]:
        with paced(model, self) as counts:
            hidden = {layer: model.blocks[layer].persistent.hidden for layer in counts}
            yield lambda: {
                f"layer{layer}": {**found.record(), "flops_per_token": self.flops_per_token(hidden[layer])}
                for layer, found in counts.items()
            }


def _unfilled(config: Any) -> Any:
    """The model without its numbers."""
    import torch

    from mmctl import models

    with torch.device("meta"):
        return models.build(config)
