"""`icl`: in-context learning. Every sequence brings its own classes, which must be learned from its examples alone.

A class is a few random words; an example is some words of its class, a separator and the class's anonymous label:
"w w w : y". Which words belong together, and which label they carry, is new in every sequence, so a label can only be
inferred from earlier examples: the accuracy is read by the number of examples (shots) of that class seen before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmctl.data.task import IGNORE, Batch, Ratio, Split, Task, TaskConfig, at_least, hits
from mmctl.data.vocabulary import FIRST_SYMBOL, distinct
from mmctl.errors import UsageError

SHOTS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
"""Numbers of shots that get a score of their own."""
GAIN = "gain-per-doubling"
"""Score: how much accuracy a doubling of the demonstrations brings."""
BY_SHOTS_SINCE = {GAIN: 2}
"""`since` of the tasks scored by `by_shots`."""


@dataclass
class InContextConfig(TaskConfig):
    """Shape of an episode."""

    classes: int = 8
    """Classes in a sequence."""
    words_per_class: int = 4
    """Words a class owns; the classes of a sequence share none."""
    words_per_example: int = 3
    """Different words of its class in an example."""
    words: int = 96
    """Words there are in all."""
    labels: int = 12
    """Anonymous labels there are; a sequence uses `classes` of them."""

    def validate(self, prefix: str) -> None:
        at_least(self, prefix, classes=2, words_per_class=1, words_per_example=1, words=1, labels=2)
        for key, limit, name in (
            ("words_per_example", self.words_per_class, "words_per_class"),
            ("classes", self.labels, "labels"),
        ):
            if getattr(self, key) > limit:
                raise UsageError(f"{prefix}{key}={getattr(self, key)}: expected at most {prefix}{name}={limit}")
        owned = self.classes * self.words_per_class
        if owned > self.words:
            raise UsageError(f"{prefix}words={self.words}: expected at least classes x words_per_class = {owned}")


class InContext(Task):
    """Symbols from the top of the vocabulary down: separator, labels, words."""

    name = "icl"
    dimension = "in-context"
    since = BY_SHOTS_SINCE
    Config = InContextConfig
    config: InContextConfig

    def __init__(self, config: InContextConfig, data: Any) -> None:
        super().__init__(config, data)
        self.separator = data.vocabulary - 1
        self.first_label = self.separator - config.labels
        self.first_word = self.first_label - config.words
        need = FIRST_SYMBOL + 2 + config.labels + config.words
        self.require(
            need <= data.vocabulary,
            "words",
            f"with {config.labels} labels and a separator needs data.vocabulary of at least {need} "
            f"(it is {data.vocabulary})",
        )
        self.example = config.words_per_example + 2

    def check_length(self, length: int) -> None:
        if length < self.example:
            raise UsageError(f"data.length={length}: expected at least {self.example}, the tokens of an icl example")

    def sample(self, rng: np.random.Generator, count: int, length: int, split: Split) -> Batch:
        """Examples until the sequence is full (the last may be cut off before its label, then it has none).

        extras: "shots" and "class", (B, T), at the labelled positions, -1 elsewhere.
        """
        c = self.config
        examples = -(-length // self.example)
        owned = distinct(rng, count, 0, c.words, c.classes * c.words_per_class)
        owned = owned.reshape(count, c.classes, c.words_per_class)
        labels = self.first_label + distinct(rng, count, 0, c.labels, c.classes)
        classes = rng.integers(0, c.classes, (count, examples))
        rows = np.arange(count)[:, None]
        order = np.argsort(rng.random((count, examples, c.words_per_class)), axis=2)[..., : c.words_per_example]
        one_hot = classes[..., None] == np.arange(c.classes)
        seen = np.take_along_axis(one_hot.cumsum(axis=1), classes[..., None], axis=2)[..., 0] - 1

        grid = np.empty((count, examples, self.example), dtype=np.int64)
        grid[..., :-2] = self.first_word + np.take_along_axis(owned[rows, classes], order, axis=2)
        grid[..., -2] = self.separator
        grid[..., -1] = answers = labels[rows, classes]

        def at_separator(values: np.ndarray, elsewhere: int) -> np.ndarray:
            spread = np.full(grid.shape, elsewhere, dtype=np.int64)
            spread[..., -2] = values
            return spread.reshape(count, -1)[:, :length]

        extras = {"shots": at_separator(seen, -1), "class": at_separator(classes, -1)}
        return Batch(grid.reshape(count, -1)[:, :length].copy(), at_separator(answers, IGNORE), extras=extras)

    def scores(self, batch: Batch, losses: np.ndarray, correct: np.ndarray) -> dict[str, Ratio]:
        """Also those of `by_shots`."""
        return super().scores(batch, losses, correct) | by_shots(batch, correct)

    def word(self, token: int) -> str:
        """`w` is a word, `y` a label, `:` stands between an example and its label."""
        if token == self.separator:
            return ":"
        return f"y{token - self.first_label}" if token >= self.first_label else f"w{token - self.first_word}"

    def chance(self, length: int) -> float:
        """A label of this sequence picked blindly."""
        return 1 / self.config.classes


def by_shots(batch: Batch, correct: np.ndarray) -> dict[str, Ratio]:
    """Accuracy in the last quarter of the sequence and after each number of shots in SHOTS, and the gain per
    doubling."""
    labelled, length, shots = batch.labelled, batch.tokens.shape[1], batch.extras["shots"]
    scores = {"accuracy-last-quarter": hits(labelled & (np.arange(length) >= length - length // 4), correct)}
    scores |= {f"accuracy-shots{count}": hits(labelled & (shots == count), correct) for count in SHOTS}
    scores[GAIN] = gain_per_doubling(np.where(labelled, shots, 0), correct)
    return scores


def gain_per_doubling(shots: np.ndarray, correct: np.ndarray) -> Ratio:
    """Slope of accuracy on log2(shots), within sequences: what twice as many demonstrations add to it.

    shots, correct: (B, T); positions with fewer than 1 shot are left out, for nothing can be known there. The value is
    the least-squares slope with an intercept for each sequence, so that hard and easy sequences are not compared: the
    ratio of sum((x - mean x) hit) and sum((x - mean x)^2), x = log2(shots), summed over sequences. In accuracy (0 to 1)
    a doubling; a model that guesses, or that has nothing left to gain, has 0.
    """
    known = shots >= 1
    x = np.log2(np.maximum(shots, 1))
    number = np.maximum(known.sum(axis=1, keepdims=True), 1)
    apart = np.where(known, x - (x * known).sum(axis=1, keepdims=True) / number, 0.0)
    return Ratio((apart * correct).sum(axis=1), (apart**2).sum(axis=1))
