"""recall is the published MQAR: replayed with a dictionary, and its distributions against the formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mmctl.data import build_task
from mmctl.data.config import DataConfig
from mmctl.data.task import IGNORE
from mmctl.errors import UsageError


def recall(vocabulary: int = 512, **keys: object):
    data = DataConfig(vocabulary=vocabulary)
    for key, value in keys.items():
        setattr(data.tasks.recall, key, value)
    return build_task("recall", data)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(2, 200),
    vocabulary=st.integers(8, 700),
    offset=st.sampled_from([0, 1, 256]),
    pairs=st.one_of(st.none(), st.integers(1, 40)),
    noise=st.booleans(),
)
def test_replaying_a_sequence_with_a_dictionary_gives_its_labels(seed, slots, vocabulary, offset, pairs, noise) -> None:
    length = 2 * slots
    try:
        task = recall(vocabulary + offset, offset=offset, pairs=pairs, random_non_queries=noise)
        task.check_length(length)
    except UsageError:
        assert pairs is not None
        assert pairs > vocabulary // 2 - 1 or 4 * pairs > length
        return
    n = task.pairs(length)
    batch = task.sample(np.random.default_rng(seed), 3, length, "train")
    assert batch.tokens.shape == batch.targets.shape == (3, length)
    assert batch.tokens.dtype == batch.targets.dtype == np.int64
    for tokens, targets in zip(batch.tokens - offset, batch.targets, strict=True):
        stored = dict(zip(tokens[0 : 2 * n : 2], tokens[1 : 2 * n : 2], strict=True))
        assert len(stored) == n  # no key twice
        assert len(set(stored.values())) == n  # no value twice
        assert all(1 <= k < vocabulary // 2 for k in stored)
        assert all(vocabulary // 2 <= v < vocabulary for v in stored.values())
        asked = np.flatnonzero(targets != IGNORE)
        assert len(asked) == n
        assert (asked >= 2 * n).all()
        assert (asked % 2 == 0).all()
        assert sorted(tokens[asked]) == sorted(stored)  # each key is asked exactly once
        assert [stored[k] for k in tokens[asked]] == list(targets[asked] - offset)
        rest = np.delete(tokens, np.concatenate([np.arange(2 * n), asked]))
        assert (rest < vocabulary).all()
        if not noise:
            assert (rest == 0).all()


def test_the_published_sizes_are_the_default_ones() -> None:
    task = recall(8192, offset=0)
    assert [task.pairs(length) for length in (64, 128, 256)] == [4, 8, 16]
    assert (task.keys, task.first_value, task.size) == (4095, 4096, 8192)
    assert recall(8192, offset=0, pairs=64).pairs(512) == 64


def test_gaps_follow_the_power_law() -> None:
    # One pair: its slot has exactly the published probability. 40,000 draws, chi-square.
    task = recall(pairs=1, power=0.01)
    gaps = task.sample(np.random.default_rng(1), 40_000, 64, "train").extras["gap"].max(axis=1)
    slots = (64 - 2) // 2
    expected = 0.01 * np.arange(1, slots + 1) ** (0.01 - 1)
    expected *= len(gaps) / expected.sum()
    assert stats.chisquare(np.bincount(gaps, minlength=slots), expected).pvalue > 1e-3


def test_several_gaps_are_drawn_like_numpys_choice_without_replacement() -> None:
    # The reference draws them with numpy's choice; ours must have the same joint distribution, order included.
    task = recall(pairs=2)
    slots, draws = 4, 30_000
    batch = task.sample(np.random.default_rng(2), draws, 12, "train")
    keys = batch.tokens[:, 0:4:2]
    position = (batch.tokens[:, 4::2][:, None, :] == keys[:, :, None]).argmax(axis=2)
    ours = np.bincount(position[:, 0] * slots + position[:, 1], minlength=slots**2)
    weights = np.arange(1, slots + 1) ** (0.01 - 1)
    weights /= weights.sum()
    first, second = np.meshgrid(np.arange(slots), np.arange(slots), indexing="ij")
    exact = np.where(first != second, weights[first] * weights[second] / (1 - weights[first]), 0.0).ravel()
    assert exact.sum() == pytest.approx(1)
    assert (ours[exact == 0] == 0).all()
    assert stats.chisquare(ours[exact > 0], draws * exact[exact > 0]).pvalue > 1e-3


def test_pairs_grow_with_length_until_the_keys_run_out_and_then_it_is_recorded() -> None:
    task = recall(512)
    assert [task.pairs(length) for length in (128, 256, 512, 1024)] == [8, 16, 32, 64]
    assert "capped" not in task.notes(1024)
    assert task.pairs(2048) == 127
    assert task.notes(2048) == {"pairs": 127, "capped": "127 keys exist; 128 would be asked for"}


def test_what_cannot_be_asked_is_one_clear_line() -> None:
    with pytest.raises(UsageError, match=r"data\.tasks\.recall\.pairs=128: expected at most 127"):
        recall(512, pairs=128)
    with pytest.raises(UsageError, match=r"data\.length=30: recall with 8 pairs needs at least 32"):
        recall(512, pairs=8).check_length(30)
    with pytest.raises(UsageError, match=r"data\.length=65.*even"):
        recall(512).check_length(65)
    with pytest.raises(UsageError, match=r"data\.tasks\.recall\.offset=600"):
        recall(512, offset=600)
    with pytest.raises(UsageError, match=r"data\.tasks\.recall\.tokens_per_pair=3: expected at least 4"):
        recall(512, tokens_per_pair=3)
