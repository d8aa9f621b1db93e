"""Fine-tuning at a longer context, as an evaluation-time change: how few steps does a trained model need there?

Memory Mosaics v2 (arXiv 2507.03285) is trained at 4k and fine-tuned at 32k: one step brings 22 points, two suffice. How
the paper fine-tunes (optimiser, rate, batch) is not stated; what stands here is this laboratory's choice, and no
setting of it was searched.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args
from weakref import WeakKeyDictionary

from mmctl.data.task import Split
from mmctl.errors import MmctlError, UsageError
from mmctl.evaluation.changes import Change, Notes

if TYPE_CHECKING:
    from torch import Tensor

    from mmctl.models.base import Model

STREAM = zlib.crc32(b"fine-tuning")
"""Part of its seed: its sequences and its m are neither training's nor any evaluation's."""
MOST_STEPS = 1_000_000


@dataclass(frozen=True)
class FineTuning(Change):
    """Train the finished model on, on its own mixture at a longer context; its weights are put back afterwards.

    AdamW with the run's betas, weight decay and clipping, from an empty state, at a constant rate; m (and dropout, where
    the run has it) is drawn anew each step, as in training. More steps go on from fewer: step k is the same whatever
    `steps` is.
    """

    steps: int = 1
    """Optimiser steps."""
    length: int = 8
    """Tokens of its sequences, in multiples of data.length (8: the paper's 4k to 32k)."""
    batch: int = 0
    """Sequences in a step; 0: as many tokens as a training step has, but at least one sequence of each task."""
    rate: float = 0.1
    """Learning rate, as a part of training.learning_rate (the peak)."""
    seed: int = 0
    """With the run's own seed, the seed of its sequences."""

    def check(self, config: Any) -> None:
        for key, low, high in (
            ("steps", 1, MOST_STEPS),
            ("length", 1, None),
            ("batch", 0, None),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, key)
            if value < low or (high is not None and value > high):
                most = "" if high is None else f" and at most {high}"
                raise UsageError(f"fine_tuning.{key}={value}: expected a whole number of at least {low}{most}")
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise UsageError(f"fine_tuning.rate={self.rate}: expected a finite number above 0")
        if reason := self._unavailable(config):
            longest = bisect_left(
                range(2, self.length), True, key=lambda k: bool(replace(self, length=k)._unavailable(config))
            )
            most = f"expected at most {longest + 1} ({longest + 1} x {config.data.length} tokens): "
            shorter = not replace(self, length=1)._unavailable(config)
            raise UsageError(f"fine_tuning.length={self.length}: {most if shorter else ''}{reason}")

    def _unavailable(self, config: Any) -> str | None:
        """Why its sequences cannot be made. A mixture asks for both splits, of whose sequences only training's are used."""
        from mmctl.data import build_task

        data, splits = self.data(config), get_args(Split)
        tasks = [build_task(name, data) for name in data.tasks_in_mixture()]
        reasons = (task.unavailable(data.length, split) for task in tasks for split in splits)
        return next((reason for reason in reasons if reason), None)

    def data(self, config: Any) -> Any:
        """The run's `data` section with longer, and so fewer, sequences."""
        fewest = len(config.data.tasks_in_mixture())
        batch = self.batch or max(config.data.batch // self.length, fewest)
        return replace(config.data, length=self.length * config.data.length, batch=batch)

    @contextlib.contextmanager
    def applied(self, model: Model, config: Any) -> Iterator[Notes]:
        before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        about = self, config.seed, repr(config.data), repr(config.training)
        known = _made.get(model)
        try:
            if known is not None and known.about == about and _equal(known.before, before):
                model.load_state_dict(known.after)
            else:
                notes = fine_tune(model, config, self)
                after = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
                _made[model] = known = _Made(about, before, after, notes)
            found = known.notes
            yield lambda: found
        finally:
            model.load_state_dict(before)


@dataclass(frozen=True)
class _Made:
    """A fine-tuning that was done: of `before` it made `after`."""

    about: tuple[Any, ...]
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    notes: dict[str, Any]


_made: WeakKeyDictionary[Model, _Made] = WeakKeyDictionary()
"""The last one of each model in memory: its suites are measured one after the other, and it is made once for them."""


def fine_tune(model: Model, config: Any, asked: FineTuning) -> dict[str, Any]:
    """Train `model` in place as `asked`, from its present weights. Returns what was done, JSON-ready: the losses of the
    steps (mean over tasks, nats), length (tokens), batch (sequences), rate, tokens, seconds.

    MmctlError when a loss or gradient is not finite; its weights are then whatever they became.
    """
    import time

    import numpy as np
    import torch
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    from mmctl.data.mixture import Mixture
    from mmctl.training.losses import step_losses

    t, data = config.training, asked.data(config)
    seed = int(np.random.SeedSequence([config.seed, STREAM, asked.seed]).generate_state(1, np.uint64)[0] >> 1)
    mixture, rate = Mixture(data, seed), asked.rate * t.learning_rate
    device, began, losses, was_training = model.embedding.weight.device, time.perf_counter(), [], model.training
    parameters = list(model.parameters())
    with torch.inference_mode(False), torch.enable_grad(), _deterministic(device):
        optimizer = torch.optim.AdamW(
            model.parameter_groups(t.weight_decay), lr=rate, betas=(t.beta1, t.beta2), fused=True
        )
        model.train()
        try:
            for step in range(1, asked.steps + 1):
                optimizer.zero_grad(set_to_none=True)
                delay = model.sample_delay(np.random.default_rng([seed, STREAM, step]))
                loss = 0.0
                batch, parts = mixture.batch(step), min(t.accumulation, data.batch)
                for part, _, _ in step_losses(model, batch, delay, device, t.precision, parts, noise=(seed, step)):
                    part.backward()  # type: ignore[no-untyped-call]
                    loss += part.item()
                norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
                if not math.isfinite(loss) or not math.isfinite(norm.item()):
                    what = "the loss" if not math.isfinite(loss) else "the gradient"
                    raise MmctlError(f"fine_tuning: {what} is not finite at step {step}")
                clip_grads_with_norm_(parameters, t.clip if t.clip > 0 else math.inf, norm)
                optimizer.step()
                losses.append(loss)
        finally:
            optimizer.zero_grad(set_to_none=True)
            model.noise = None
            model.train(was_training)
    return {
        "losses": losses,
        "length": data.length,
        "batch": data.batch,
        "learning_rate": rate,
        "tokens": asked.steps * data.batch * data.length,
        "seconds": round(time.perf_counter() - began, 3),
    }


@contextlib.contextmanager
def _deterministic(device: Any) -> Iterator[None]:
    """CUDA's deterministic algorithms, as in training; on CPU there is nothing to choose."""
    import torch

    if device.type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _equal(some: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    import torch

    return some.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in some.items())
