"""`induction`: what followed the marker before follows it again (berlino/seq_icl and H3,
src/dataloaders/synthetics.py).

Random symbols in which a marker "=>" stands `markers` times, each time followed by the same symbol a, which is new in
every sequence; the sequence ends with "=>" and a is to be predicted there (protocols.md, section 1.6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmctl.data.task import IGNORE, Batch, Split, Task, TaskConfig, at_least
from mmctl.data.vocabulary import FIRST_SYMBOL, distinct
from mmctl.errors import UsageError


@dataclass
class InductionConfig(TaskConfig):
    """How often the marker is seen, among how many symbols."""

    symbols: int = 18
    """Ordinary symbols; the published vocabulary of 20 holds "=>" and "." besides."""
    markers: int = 1
    """Markers before the last one."""
    label_all: bool = False
    """Label every marker but the first, not the last alone: more to learn from in a sequence."""
    offset: int = FIRST_SYMBOL
    """First token used: the symbols, then the marker."""

    def validate(self, prefix: str) -> None:
        at_least(self, prefix, symbols=2, markers=1, offset=0)


class Induction(Task):
    """Tokens from data.tasks.induction.offset on: symbols, then the marker."""

    name = "induction"
    dimension = "in-context"
    Config = InductionConfig
    config: InductionConfig

    def __init__(self, config: InductionConfig, data: object) -> None:
        super().__init__(config, data)  # type: ignore[arg-type]
        self.marker = config.offset + config.symbols
        self.require(
            self.marker < self.data.vocabulary,
            "symbols",
            f"with a marker needs data.vocabulary of at least {self.marker + 1}",
        )

    def check_length(self, length: int) -> None:
        need = 2 * self.config.markers + 1
        if length < need:
            raise UsageError(
                f"data.length={length}: induction with {self.config.markers} markers needs at least {need} tokens"
            )

    def sample(self, rng: np.random.Generator, count: int, length: int, split: Split) -> Batch:
        """extras["gap"] (B, T): tokens since the marker before, -1 where there is no label."""
        c = self.config
        tokens = c.offset + rng.integers(0, c.symbols, (count, length))
        answer = c.offset + rng.integers(0, c.symbols, (count, 1))
        # Pairs "=> a" never overlap: places among what is left when each pair counts as one, then spread out again.
        places = np.sort(distinct(rng, count, 0, length - 1 - c.markers, c.markers), axis=1) + np.arange(c.markers)
        np.put_along_axis(tokens, places, self.marker, axis=1)
        np.put_along_axis(tokens, places + 1, np.repeat(answer, c.markers, axis=1), axis=1)
        tokens[:, -1] = self.marker
        ends = np.concatenate([places, np.full((count, 1), length - 1)], axis=1)
        gaps = np.diff(ends, axis=1)
        first = 1 if c.label_all else c.markers
        targets = np.full((count, length), IGNORE, dtype=np.int64)
        gap = np.full((count, length), -1, dtype=np.int64)
        np.put_along_axis(targets, ends[:, first:], np.repeat(answer, ends.shape[1] - first, axis=1), axis=1)
        np.put_along_axis(gap, ends[:, first:], gaps[:, first - 1 :], axis=1)
        return Batch(tokens, targets, extras={"gap": gap})

    def chance(self, length: int) -> float:
        """A symbol picked blindly."""
        return 1 / self.config.symbols

    def word(self, token: int) -> str:
        """`=>` is the marker, `s` a symbol."""
        return "=>" if token == self.marker else f"s{token - self.config.offset}"
