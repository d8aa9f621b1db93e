"""`stream`: pairs of a key and its value without end, in which recent keys are asked again. What a state must forget.

Slots of two tokens. A slot either tells something (a key drawn at random and a new value, whether or not the key had
one: the last value counts) or asks for the key of one of the last `reach` slots, whose value is to be predicted. Told
keys are reassigned as in zoology's forgetting variant of MQAR (protocols.md, section 1.4); everything asked for was said
within the last `reach` slots, so that all positions beyond them are alike: a memory that forgets what is older loses
nothing, however long the stream, and one that keeps everything fills up. This is what Stuffed Mamba (arXiv 2410.07145)
measures on natural text, of which models small enough for a CPU use only the last few tokens.

Held-out sequences are also a passkey test (the paper's recall threshold): key 0 is told in the first slot, never again,
and asked for in the last one. Training sequences have no such question: a model trained on it says nothing about its
memory (protocols.md, section 2).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmctl.data.task import IGNORE, Batch, Ratio, Split, Task, TaskConfig, at_least, hits, mean_loss
from mmctl.data.vocabulary import FIRST_SYMBOL
from mmctl.errors import UsageError

INSIDE = 4
"""Parts of the training length that get a loss of their own; beyond it, every octave has two."""


@dataclass
class StreamConfig(TaskConfig):
    """How much is told and asked."""

    keys: int = 16
    """Keys, and as many values."""
    reach: int = 8
    """Slots (of two tokens) back that a question reaches at most."""
    asked: float = 0.5
    """Part of the slots that ask."""
    offset: int = FIRST_SYMBOL
    """First token used: the keys, then the values."""

    def validate(self, prefix: str) -> None:
        at_least(self, prefix, keys=2, reach=1, offset=0)
        if not 0 < self.asked < 1:
            raise UsageError(f"{prefix}asked={self.asked}: expected a number between 0 and 1")


def edges(length: int, training_length: int) -> list[int]:
    """Ends of the parts of a sequence, in tokens, from 0 to `length`: quarters of the training length T, then T to 1.5 T,
    1.5 T to 2 T, 2 T to 3 T, and so on."""
    ends = [training_length * part // INSIDE for part in range(INSIDE + 1)]
    while ends[-1] < length:
        octave = ends[-1] if len(ends) % 2 else ends[-2]
        ends.append(octave * 3 // 2 if len(ends) % 2 else octave * 2)
    return ends


class Stream(Task):
    """Tokens from data.tasks.stream.offset on: keys, then values."""

    name = "stream"
    dimension = "new-knowledge"
    Config = StreamConfig
    config: StreamConfig

    def __init__(self, config: StreamConfig, data: Any) -> None:
        super().__init__(config, data)
        need = config.offset + 2 * config.keys
        self.require(need <= data.vocabulary, "keys", f"as many keys as values need data.vocabulary of at least {need}")

    def check_length(self, length: int) -> None:
        if length % 8:  # quarters of whole slots
            raise UsageError(
                f"data.length={length}: stream is measured in quarters of two-token slots: a multiple of 8"
            )

    def sample(self, rng: np.random.Generator, count: int, length: int, split: Split) -> Batch:
        """extras["gap"] (B, T): slots since the key asked for was last seen, -1 where there is no label."""
        c, slots, rows = self.config, length // 2, np.arange(count)
        passkey = split == "held-out"
        told = rng.integers(1 if passkey else 0, c.keys, (count, slots))
        news = rng.integers(0, c.keys, (count, slots))
        asks = rng.random((count, slots)) < c.asked
        back = rng.random((count, slots))
        keys, values = np.zeros((2, count, slots), dtype=np.int64)
        gap = np.full((count, slots), -1, dtype=np.int64)
        value = np.zeros((count, c.keys), dtype=np.int64)
        last = np.full((count, c.keys), -1, dtype=np.int64)
        for slot in range(slots):
            first = slot == 0
            since = 1 + (back[:, slot] * min(c.reach, slot)).astype(np.int64)
            key = told[:, 0] if first else np.where(asks[:, slot], keys[rows, slot - since], told[:, slot])
            ask = np.zeros(count, dtype=bool) if first else asks[:, slot]
            if passkey and first:
                key = np.zeros_like(key)
            elif passkey and slot == slots - 1:
                key, ask = np.zeros_like(key), np.ones_like(ask)
            elif passkey:  # the passkey is never asked for on the way
                ask = ask & (key != 0)
                key = np.where(key == 0, told[:, slot], key)
            values[:, slot] = value[rows, key] = np.where(ask, value[rows, key], news[:, slot])
            gap[:, slot] = np.where(ask, slot - last[rows, key], -1)
            last[rows, key], keys[:, slot] = slot, key
        tokens = np.empty((count, length), dtype=np.int64)
        tokens[:, 0::2], tokens[:, 1::2] = c.offset + keys, c.offset + c.keys + values
        targets = np.full((count, length), IGNORE, dtype=np.int64)
        targets[:, 0::2] = np.where(gap >= 0, tokens[:, 1::2], IGNORE)
        gaps = np.full((count, length), -1, dtype=np.int64)
        gaps[:, 0::2] = gap
        return Batch(tokens, targets, extras={"gap": gaps})

    def scores(self, batch: Batch, losses: np.ndarray, correct: np.ndarray) -> dict[str, Ratio]:
        """Also `accuracy-passkey`, the loss in each part of the sequence, `loss-part1` first (see `edges`), and in its
        last quarter, `loss-end`. The passkey counts for itself alone."""
        labelled, length = batch.labelled.copy(), batch.tokens.shape[1]
        passkey = np.zeros_like(labelled)
        passkey[:, length - 2] = labelled[:, length - 2]
        labelled[:, length - 2] = False
        scores = {"accuracy": hits(labelled, correct), "loss": mean_loss(labelled, losses)}
        scores["accuracy-passkey"] = hits(passkey, correct)
        parts = {f"loss-part{n}": pair for n, pair in enumerate(itertools.pairwise(edges(length, self.data.length)), 1)}
        for name, (low, high) in {**parts, "loss-end": (length - length // 4, length)}.items():
            inside = np.zeros_like(labelled)
            inside[:, low:high] = True
            scores[name] = mean_loss(labelled & inside, losses)
        return scores

    def chance(self, length: int) -> float:
        """A value picked blindly."""
        return 1 / self.config.keys

    def word(self, token: int) -> str:
        """`k` a key, `v` a value."""
        number = token - self.config.offset
        return f"k{number}" if number < self.config.keys else f"v{number - self.config.keys}"
