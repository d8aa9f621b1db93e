"""What every task is: a generator of labelled sequences that also knows how its answers are scored.

Shapes: B sequences, T tokens. `targets[b, t]` is what is to be predicted after reading `tokens[b, :t + 1]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from mmctl.errors import UsageError

if TYPE_CHECKING:
    from mmctl.data.config import DataConfig

IGNORE = -100
"""Target of a position without a label (torch's ignore_index)."""

Split = Literal["train", "held-out"]


@dataclass
class Batch:
    """Labelled sequences of one task."""

    tokens: np.ndarray
    """(B, T) int64."""
    targets: np.ndarray
    """(B, T) int64, IGNORE where there is no label."""
    documents: np.ndarray | None = None
    """(B, T) int32, non-decreasing from 0; None when every sequence is one document."""
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    """(B, T) arrays that scoring needs, such as "shots"."""

    @property
    def labelled(self) -> np.ndarray:
        """(B, T) bool: where there is a label."""
        return self.targets != IGNORE


@dataclass
class Ratio:
    """A score as sums per example, so that examples can be resampled: value = total.sum() / count.sum()."""

    total: np.ndarray
    """(B,) correct answers (an accuracy) or summed loss in nats (a loss)."""
    count: np.ndarray
    """(B,) int64 labelled positions."""
    accuracy: bool = False
    """True when `total` counts correct answers."""

    @property
    def value(self) -> float:
        return float(self.total.sum() / self.count.sum())


@dataclass
class TaskConfig:
    """Base of a task's own keys, `data.tasks.<name>.<key>`."""

    def validate(self, prefix: str) -> None:
        """Raise UsageError for a value no sequence can be made with; `prefix` is "data.tasks.<name>."."""


class Task:
    """A generator of sequences. Subclasses give `name`, `dimension`, `Config`, `sample` and, if need be, `scores`."""

    name: ClassVar[str]
    dimension: ClassVar[str]
    """The suite: persistent, new-knowledge or in-context."""
    Config: ClassVar[type[TaskConfig]] = TaskConfig
    reads_distributions: ClassVar[bool] = False
    """Whether its scores need more of the model's predictions than losses and hits: then `read` sees the logits."""

    draws_afresh: ClassVar[bool] = True
    """Whether held-out sequences from two random streams share nothing but the task: False for a fixed table or a
    corpus."""

    since: ClassVar[Mapping[str, int]] = {}
    """Scores that came later than the task, or changed their meaning, and with which version of its scores (2 or more): what
    was evaluated with an earlier one is evaluated again."""

    def __init__(self, config: Any, data: DataConfig) -> None:
        """Raises UsageError when the task does not fit data.vocabulary."""
        self.config = config
        self.data = data
        self.prefix = f"data.tasks.{self.name}."
        config.validate(self.prefix)

    def sample(self, rng: np.random.Generator, count: int, length: int, split: Split) -> Batch:
        """`count` sequences of `length` tokens, a pure function of the generator's state."""
        raise NotImplementedError

    def check_length(self, length: int) -> None:
        """Raise UsageError when no sequence of this length can be made. Reads no corpus."""

    def unavailable(self, length: int, split: Split) -> str | None:
        """Why `length` cannot be sampled from `split`, or None. May read the corpus."""
        try:
            self.check_length(length)
        except UsageError as error:
            return str(error)
        return None

    def scores(self, batch: Batch, losses: np.ndarray, correct: np.ndarray) -> dict[str, Ratio]:
        """Scores of a batch from (B, T) losses in nats and (B, T) hits (read at labelled positions only).

        The set of names depends on the task and the length alone; a name without labels has counts of 0.
        """
        return {"accuracy": hits(batch.labelled, correct), "loss": mean_loss(batch.labelled, losses)}

    def score_names(self, length: int) -> tuple[str, ...]:
        """Names of its scores at a length: one held-out sequence tells them."""
        batch = self.sample(np.random.default_rng(0), 1, length, "held-out")
        if self.reads_distributions:
            flat = np.zeros((int(batch.labelled.sum()), self.data.vocabulary), dtype=np.float32)
            batch.extras |= self.read(batch, flat)
        return tuple(self.scores(batch, np.zeros((1, length)), np.zeros((1, length), dtype=bool)))

    def read(self, batch: Batch, logits: np.ndarray) -> dict[str, np.ndarray]:
        """What scoring needs of float32 logits (N, V), a row a labelled position: (B, T) arrays, given to `scores`
        among the batch's extras."""
        raise NotImplementedError

    def chance(self, length: int) -> float | None:
        """Accuracy of the best guess that has learned the form of the task and nothing else; None if not defined."""
        return None

    def notes(self, length: int) -> dict[str, Any]:
        """What was chosen for this length and is worth recording beside the scores."""
        return {}

    def word(self, token: int) -> str:
        """A token as a person reads it."""
        return str(token)

    def fingerprint(self) -> dict[str, Any]:
        """Content of the corpus read, {} for a generated task."""
        return {}

    def require(self, condition: bool, key: str, expected: str) -> None:
        """UsageError naming `data.tasks.<name>.<key>` and its value unless `condition`."""
        if not condition:
            raise UsageError(f"{self.prefix}{key}={getattr(self.config, key)}: {expected}")


def hits(mask: np.ndarray, correct: np.ndarray) -> Ratio:
    """Accuracy over the (B, T) positions of `mask`."""
    return Ratio((mask & correct).sum(axis=1), mask.sum(axis=1), accuracy=True)


def mean_loss(mask: np.ndarray, losses: np.ndarray) -> Ratio:
    """Mean loss over the (B, T) positions of `mask`."""
    return Ratio(np.where(mask, losses, 0.0).sum(axis=1), mask.sum(axis=1))


def at_least(config: Any, prefix: str, **lowest: float) -> None:
    """UsageError naming the key unless each field named is at least the number given."""
    for key, low in lowest.items():
        value = getattr(config, key)
        if value is not None and not value >= low:
            raise UsageError(f"{prefix}{key}={value}: expected at least {low}")
