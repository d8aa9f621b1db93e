"""facts: one fixed table, shown without repeats, asked at the relation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.data import build_task
from mmctl.data.config import DataConfig
from mmctl.data.task import IGNORE
from mmctl.errors import UsageError


def facts(vocabulary: int = 512, **keys: int):
    data = DataConfig(vocabulary=vocabulary)
    for key, value in keys.items():
        setattr(data.tasks.facts, key, value)
    return build_task("facts", data)


def test_the_table_is_a_function_the_same_in_every_run_and_split() -> None:
    table: dict[tuple[int, int], int] = {}
    for seed, split in ((0, "train"), (1, "train"), (2, "held-out")):
        batch = facts().sample(np.random.default_rng(seed), 200, 255, split)
        for a, b, c in batch.tokens.reshape(-1, 3).tolist():
            assert table.setdefault((a, b), c) == c
    assert len(table) == 1500
    assert len({a for a, _ in table}) == 50
    assert len({b for _, b in table}) == 30
    # Objects are uniform: 1,500 draws of 64, so about 23 each.
    counts = np.bincount(list(table.values()))[min(table.values()) :]
    assert len(counts) == 64
    assert counts.max() < 50


def test_another_table_seed_is_another_world() -> None:
    same = (facts().table == facts(table_seed=1).table).all(axis=1).mean()
    assert same < 0.1  # only chance agreement, 1/64


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 400), st.integers(1, 90), st.integers(1, 12))
def test_labels_stand_at_the_relation_of_facts_not_seen_before(seed, length, number, subjects) -> None:
    task = facts(facts=number, subjects=subjects, objects=5)
    world = {(a, b): c for a, b, c in task.table.tolist()}
    assert len(world) == number
    batch = task.sample(np.random.default_rng(seed), 2, length, "train")
    assert batch.tokens.shape == (2, length)
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        seen = set()
        for t in range(length):
            if t % 3 != 1:
                assert targets[t] == IGNORE
                continue
            fact = tokens[t - 1], tokens[t]
            assert (targets[t] == IGNORE) == (fact in seen)
            if fact not in seen:
                assert targets[t] == world[fact]
            if t + 1 < length:
                assert tokens[t + 1] == world[fact]
            seen.add(fact)
        assert len(seen) == min((length + 1) // 3, number)


def test_a_world_that_does_not_fit_the_vocabulary_is_one_clear_line() -> None:
    with pytest.raises(UsageError, match=r"data\.tasks\.facts\.facts=90000.*data\.vocabulary of at least 2171"):
        facts(facts=90_000)
    with pytest.raises(UsageError, match=r"data\.tasks\.facts\.objects=1: expected at least 2"):
        facts(objects=1)
