"""Intervals: against scipy's bootstrap, and against the truth (coverage)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mmctl.evaluation.bootstrap import interval, resample_counts


def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Examples with 1-20 labels each and an accuracy of their own (mean 0.7): total correct and count."""
    count = rng.integers(1, 21, n)
    return rng.binomial(count, rng.beta(7, 3, n)).astype(float), count.astype(float)


def test_agrees_with_scipy() -> None:
    total, count = draw(np.random.default_rng(0), 60)
    ours = interval(total, count, resample_counts(60, 20_000, np.random.default_rng(1)))
    theirs = stats.bootstrap(
        (total, count),
        lambda t, c, axis: t.sum(axis=axis) / c.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=2e-3)


def test_covers_the_truth_about_95_times_of_100() -> None:
    # Count and accuracy are independent, so the ratio of sums has expectation 0.7.
    rng = np.random.default_rng(3)
    draws = resample_counts(64, 1000, rng)
    inside = 0
    for _ in range(1000):
        low, high = interval(*draw(rng, 64), draws)
        inside += low <= 0.7 <= high
    assert 0.92 < inside / 1000 < 0.97  # percentile intervals of 64 examples are a little short


def test_examples_not_labels_are_what_varies() -> None:
    # 20 examples of 100 labels that are all right or all wrong: the spread is that of 20 coin tosses, not of 2,000.
    total = np.array([100.0, 0.0] * 10)
    low, high = interval(total, np.full(20, 100.0), resample_counts(20, 4000, np.random.default_rng(0)))
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 20), rel=0.15)


def test_certainty_is_never_claimed() -> None:
    draws = resample_counts(50, 500, np.random.default_rng(0))
    perfect = interval(np.full(50, 7.0), np.full(50, 7.0), draws, accuracy=True)
    exact = stats.binomtest(50, 50).proportion_ci(method="exact")
    assert perfect == pytest.approx((exact.low, 1.0))
    none = interval(np.zeros(50), np.full(50, 7.0), draws, accuracy=True)
    assert none == pytest.approx((0.0, stats.binomtest(0, 50).proportion_ci(method="exact").high))


def test_examples_without_labels_do_not_count() -> None:
    draws = resample_counts(40, 2000, np.random.default_rng(0))
    total, count = np.zeros(40), np.zeros(40)
    assert interval(total, count + np.eye(40)[3], draws) is None  # one example says nothing of spread
    total[:2], count[:2] = (1.0, 0.0), 1.0
    low, high = interval(total, count, draws)
    assert (low, high) == (0.0, 1.0)


def test_resamples_are_draws_with_replacement() -> None:
    draws = resample_counts(30, 3000, np.random.default_rng(0))
    assert (draws.sum(axis=1) == 30).all()
    assert draws.mean() == pytest.approx(1)
    assert draws.var() == pytest.approx(29 / 30, rel=0.05)
