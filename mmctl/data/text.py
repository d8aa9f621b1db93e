"""`text`: persistent knowledge. Language modelling of real text, byte by byte.

Windows of the concatenated documents; nothing is predicted across the end of a document, and `documents` tells the
model where one ends. Without data.text, the corpus is Python's own standard library as found on this machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmctl.data.corpus import Corpus, load_corpus
from mmctl.data.task import IGNORE, Batch, Ratio, Split, Task, TaskConfig, mean_loss
from mmctl.data.vocabulary import BYTES
from mmctl.errors import UsageError


@dataclass
class TextConfig(TaskConfig):
    """How the corpus is divided."""

    held_out: float = 0.1
    """Part of the documents kept for evaluation (of each document's end, in a corpus of fewer than 20 documents)."""

    def validate(self, prefix: str) -> None:
        if not 0 < self.held_out < 1:
            raise UsageError(f"{prefix}held_out={self.held_out}: expected a number between 0 and 1")


class Text(Task):
    """Windows of a corpus; tokens are its bytes."""

    name = "text"
    dimension = "persistent"
    Config = TextConfig
    config: TextConfig

    def __init__(self, config: TextConfig, data: Any) -> None:
        super().__init__(config, data)
        if data.vocabulary < BYTES:
            raise UsageError(f"data.vocabulary={data.vocabulary}: expected at least {BYTES}, the bytes of text")
        self._corpus: Corpus | None = None

    @property
    def corpus(self) -> Corpus:
        """The corpus, read on first use. UsageError when it cannot be read."""
        if self._corpus is None:
            self._corpus = load_corpus(self.data.text, self.config.held_out)
        return self._corpus

    def unavailable(self, length: int, split: Split) -> str | None:
        size = len(self.corpus.part(split).stream)
        if size > length:
            return None
        return f"{self.corpus.label}: {size} bytes of {split} text, {length + 1} needed for a sequence of {length}"

    def sample(self, rng: np.random.Generator, count: int, length: int, split: Split) -> Batch:
        """Windows starting anywhere, all starts equally likely. Raises UsageError when the text is too short."""
        reason = self.unavailable(length, split)
        if reason:
            raise UsageError(reason)
        part = self.corpus.part(split)
        where = rng.integers(0, len(part.stream) - length, (count, 1)) + np.arange(length + 1)
        window = part.stream[where].astype(np.int64)
        documents = np.searchsorted(part.starts, where, side="right").astype(np.int32)
        documents -= documents[:, :1]
        targets = np.where(documents[:, 1:] == documents[:, :-1], window[:, 1:], IGNORE)
        ids = np.ascontiguousarray(documents[:, :-1])
        return Batch(window[:, :-1].copy(), targets, documents=ids if ids.any() else None)

    def scores(self, batch: Batch, losses: np.ndarray, correct: np.ndarray) -> dict[str, Ratio]:
        """Also bits per byte, and the loss in each quarter of the sequence (does far context still help?)."""
        scores = super().scores(batch, losses, correct)
        loss = scores["loss"]
        scores["bits-per-byte"] = Ratio(loss.total / math.log(2), loss.count)
        quarter = 4 * np.arange(batch.tokens.shape[1]) // batch.tokens.shape[1]
        for number in range(4):
            scores[f"loss-quarter{number + 1}"] = mean_loss(batch.labelled & (quarter == number), losses)
        return scores

    def notes(self, length: int) -> dict[str, Any]:
        return {"corpus": self.corpus.label, "held-out bytes": len(self.corpus.held_out.stream)}

    def fingerprint(self) -> dict[str, Any]:
        """Hash of the divided corpus. UsageError when either part is too short for data.length."""
        splits: tuple[Split, Split] = ("train", "held-out")
        for split in splits:
            reason = self.unavailable(self.data.length, split)
            if reason:
                raise UsageError(f"data.length={self.data.length}: {reason}")
        return {"sha256": self.corpus.sha256, "bytes": self.corpus.size}
