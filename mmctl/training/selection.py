"""Choosing the weights by a validation score: sequences that neither training nor any reported number uses.

The best weights so far are part of every checkpoint (group "best"), so a resumed run chooses as one that never stopped,
and whatever keeps a run's last checkpoint keeps its best weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmctl.config import Config
from mmctl.data import build_task
from mmctl.data.task import Ratio
from mmctl.errors import MmctlError
from mmctl.evaluation.scoring import score
from mmctl.evaluation.validation import sequences
from mmctl.models.base import Model
from mmctl.training.config import selected
from mmctl.training.ranks import ALONE, Ranks

BATCH_TOKENS = 16384
"""Most tokens in one forward pass (at least one sequence); cannot change a score."""


class Selection:
    """The best weights so far by training.select; does nothing where that is null.

    Sequences depend on (seed, task, length) only: arms with the same seed are validated on the same ones.
    """

    def __init__(self, config: Config, resumed: Mapping[str, Any] | None = None) -> None:
        """resumed: a checkpoint's payload, to go on from."""
        t = config.training
        self.config = t
        self.active = t.select is not None
        self.weights: dict[str, Tensor] | None = None
        self.state: dict[str, Any] = {"step": None, "score": None, "reached": None}
        """Step and score of the best weights; the first step whose score reached training.select_target."""
        if not self.active:
            return
        name, self.score = selected(t.select)
        self.task = build_task(name, config.data)
        self.batches = sequences(self.task, config.seed, config.data.length, t.select_examples)
        if resumed is not None:
            self.state = dict(resumed["state"]["selection"])
            self.weights = resumed["tensors"].get("best")

    def due(self, step: int) -> bool:
        """Whether `step` is one to validate: every select_every-th, and the last."""
        return self.active and (step % self.config.select_every == 0 or step == self.config.steps)

    def validate(self, step: int, model: Model, device: torch.device, ranks: Ranks = ALONE) -> dict[str, float]:
        """Measure the weights of `step`, keep them if they are the best so far; {"validation/<task>/<score>": value}.

        Among equals the earliest stays. A score that is not finite is none.
        """
        ratio = self._measure(model, device)
        value = float(ranks.agree(ratio.value))
        sign = 1.0 if ratio.accuracy else -1.0  # of losses and distances the lowest is best
        best, target = self.state["score"], self.config.select_target
        found = {f"validation/{self.config.select}": value}
        if not math.isfinite(value):
            return found
        if best is None or sign * value > sign * best:
            self.state |= {"step": step, "score": value}
            self.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        if target is not None and self.state["reached"] is None and sign * value >= sign * target:
            self.state["reached"] = step
        return found

    def _measure(self, model: Model, device: torch.device) -> Ratio:
        """The score over all validation sequences, in float32 and at the model's m at inference, as it is evaluated."""
        was_training = model.training
        model.eval()
        with torch.no_grad():  # not inference mode: what divided parameters put together must stay fit for training
            ratio = score(model, self.task, self.batches, device, BATCH_TOKENS)[self.score]
        model.train(was_training)
        if not ratio.count.any():
            raise MmctlError(
                f"training.select={self.config.select}: none of the {self.config.select_examples} validation sequences has "
                "this score"
            )
        return ratio

    @property
    def done(self) -> bool:
        """Whether training.select_stop ends the training."""
        return self.config.select_stop and self.state["reached"] is not None

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint keeps."""
        return {} if self.weights is None else {"best": self.weights}

    def restore(self, model: Model) -> None:
        """Give the model the best weights, for everything that is measured from now on."""
        if self.weights is not None:
            model.load_state_dict(self.weights)

    def result(self) -> dict[str, Any]:
        """What result.json says about the choice."""
        return {"selected": {"by": self.config.select, **self.state}} if self.active else {}


def diagnostics(result: Mapping[str, Any]) -> dict[str, float]:
    """The choice as metrics of the run: `selected-step`, `validation-score`, and `steps-to-target` where it was
    reached."""
    state = result.get("selected") or {}
    names = {"selected-step": "step", "validation-score": "score", "steps-to-target": "reached"}
    return {name: float(state[key]) for name, key in names.items() if state.get(key) is not None}
