"""Losses of a step: in all and by task, over parts of the batch and over processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mmctl.data.mixture import Mixture, MixtureBatch
from mmctl.models.base import Model
from mmctl.models.dropout import Noise
from mmctl.training.ranks import ALONE, Ranks

HELD_OUT_BATCHES = 4
"""Batches the held-out loss is a mean over: the same ones for every model and at every step."""


@dataclass
class Means:
    """Running means by name; sums and counts so that they survive a checkpoint exactly."""

    sums: dict[str, list[float]] = field(default_factory=dict)

    def add(self, values: dict[str, float]) -> None:
        for key, value in values.items():
            pair = self.sums.setdefault(key, [0.0, 0.0])
            pair[0] += value
            pair[1] += 1

    def means(self) -> dict[str, float]:
        return {k: s / n for k, (s, n) in self.sums.items()}

    def clear(self) -> None:
        self.sums = {}


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy (N,) in nats at each labelled position, in float32 (float64 for a float64 model)."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, targets, reduction="none")


@contextmanager
def autocast(device: torch.device, precision: str) -> Iterator[None]:
    """bf16 autocast for the matrix products when the configuration says so.

    Also where parameters are divided among processes: they, their gradients and the sums over processes stay in
    float32, as with one process. FSDP's own mixed precision would cast what the models keep in float32 (log-gates,
    bandwidths).
    """
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
        yield


def step_losses(
    model: Model,
    batch: MixtureBatch,
    delay: int | None,
    device: torch.device,
    precision: str,
    parts: int = 1,
    ranks: Ranks = ALONE,
    noise: tuple[int, int] | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each part of this process's share of the batch: its part of the loss (0-d), the (N,) losses and task indices.

    `parts` are those of the whole batch. The loss is sum(weights * nll) with the batch's own weights, so that the parts
    of all processes add up to the mean over tasks of each task's mean over all its labelled tokens. `noise`: the run's
    seed and the step, for a model with dropout.
    """
    for rows in ranks.rows(len(batch.tokens), parts):
        tokens, targets, weights = (
            torch.from_numpy(np.ascontiguousarray(a[rows])).to(device)
            for a in (batch.tokens, batch.targets, batch.weights)
        )
        documents = None
        if batch.documents is not None:
            documents = torch.from_numpy(np.ascontiguousarray(batch.documents[rows])).to(device)
        labelled = targets >= 0
        dropping = getattr(model.config, "dropout", 0) > 0
        model.noise = Noise(*noise, rows=rows) if noise is not None and dropping else None
        with autocast(device, precision):
            logits = model(tokens, documents=documents, delay=delay, labelled=labelled)
        losses = token_losses(logits, targets[labelled])
        task = torch.from_numpy(np.ascontiguousarray(batch.task[rows])).to(device)
        yield (losses * weights[labelled]).sum(), losses.detach(), task[:, None].expand_as(targets)[labelled]


def step_means(
    names: list[str], parts: Sequence[tuple[float, Tensor, Tensor]], ranks: Ranks = ALONE
) -> dict[str, float]:
    """The step's "loss", and the mean over all its labelled tokens of each task present, keyed "loss/<task>".

    parts: (part of the loss, losses (N,), task indices (N,)) of this process. Sums and counts are added over processes
    before they are divided: a mean of the processes' means would weigh their tokens unequally.
    """
    loss = 0.0
    for part, _, _ in parts:
        loss += part
    losses, tasks = (torch.cat(column) for column in list(zip(*parts, strict=True))[1:])
    sums = torch.zeros(len(names), dtype=losses.dtype, device=losses.device).index_add_(0, tasks, losses)
    counts = torch.bincount(tasks, minlength=len(names))
    loss, *rest = ranks.add([loss, *sums.tolist(), *counts.tolist()])
    rows = zip(names, rest[: len(names)], rest[len(names) :], strict=True)
    return {"loss": loss, **{f"loss/{name}": total / count for name, total, count in rows if count}}


@torch.no_grad()
def held_out_losses(
    model: Model, mixture: Mixture, device: torch.device, precision: str, ranks: Ranks = ALONE
) -> dict[str, float]:
    """Mean loss over fixed held-out batches of the mixture, in all and by task, at inference m."""
    was_training = model.training
    model.eval()
    means = Means()
    for index in range(HELD_OUT_BATCHES):
        batch = mixture.batch(index, split="held-out")
        parts = [
            (loss.item(), losses, tasks)
            for loss, losses, tasks in step_losses(model, batch, None, device, precision, ranks=ranks)
        ]
        values = step_means(batch.names, parts, ranks)
        means.add({f"held_out_{name}": value for name, value in values.items()})
    model.train(was_training)
    return means.means()
