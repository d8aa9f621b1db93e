"""The validation loss of a run's mixture: what a choice (of a learning rate, say) may look at, and no report does.

Sequences come from the stream that training.select validates on, apart from training's, the held-out losses' and the
evaluations' streams; they depend on (seed, task, length) only, so runs with the same seed are scored on the same ones. Of
a task that draws its sequences afresh they are new sequences, made as held-out ones are. Of a fixed table or corpus, whose
held-out part is what is reported, they are sequences of its training part.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

import numpy as np
import torch

from mmctl.data import build_task
from mmctl.data.task import Batch, Ratio, Split, Task
from mmctl.evaluation.changes import AS_TRAINED
from mmctl.evaluation.scoring import CHUNK, _rows, _run, _summarise
from mmctl.evaluation.suites import VALIDATION, settings_dict

STREAM = 3
"""Marks validation's generators, beside training's (0), the held-out losses' (1) and evaluation's (2)."""
LOSS = "validation/loss@1x"
"""Mean over tasks (weighed by data.loss_weights, as in training) of each one's mean loss, in nats."""


def split_of(task: Task) -> Split:
    return "held-out" if task.draws_afresh else "train"


def sequences(task: Task, seed: int, length: int, number: int) -> list[Batch]:
    """`number` validation sequences in chunks: asking for more never changes the first ones."""
    chunks = []
    for chunk in range(-(-number // CHUNK)):
        rng = np.random.default_rng([seed, STREAM, zlib.crc32(task.name.encode()), length, chunk])
        chunks.append(_rows(task.sample(rng, CHUNK, length, split_of(task)), slice(0, number - chunk * CHUNK)))
    return chunks


def validate(model: Any, config: Any, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Losses of `model` (on `device`) on config.evaluation.examples validation sequences of each task of the mixture.

    The form is an evaluation's (`evaluate`): LOSS, and each task's own under "validation/<task>-loss@1x".
    """
    settings, started = config.evaluation, time.perf_counter()
    was_training = getattr(model, "training", False)
    model.eval()
    scores: dict[str, Any] = {}
    total = weights = 0.0
    splits = {}
    try:
        with torch.inference_mode():
            for name in config.data.tasks_in_mixture():
                task = build_task(name, config.data)
                ratio = _measured(model, task, config, torch.device(device))
                scores |= _summarise(VALIDATION, 1, {f"{name}-loss": ratio}, settings)
                weight = config.data.loss_weights.get(name, 1.0)
                total, weights = total + weight * ratio.value, weights + weight
                splits[name] = split_of(task)
    finally:
        if was_training:
            model.train()
    loss = {"value": total / weights, "n": settings.examples * len(splits), "interval": None}
    return {
        "suite": VALIDATION,
        "changes": AS_TRAINED.record(),
        "settings": settings_dict(config),
        "scores": {LOSS: loss, **scores},
        "seed": config.seed,
        "parts": splits,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _measured(model: Any, task: Task, config: Any, device: torch.device) -> Ratio:
    """The task's loss, summed and counted by sequence."""
    length, found = config.data.length, []
    rows = max(1, config.evaluation.batch_tokens // length)
    for batch in sequences(task, config.seed, length, config.evaluation.examples):
        losses = np.zeros(batch.tokens.shape)
        for first in range(0, len(batch.tokens), rows):
            some = slice(first, first + rows)
            losses[some] = _run(model, _rows(batch, some), device, task)[0]
        found.append(((np.where(batch.labelled, losses, 0.0)).sum(axis=1), batch.labelled.sum(axis=1)))
    sums, counts = (np.concatenate(column) for column in zip(*found, strict=True))
    return Ratio(sums, counts)
