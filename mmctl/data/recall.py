"""`recall`: new knowledge. Multi-query associative recall (MQAR), as in zoology.

k1 v1 ... kn vn, then every key is asked once more; the value is to be predicted at that query and nowhere else.
Construction: HazyResearch/zoology @ d88d6f5, zoology/data/multiquery_ar.py (protocols.md, section 1.4). With offset 0,
data.vocabulary 512 and data.length 64 it is the published task of 4 pairs exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmctl.data.task import IGNORE, Batch, Ratio, Split, Task, TaskConfig, at_least, hits
from mmctl.data.vocabulary import FIRST_SYMBOL, distinct, weighted_distinct
from mmctl.errors import UsageError


@dataclass
class RecallConfig(TaskConfig):
    """How much is to be remembered, and where."""

    pairs: int | None = None
    """Key-value pairs in every sequence; null: one pair for every `tokens_per_pair` tokens, so longer sequences hold
    more. Then at most as many as there are keys: the number used is recorded with every score."""
    tokens_per_pair: int = 16
    """Tokens for each pair when `pairs` is null: 16 gives the published (64, 4), (128, 8), (256, 16)."""
    power: float = 0.01
    """a: the gap of a query, in two-token slots after the pairs, has probability proportional to gap^(a-1)."""
    offset: int = FIRST_SYMBOL
    """First token used. 256 keeps clear of the bytes of real text; 0 is the published task."""
    random_non_queries: bool = False
    """Fill the empty slots with random tokens instead of the empty token (the published figure does not)."""

    def validate(self, prefix: str) -> None:
        at_least(self, prefix, pairs=1, tokens_per_pair=4, offset=0, power=0)


class Recall(Task):
    """Of the V' = data.vocabulary - offset tokens: 0 is empty, keys are 1..V'/2-1, values V'/2..V'-1."""

    name = "recall"
    dimension = "new-knowledge"
    Config = RecallConfig
    config: RecallConfig

    def __init__(self, config: RecallConfig, data: Any) -> None:
        super().__init__(config, data)
        self.size = data.vocabulary - config.offset
        self.require(
            self.size >= 4,
            "offset",
            f"expected at most {data.vocabulary - 4}, for an empty token, a key and two values within data.vocabulary",
        )
        self.first_value = self.size // 2
        self.keys = self.first_value - 1
        self.require(
            config.pairs is None or config.pairs <= self.keys,
            "pairs",
            f"expected at most {self.keys}, the number of keys among data.vocabulary={data.vocabulary} tokens "
            f"from offset {config.offset} on",
        )

    def pairs(self, length: int) -> int:
        """Pairs in a sequence of this length."""
        if self.config.pairs is not None:
            return self.config.pairs
        return max(1, min(length // self.config.tokens_per_pair, self.keys))

    def check_length(self, length: int) -> None:
        if length % 2:
            raise UsageError(f"data.length={length}: recall is made of two-token slots, expected an even number")
        if 4 * self.pairs(length) > length:
            raise UsageError(
                f"data.length={length}: recall with {self.pairs(length)} pairs needs at least "
                f"{4 * self.pairs(length)} tokens (pairs and queries take two each)"
            )

    def sample(self, rng: np.random.Generator, count: int, length: int, split: Split) -> Batch:
        """Sequences with fresh keys and values; extras["gap"] is the query's slot (0-based), -1 elsewhere."""
        pairs, stored = self.pairs(length), 2 * self.pairs(length)
        keys = distinct(rng, count, 1, self.first_value, pairs)
        values = distinct(rng, count, self.first_value, self.size, pairs)
        slots = (length - stored) // 2
        weights = np.arange(1, slots + 1) ** (self.config.power - 1)
        gaps = weighted_distinct(rng, count, weights, pairs)
        tokens = np.zeros((count, length), dtype=np.int64)
        tokens[:, 0:stored:2] = keys
        tokens[:, 1:stored:2] = values
        asked = stored + 2 * gaps
        np.put_along_axis(tokens, asked, keys, axis=1)
        if self.config.random_non_queries:
            tokens = np.where(tokens == 0, rng.integers(0, self.size, tokens.shape), tokens)
        targets = np.full((count, length), IGNORE, dtype=np.int64)
        np.put_along_axis(targets, asked, values + self.config.offset, axis=1)
        gap = np.full((count, length), -1, dtype=np.int64)
        np.put_along_axis(gap, asked, gaps, axis=1)
        return Batch(tokens + self.config.offset, targets, extras={"gap": gap})

    def scores(self, batch: Batch, losses: np.ndarray, correct: np.ndarray) -> dict[str, Ratio]:
        """`accuracy` over all queries; `accuracy-far` over those in the second half of the sequence, which are few: most
        queries come soon after the pairs, at every length."""
        far = batch.labelled & (np.arange(batch.tokens.shape[1]) >= batch.tokens.shape[1] // 2)
        return {**super().scores(batch, losses, correct), "accuracy-far": hits(far, correct)}

    def word(self, token: int) -> str:
        """`_` is the empty token, `k` a key, `v` a value."""
        number = token - self.config.offset
        if number == 0:
            return "_"
        return f"k{number}" if number < self.first_value else f"v{number - self.first_value}"

    def chance(self, length: int) -> float:
        """A value of this sequence picked blindly."""
        return 1 / self.pairs(length)

    def notes(self, length: int) -> dict[str, Any]:
        notes: dict[str, Any] = {"pairs": self.pairs(length)}
        if self.config.pairs is None and length // self.config.tokens_per_pair > self.keys:
            notes["capped"] = f"{self.keys} keys exist; {length // self.config.tokens_per_pair} would be asked for"
        return notes
