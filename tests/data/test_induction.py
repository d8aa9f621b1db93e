"""induction: what stood after the first marker is what is asked at the last."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.data.config import DataConfig
from mmctl.data.induction import Induction, InductionConfig
from mmctl.errors import UsageError


def task(vocabulary: int = 512, **keys: object) -> Induction:
    return Induction(InductionConfig(**keys), DataConfig(vocabulary=vocabulary))  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), markers=st.integers(1, 6), spare=st.integers(0, 40), label_all=st.booleans())
def test_replaying_a_sequence_gives_its_labels(seed: int, markers: int, spare: int, label_all: bool) -> None:
    length = 2 * markers + 1 + spare
    made = task(markers=markers, label_all=label_all)
    made.check_length(length)
    batch = made.sample(np.random.default_rng(seed), 4, length, "train")
    for tokens, targets, gap in zip(batch.tokens, batch.targets, batch.extras["gap"], strict=True):
        at = np.flatnonzero(tokens == made.marker)
        assert len(at) == markers + 1
        assert at[-1] == length - 1
        answers = tokens[at[:-1] + 1]
        assert len(set(answers)) == 1
        assert answers[0] != made.marker
        labelled = np.flatnonzero(targets >= 0)
        assert labelled.tolist() == (at[1:] if label_all else at[-1:]).tolist()
        assert (targets[labelled] == answers[0]).all()
        assert gap[labelled].tolist() == np.diff(at)[-len(labelled) :].tolist()


def test_the_first_marker_stands_anywhere_with_the_same_probability() -> None:
    batch = task().sample(np.random.default_rng(0), 20_000, 12, "train")
    first = (batch.tokens == 256 + 18).argmax(axis=1)
    counts = np.bincount(first, minlength=12)
    assert not counts[10:].any()
    assert np.abs(counts[:10] / 2000 - 1).max() < 0.12


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(UsageError, match=r"induction\.symbols=18"):
        task(vocabulary=270)
    with pytest.raises(UsageError, match=r"data\.length=4"):
        task(markers=2).check_length(4)
