"""icl: classes, words, labels and shots, each recovered independently from the tokens."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mmctl.data import build_task
from mmctl.data.config import DataConfig
from mmctl.data.icl import gain_per_doubling
from mmctl.data.task import IGNORE
from mmctl.errors import UsageError


def icl(vocabulary: int = 512, **keys: int):
    data = DataConfig(vocabulary=vocabulary)
    for key, value in keys.items():
        setattr(data.tasks.icl, key, value)
    return build_task("icl", data)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    length=st.integers(8, 300),
    classes=st.integers(2, 6),
    owned=st.integers(1, 5),
    shown=st.integers(1, 5),
)
def test_a_reader_of_the_tokens_finds_the_same_classes_labels_and_shots(seed, length, classes, owned, shown) -> None:
    shown = min(shown, owned)
    task = icl(classes=classes, words_per_class=owned, words_per_example=shown)
    batch = task.sample(np.random.default_rng(seed), 2, length, "train")
    size = shown + 2
    for row in range(2):
        tokens, targets = batch.tokens[row].tolist(), batch.targets[row].tolist()
        seen: Counter[int] = Counter()
        words: dict[int, set[int]] = defaultdict(set)
        for start in range(0, length, size):
            example = tokens[start : start + size]
            assert all(t == IGNORE for t in targets[start : start + shown])
            if len(example) <= shown:
                continue  # cut off before its separator
            assert example[shown] == task.separator
            label = targets[start + shown]
            assert task.first_label <= label < task.separator
            assert batch.extras["shots"][row, start + shown] == seen[label]
            assert len(set(example[:shown])) == shown
            assert all(task.first_word <= w < task.first_label for w in example[:shown])
            words[label] |= set(example[:shown])
            seen[label] += 1
            if len(example) == size:
                assert example[-1] == label
                assert targets[start + size - 1] == IGNORE
        assert len(seen) <= classes
        assert all(len(w) <= owned for w in words.values())
        assert sum(map(len, words.values())) == len(set().union(*words.values()))  # classes share no word
    assert ((batch.extras["shots"] >= 0) == batch.labelled).all()


def test_classes_and_labels_are_fresh_in_every_sequence_and_uniform() -> None:
    task = icl()
    batch = task.sample(np.random.default_rng(0), 4000, 5, "train")  # one example each
    labels = batch.targets[:, 3] - task.first_label
    words = batch.tokens[:, :3].ravel() - task.first_word
    assert stats.chisquare(np.bincount(labels, minlength=12)).pvalue > 1e-3
    assert stats.chisquare(np.bincount(words, minlength=96)).pvalue > 1e-3
    # A word says nothing of the label across sequences.
    table = np.zeros((96, 12))
    np.add.at(table, (batch.tokens[:, 0] - task.first_word, labels), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_scores_by_shots_count_exactly_their_labels() -> None:
    task = icl()
    batch = task.sample(np.random.default_rng(0), 8, 256, "held-out")
    shots = batch.extras["shots"]
    # A reader that knows a class from its third example on.
    scores = task.scores(batch, np.ones(shots.shape), shots >= 2)
    assert scores["accuracy-shots0"].value == 0
    assert scores["accuracy-shots1"].value == 0
    assert scores["accuracy-shots2"].value == 1
    assert scores["accuracy-shots2"].count.sum() == (shots == 2).sum() > 0
    assert scores["accuracy"].value == pytest.approx((shots >= 2).sum() / (shots >= 0).sum())
    last = shots[:, 192:]
    assert scores["accuracy-last-quarter"].value == pytest.approx((last >= 2).sum() / (last >= 0).sum())
    assert scores["accuracy"].count.tolist() == [51] * 8


def test_the_gain_per_doubling_is_the_slope_within_sequences() -> None:
    rng = np.random.default_rng(0)
    shots = rng.integers(0, 30, (5, 40))
    shots[4] = 0  # a sequence in which nothing could be known
    level = np.array([[0.1], [0.3], [0.2], [0.0], [0.9]])  # not the slope's business
    answers = level + 0.07 * np.log2(np.maximum(shots, 1))
    ratio = gain_per_doubling(shots, np.where(shots >= 1, answers, 1e6))
    assert ratio.value == pytest.approx(0.07)
    assert ratio.count[4] == ratio.total[4] == 0
    rows = [(np.log2(s[s >= 1]), a[s >= 1]) for s, a in zip(shots[:4], rng.random((4, 40)), strict=True)]
    noisy = np.zeros(shots.shape)
    for i, (_, a) in enumerate(rows):
        noisy[i, shots[i] >= 1] = a
    centred = [(x - x.mean(), a - a.mean()) for x, a in rows]
    slope = np.polyfit(np.concatenate([x for x, _ in centred]), np.concatenate([a for _, a in centred]), 1)[0]
    assert gain_per_doubling(shots, noisy).value == pytest.approx(slope)
    batch = icl().sample(rng, 8, 256, "held-out")
    learned = icl().scores(batch, np.ones(batch.tokens.shape), batch.extras["shots"] >= 3)
    assert learned["gain-per-doubling"].value > 0.2
    assert not learned["gain-per-doubling"].accuracy
    assert icl().scores(batch, np.ones(batch.tokens.shape), batch.labelled)["gain-per-doubling"].value == pytest.approx(
        0
    )


def test_what_does_not_fit_is_one_clear_line() -> None:
    with pytest.raises(UsageError, match=r"data\.tasks\.icl\.classes=13: expected at most data\.tasks\.icl\.labels=12"):
        icl(classes=13)
    with pytest.raises(UsageError, match=r"data\.tasks\.icl\.words=96: .* at least classes x words_per_class = 104"):
        icl(words_per_class=13)
    with pytest.raises(UsageError, match=r"data\.vocabulary of at least 366"):
        icl(vocabulary=300)
    with pytest.raises(UsageError, match=r"data\.length=4: expected at least 5"):
        icl().check_length(4)
