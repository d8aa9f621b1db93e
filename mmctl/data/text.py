"""`text`: persistent knowledge. Language modelling of real text, in the tokens of data.tokenizer (bytes by default).

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
from mmctl.data.tokenizers import Tokenizer, Tokens, load_tokenizer, tokens_of
from mmctl.data.vocabulary import BYTES
from mmctl.errors import UsageError

PLENTY = 256
"""Bytes a token, of which a corpus is long enough without being counted in tokens (that takes seconds)."""


@dataclass
class TextConfig(TaskConfig):
    """How the corpus is divided."""

    held_out: float = 0.1
    """Part of the documents kept for evaluation (of each document's end, in a corpus of fewer than 20 documents)."""

    def validate(self, prefix: str) -> None:
        if not 0 < self.held_out < 1:
            raise UsageError(f"{prefix}held_out={self.held_out}: expected a number between 0 and 1")


class Text(Task):
    """Windows of a corpus in tokens."""

    name = "text"
    dimension = "persistent"
    draws_afresh = False
    Config = TextConfig
    config: TextConfig

    def __init__(self, config: TextConfig, data: Any) -> None:
        super().__init__(config, data)
        if data.tokenizer == "bytes" and data.vocabulary < BYTES:
            raise UsageError(f"data.vocabulary={data.vocabulary}: expected at least {BYTES}, the bytes of text")
        self._corpus: Corpus | None = None

    @property
    def corpus(self) -> Corpus:
        """The corpus, read on first use. UsageError when it cannot be read."""
        if self._corpus is None:
            self._corpus = load_corpus(self.data.text, self.config.held_out)
        return self._corpus

    @property
    def tokenizer(self) -> Tokenizer:
        """UsageError when there is no such tokenizer."""
        return load_tokenizer(self.data)

    def tokens(self, split: Split) -> Tokens:
        """A part of the corpus in tokens."""
        return tokens_of(self.corpus.part(split), self.tokenizer)

    def unavailable(self, length: int, split: Split) -> str | None:
        if len(self.corpus.part(split).stream) >= PLENTY * (length + 1):
            return None
        size = len(self.tokens(split).stream)
        if size > length:
            return None
        what = "bytes" if self.data.tokenizer == "bytes" else "tokens"
        return f"{self.corpus.label}: {size} {what} of {split} text, {length + 1} needed for a sequence of {length}"

    def sample(self, rng: np.random.Generator, count: int, length: int, split: Split) -> Batch:
        """Windows starting anywhere, all starts equally likely. Raises UsageError when the text is too short."""
        reason = self.unavailable(length, split)
        if reason:
            raise UsageError(reason)
        part = self.tokens(split)
        where = rng.integers(0, len(part.stream) - length, (count, 1)) + np.arange(length + 1)
        window = part.stream[where].astype(np.int64)
        documents = np.searchsorted(part.starts, where, side="right").astype(np.int32)
        documents -= documents[:, :1]
        targets = np.where(documents[:, 1:] == documents[:, :-1], window[:, 1:], IGNORE)
        ids = np.ascontiguousarray(documents[:, :-1])
        # How many bytes each target stands for; one each where tokens are bytes.
        extras = {} if part.sizes is None else {"bytes": part.sizes[where[:, 1:]]}
        return Batch(window[:, :-1].copy(), targets, documents=ids if ids.any() else None, extras=extras)

    def scores(self, batch: Batch, losses: np.ndarray, correct: np.ndarray) -> dict[str, Ratio]:
        """Also bits per byte, and the loss in each quarter of the sequence (does far context still help?)."""
        scores = super().scores(batch, losses, correct)
        loss = scores["loss"]
        sizes = batch.extras.get("bytes")
        count = loss.count if sizes is None else np.where(batch.labelled, sizes, 0).sum(axis=1)
        scores["bits-per-byte"] = Ratio(loss.total / math.log(2), count)
        quarter = 4 * np.arange(batch.tokens.shape[1]) // batch.tokens.shape[1]
        for number in range(4):
            scores[f"loss-quarter{number + 1}"] = mean_loss(batch.labelled & (quarter == number), losses)
        return scores

    def notes(self, length: int) -> dict[str, Any]:
        held_out: dict[str, Any] = {"held-out bytes": len(self.corpus.held_out.stream)}
        if self.data.tokenizer != "bytes":
            held_out |= {"held-out tokens": len(self.tokens("held-out").stream), "tokenizer": self.tokenizer.name}
        return {"corpus": self.corpus.label, **held_out}

    def word(self, token: int) -> str:
        return self.tokenizer.decode([token])

    def fingerprint(self) -> dict[str, Any]:
        """Hash of the divided corpus, and of the tokenizer (bytes have none). UsageError when either part is too short
        for data.length, or there is no such tokenizer."""
        splits: tuple[Split, Split] = ("train", "held-out")
        for split in splits:
            reason = self.unavailable(self.data.length, split)
            if reason:
                raise UsageError(f"data.length={self.data.length}: {reason}")
        made_by = {} if self.tokenizer.sha256 is None else {"tokenizer": self.tokenizer.sha256}
        return {"sha256": self.corpus.sha256, "bytes": self.corpus.size, **made_by}
