"""`facts`: persistent knowledge. A fixed table (subject, relation) -> object that only training data can teach.

A sequence lists facts "a b c a b c ..." in random order, none twice, so no answer can be read from the context: c
is predicted after b from what the weights hold. The table comes from its own seed: every run meets the same world.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmctl.data.task import IGNORE, Batch, Split, Task, TaskConfig, at_least
from mmctl.data.vocabulary import FIRST_SYMBOL, distinct
from mmctl.errors import UsageError


@dataclass
class FactsConfig(TaskConfig):
    """Size of the world."""

    facts: int = 1500
    """Number of facts in the table."""
    subjects: int = 50
    """Number of subjects a; there are facts / subjects relations b, rounded up."""
    objects: int = 64
    """Number of objects c; each fact's is drawn uniformly."""
    table_seed: int = 0
    """Seed of the table, apart from the run's seed."""

    @property
    def relations(self) -> int:
        return -(-self.facts // self.subjects)

    def validate(self, prefix: str) -> None:
        at_least(self, prefix, facts=1, subjects=1, objects=2, table_seed=0)


class Facts(Task):
    """Symbols from 257 on: subjects, then relations, then objects."""

    name = "facts"
    dimension = "persistent"
    draws_afresh = False
    Config = FactsConfig
    config: FactsConfig

    def __init__(self, config: FactsConfig, data: Any) -> None:
        super().__init__(config, data)
        self.first_subject = FIRST_SYMBOL + 1
        self.first_relation = self.first_subject + config.subjects
        self.first_object = self.first_relation + config.relations
        need = self.first_object + config.objects
        self.require(
            need <= data.vocabulary,
            "facts",
            f"with {config.subjects} subjects, {config.relations} relations and {config.objects} objects needs "
            f"data.vocabulary of at least {need} (it is {data.vocabulary})",
        )
        numbers = np.arange(config.facts)
        table = np.random.default_rng([config.table_seed, config.facts]).integers(0, config.objects, config.facts)
        # (facts, 3): subject, relation, object of each fact, as tokens
        self.table = np.stack(
            [
                self.first_subject + numbers % config.subjects,
                self.first_relation + numbers // config.subjects,
                self.first_object + table,
            ],
            axis=1,
        )

    def check_length(self, length: int) -> None:
        if length < 3:
            raise UsageError(f"data.length={length}: a fact takes 3 tokens, expected at least 3")

    def sample(self, rng: np.random.Generator, count: int, length: int, split: Split) -> Batch:
        """As many facts as fit. Past the whole table, facts come again without a label (they could be looked up)."""
        slots = -(-length // 3)
        shown = min(slots, self.config.facts)
        chosen = distinct(rng, count, 0, self.config.facts, shown)
        tokens = np.take(self.table[chosen].reshape(count, 3 * shown), np.arange(length) % (3 * shown), axis=1)
        targets = np.full((count, length), IGNORE, dtype=np.int64)
        asked = 1 + 3 * np.arange(min(shown, (length + 1) // 3))
        targets[:, asked] = self.table[chosen[:, : len(asked)], 2]
        return Batch(tokens, targets)

    def word(self, token: int) -> str:
        """`a` is a subject, `b` a relation, `c` an object."""
        if token >= self.first_object:
            return f"c{token - self.first_object}"
        return f"b{token - self.first_relation}" if token >= self.first_relation else f"a{token - self.first_subject}"

    def chance(self, length: int) -> float:
        return 1 / self.config.objects

    def notes(self, length: int) -> dict[str, Any]:
        return {"facts per sequence": min((length + 1) // 3, self.config.facts)}
