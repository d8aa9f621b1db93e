"""`intents`: in-context classification of real queries, at lab scale. Trained on some data set's intents, tested on
another's.

Every sequence is an episode of few classes, drawn from real ones: "query : y" again and again, where the query is text
(bytes) and y an anonymous label dealt anew in each sequence. As in `icl`, a label can only be known from earlier
examples; unlike there, what makes two queries alike is their meaning. Files: mmctl.classification.datasets.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mmctl.data.icl import BY_SHOTS_SINCE, by_shots
from mmctl.data.task import IGNORE, Batch, Ratio, Split, Task, TaskConfig, at_least
from mmctl.data.vocabulary import BYTES, distinct
from mmctl.errors import MmctlError, UsageError

if TYPE_CHECKING:
    from mmctl.classification import Examples

HELD_OUT_EVERY = 5
"""Without a test file, every fifth intent (by a hash of its name) is kept for testing."""


@dataclass
class IntentsConfig(TaskConfig):
    """Where the queries come from, and the shape of an episode."""

    train: str | None = None
    """NAME=PATH of the training queries, such as clinc150=FOLDER. Identity takes the content, not the path."""
    test: str | None = None
    """NAME=PATH of the held-out queries, such as banking77=FOLDER; null: intents of `train` that are never trained
    on."""
    classes: int = 4
    """Intents in a sequence."""
    longest: int = 48
    """Bytes of a query; longer ones are cut off."""
    labels: int = 12
    """Anonymous labels there are, the same symbols as those of icl."""

    def validate(self, prefix: str) -> None:
        at_least(self, prefix, classes=2, longest=4, labels=2)
        if self.classes > self.labels:
            raise UsageError(f"{prefix}classes={self.classes}: expected at most {prefix}labels={self.labels}")


class Intents(Task):
    """Queries are bytes; separator and labels are symbols from the top of the vocabulary down, as in icl."""

    name = "intents"
    dimension = "in-context"
    since = BY_SHOTS_SINCE
    draws_afresh = False
    Config = IntentsConfig
    config: IntentsConfig

    def __init__(self, config: IntentsConfig, data: Any) -> None:
        super().__init__(config, data)
        self.separator = data.vocabulary - 1
        self.first_label = self.separator - config.labels
        self.require(
            self.first_label >= BYTES, "labels", f"needs data.vocabulary of at least {BYTES + config.labels + 1}"
        )

    def check_length(self, length: int) -> None:
        need = 2 * (self.config.longest + 2)
        if length < need:
            raise UsageError(f"data.length={length}: intents needs at least {need} tokens, two examples")

    def unavailable(self, length: int, split: Split) -> str | None:
        if self.config.train is None:
            return self._unset()
        if len(self.queries(split)) < self.config.classes:
            return self._too_few(split)
        return super().unavailable(length, split)

    def fingerprint(self) -> dict[str, Any]:
        splits: tuple[Split, Split] = ("train", "held-out")
        for split in splits:  # a run starts with this: too few held-out intents are not found out when it has trained
            self._enough(split)
        return {"train": self._read("train").sha256} | (
            {"test": self._read("test").sha256} if self.config.test is not None else {}
        )

    def _unset(self) -> str:
        """The words to type: the files are the user's own, and nothing stands in for them."""
        words = f"{self.prefix}train=clinc150=FOLDER {self.prefix}test=banking77=FOLDER"
        return f"{self.prefix}train=null: expected NAME=PATH of files of yours, such as {words}"

    def _read(self, which: str) -> Examples:
        source = getattr(self.config, which)
        if source is None:
            raise UsageError(self._unset())
        try:
            return _examples(source)
        except MmctlError as error:
            raise type(error)(f"{self.prefix}{which}: {error}") from None

    def queries(self, split: Split) -> list[list[bytes]]:
        """Queries by intent, of the intents that belong to `split`."""
        if split == "held-out" and self.config.test is not None:
            self._read("test")
            return _by_intent(self.config.test, "test", None)
        self._read("train")
        return _by_intent(self.config.train or "", split, None if self.config.test is not None else split == "held-out")

    def _enough(self, split: Split) -> list[list[bytes]]:
        """`queries`; UsageError where they are too few for a sequence."""
        found = self.queries(split)
        if len(found) < self.config.classes:
            raise UsageError(self._too_few(split))
        return found

    def _too_few(self, split: Split) -> str:
        return f"{self.prefix}classes={self.config.classes}: there are {len(self.queries(split))} intents for {split}"

    def sample(self, rng: np.random.Generator, count: int, length: int, split: Split) -> Batch:
        """Examples until the next would not fit; extras: "shots" of the example's own class before, at labels, else
        -1."""
        c, intents = self.config, self._enough(split)
        tokens = np.zeros((count, length), dtype=np.int64)
        targets = np.full((count, length), IGNORE, dtype=np.int64)
        shots = np.full((count, length), -1, dtype=np.int64)
        chosen = distinct(rng, count, 0, len(intents), c.classes)
        labels = self.first_label + distinct(rng, count, 0, c.labels, c.classes)
        for row in range(count):
            at, seen = 0, np.zeros(c.classes, dtype=np.int64)
            orders = [rng.permutation(len(intents[i])) for i in chosen[row]]
            while True:
                which = int(rng.integers(c.classes))
                texts = intents[chosen[row][which]]
                query = texts[orders[which][int(seen[which]) % len(texts)]][: c.longest]
                end = at + len(query)
                if end + 1 > length:
                    break
                tokens[row, at:end] = np.frombuffer(query, dtype=np.uint8)
                tokens[row, end] = self.separator
                targets[row, end], shots[row, end] = labels[row, which], seen[which]
                if end + 2 > length:
                    break
                tokens[row, end + 1] = labels[row, which]
                seen[which] += 1
                at = end + 2
        return Batch(tokens, targets, extras={"shots": shots})

    def scores(self, batch: Batch, losses: np.ndarray, correct: np.ndarray) -> dict[str, Ratio]:
        """Also those by shots, as icl."""
        return super().scores(batch, losses, correct) | by_shots(batch, correct)

    def chance(self, length: int) -> float:
        """One of the sequence's labels picked blindly."""
        return 1 / self.config.classes

    def word(self, token: int) -> str:
        if token >= self.first_label:
            return " : " if token == self.separator else f" y{token - self.first_label} "
        return chr(token) if 32 <= token < 127 else f"<{token}>"


@lru_cache(maxsize=8)
def _examples(source: str) -> Examples:
    from mmctl.classification import read

    return read(source)


@lru_cache(maxsize=16)
def _by_intent(source: str, split: str, held_out: bool | None) -> list[list[bytes]]:
    """Queries by intent: of the file's own split, or (`held_out` given) of the intents kept for testing or not."""
    examples = _examples(source)
    pairs = examples.test if split == "test" else examples.train
    found: dict[str, list[bytes]] = {}
    for text, label in pairs:
        if held_out is None or (zlib.crc32(label.encode()) % HELD_OUT_EVERY == 0) == held_out:
            found.setdefault(label, []).append(" ".join(text.split()).encode())
    return [found[label] for label in sorted(found)]
