"""Mixtures: which sequences a step trains on, and how much each labelled token counts.

Proportions decide how many sequences each task gets; the loss is the mean over tasks of each task's mean over its
labelled tokens. Averaged over tokens instead, a task with few labels (recall) is not learned beside one with many.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmctl.data import build_task
from mmctl.data.task import Batch, Split

STREAMS = {"train": 0, "held-out": 1}
"""Part of every generator's seed, so that held-out batches never share a random stream with training."""
ALLOCATION = zlib.crc32(b"allocation")


@dataclass
class MixtureBatch:
    """The sequences of one step; sequences of a task stand together."""

    tokens: np.ndarray
    """(B, T) int64."""
    targets: np.ndarray
    """(B, T) int64, -100 where unlabelled."""
    documents: np.ndarray | None
    """(B, T) int32, or None when every sequence is one document."""
    task: np.ndarray
    """(B,) int64, index into `names`."""
    weights: np.ndarray
    """(B, T) float32, 0 where unlabelled: the step's loss is sum(weights * nll)."""
    names: list[str]
    """Tasks of the mixture, also those without a sequence in this step."""


class Mixture:
    """A weighted mixture of tasks. A step's batch is a pure function of (seed, split, step): the data position of a
    checkpoint is its step number."""

    def __init__(self, data: Any, seed: int) -> None:
        """`data` is a DataConfig. Raises UsageError when a task does not fit it or a corpus cannot be read."""
        self.data = data
        self.seed = seed
        self.names: list[str] = data.tasks_in_mixture()
        self.tasks = [build_task(name, data) for name in self.names]
        for task in self.tasks:
            task.check_length(data.length)
            task.fingerprint()  # a corpus too short or unreadable is said now, not at the first step that reads it
        proportions = np.array([data.mixture[name] for name in self.names], dtype=np.float64)
        self.proportions = proportions / proportions.sum()
        self.loss_weights = np.array([data.loss_weights.get(name, 1.0) for name in self.names], dtype=np.float64)

    def batch(self, step: int, split: Split = "train") -> MixtureBatch:
        """The sequences of step `step` (>= 0)."""
        stream = STREAMS[split]
        rng = np.random.default_rng([self.seed, stream, ALLOCATION, step])
        counts = allocate(self.data.batch, self.proportions, rng)
        batches: list[Batch] = []
        for task, count in zip(self.tasks, counts, strict=True):
            if count:
                rng = np.random.default_rng([self.seed, stream, zlib.crc32(task.name.encode()), step])
                batches.append(task.sample(rng, int(count), self.data.length, split))
        index = np.repeat(np.arange(len(self.names)), counts)
        targets = np.concatenate([b.targets for b in batches])
        return MixtureBatch(
            tokens=np.concatenate([b.tokens for b in batches]),
            targets=targets,
            documents=_documents(batches),
            task=index,
            weights=token_weights(targets >= 0, index, self.loss_weights),
            names=self.names,
        )


def allocate(batch: int, proportions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sequences (K,) of each task: exactly batch * proportion where that is whole, else one of the two whole numbers
    around it, so that the expectation is exact and the sum is always `batch` (systematic rounding)."""
    # Rounded, so that a whole share stays whole in spite of the division that made the proportions.
    edges = np.round(np.concatenate([[0.0], np.cumsum(proportions) * batch]), 9)
    # An offset below 1 - 1e-9 added to a whole number never reaches the next one.
    return np.diff(np.floor(edges + rng.random() * (1 - 1e-6))).astype(np.int64)


def token_weights(labelled: np.ndarray, task: np.ndarray, loss_weights: np.ndarray) -> np.ndarray:
    """(B, T) float32 weights that make sum(weights * nll) the mean, weighted by `loss_weights` (K,), over the tasks
    present of each one's mean over its labelled tokens. They sum to 1, unless every task present has weight 0."""
    labels = np.bincount(task, weights=labelled.sum(axis=1), minlength=len(loss_weights))
    present = np.where(labels > 0, loss_weights, 0.0)
    per_token = present / np.maximum(labels, 1) / (present.sum() or 1.0)
    return np.where(labelled, per_token[task][:, None], 0.0).astype(np.float32)


def _documents(batches: list[Batch]) -> np.ndarray | None:
    if all(b.documents is None for b in batches):
        return None
    parts = [b.documents if b.documents is not None else np.zeros(b.tokens.shape, dtype=np.int32) for b in batches]
    return np.concatenate(parts)
