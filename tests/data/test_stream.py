"""stream: recent keys are asked again, the last value counts, and held-out sequences end with the passkey."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from mmctl.data.stream import Stream, StreamConfig, edges
from mmctl.data.task import IGNORE
from mmctl.errors import UsageError


def make(training_length: int = 16, **keys: object) -> Stream:
    return Stream(StreamConfig(**{"offset": 0, **keys}), SimpleNamespace(vocabulary=64, length=training_length))


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_what_is_asked_is_the_last_value_told_within_reach(split: str) -> None:
    task = make(keys=6, reach=5)
    batch = task.sample(np.random.default_rng(1), 20, 80, split)  # type: ignore[arg-type]
    asked = 0
    for row, targets, gaps in zip(batch.tokens, batch.targets, batch.extras["gap"], strict=True):
        told: dict[int, int] = {}
        seen: dict[int, int] = {}
        for slot, (key, value) in enumerate(zip(row[0::2], row[1::2], strict=True)):
            assert key < 6 <= value < 12
            last = split == "held-out" and slot == 39
            if targets[2 * slot] != IGNORE:
                asked += 1
                assert targets[2 * slot] == value == told[key]
                assert gaps[2 * slot] == slot - seen[key]
                assert last or slot - seen[key] <= 5
            assert targets[2 * slot + 1] == IGNORE
            told[key], seen[key] = value, slot
        if split == "held-out":
            assert row[0] == row[78] == 0
            assert (row[2:78:2] != 0).all()
            assert targets[78] == row[1]
    assert asked > 20 * 39 * 0.3


def test_keys_are_reassigned_and_half_the_slots_ask() -> None:
    batch = make().sample(np.random.default_rng(0), 200, 64, "train")
    assert batch.labelled.sum() / (200 * 31) == pytest.approx(0.5, abs=0.02)
    values = [{tuple(pair) for pair in row.reshape(-1, 2)} for row in batch.tokens]
    assert any(len(pairs) > len({key for key, _ in pairs}) for pairs in values)


def test_parts_are_quarters_of_the_training_length_and_then_halves_of_octaves() -> None:
    assert edges(16, 16) == [0, 4, 8, 12, 16]
    assert edges(128, 16) == [0, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert edges(256, 32) == [2 * end for end in edges(128, 16)]


def test_scores_by_part_and_the_passkey_apart() -> None:
    """Losses equal to the position: each part's score is the mean position of its labels."""
    task, length = make(16, asked=0.9), 64
    batch = task.sample(np.random.default_rng(0), 50, length, "held-out")
    losses = np.broadcast_to(np.arange(length, dtype=float), batch.tokens.shape)
    correct = np.zeros(batch.tokens.shape, dtype=bool)
    correct[:25, length - 2] = True
    scores = task.scores(batch, losses, correct)
    assert scores["accuracy-passkey"].value == 0.5
    assert scores["accuracy"].value == 0  # the passkey is not among the others
    for part, (low, high) in enumerate(itertools.pairwise(edges(length, 16)), 1):
        where = [p for p in range(low, min(high, length - 2)) if p % 2 == 0]
        labels = batch.labelled[:, where].sum(axis=0)
        if labels.sum():
            assert scores[f"loss-part{part}"].value == pytest.approx((labels * where).sum() / labels.sum())
    assert scores["loss-end"].value > 48
    assert task.chance(length) == 1 / 16


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"keys": 1}, r"stream\.keys=1"),
        ({"keys": 40}, r"stream\.keys=40: as many keys as values need data\.vocabulary of at least 80"),
        ({"asked": 1.0}, r"stream\.asked=1\.0"),
        ({"reach": 0}, r"stream\.reach=0"),
    ],
)
def test_values_no_stream_can_have(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(**keys)  # type: ignore[arg-type]


def test_a_length_without_whole_slots_in_its_quarters_is_refused() -> None:
    with pytest.raises(UsageError, match=r"data\.length=20: stream .* a multiple of 8"):
        make().check_length(20)
