"""Paired statistics against scipy's own tests and a hand-worked Holm example."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from mmctl.sweeps.examples import bootstrap_difference, sampling
from mmctl.sweeps.statistics import (
    Sampling,
    holm,
    holm_adjusted,
    one_sample,
    paired,
    summarise,
)


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_paired_difference_equals_scipys_paired_t_test(n: int) -> None:
    rng = np.random.default_rng([3, n])
    a, b = rng.normal(1.0, 2.0, n), rng.normal(0.3, 1.0, n)
    found = paired(dict(enumerate(a)), dict(enumerate(b)))
    reference = stats.ttest_rel(a, b)
    interval = reference.confidence_interval(0.95)
    assert found is not None
    assert found.n == n
    assert found.mean == pytest.approx((a - b).mean())
    assert found.sd == pytest.approx((a - b).std(ddof=1))
    assert found.p == pytest.approx(reference.pvalue, rel=1e-9)
    assert found.interval == pytest.approx((interval.low, interval.high))
    wider = stats.ttest_rel(a, b).confidence_interval(0.999)
    assert found.at(0.999) == pytest.approx((wider.low, wider.high))


def test_three_pairs_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, sd 1, t(2) at 97.5% = 4.30265, half width 4.30265 / sqrt(3)."""
    found = paired({0: 2.0, 1: 4.0, 2: 6.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert found is not None
    assert (found.mean, found.sd) == (2.0, 1.0)
    assert found.interval == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), abs=1e-6)


def test_only_shared_seeds_are_paired() -> None:
    found = paired({0: 5.0, 1: 1.0, 7: 2.0}, {1: 0.5, 7: 1.0, 9: 100.0})
    assert found is not None
    assert found.seeds == (1, 7)
    assert found.mean == pytest.approx(0.75)
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert paired({}, {}) is None


def test_one_pair_has_no_spread_and_no_test() -> None:
    found = paired({4: 1.0}, {4: 0.25})
    assert found is not None
    assert (found.n, found.mean, found.sd, found.interval, found.p) == (1, 0.75, None, None, None)


@pytest.mark.parametrize("difference", [0.0, 0.1, -0.1])
def test_equal_differences_without_examples_have_no_interval(difference: float) -> None:
    """No spread and nothing else to take an error from is not certainty."""
    found = one_sample({0: difference, 1: difference, 2: difference})
    assert found is not None
    assert (found.sd, found.interval, found.p, found.at(0.99)) == (0.0, None, None, None)
    summary = summarise([difference] * 3)
    assert summary is not None
    assert summary.interval is None


def test_the_wider_of_two_intervals_holds() -> None:
    """Three seeds, sd 0.01: variance 0.01^2 / 3 over seeds, with 128 examples of error 0.02 0.000433, df by the
    formula."""
    values = {0: 0.09, 1: 0.10, 2: 0.11}
    seeds = one_sample(values)
    wide = one_sample(values, Sampling(0.02, 128))
    narrow = one_sample(values, Sampling(0.001, 128))
    assert seeds is not None
    assert wide is not None
    assert narrow is not None
    own, drawn = 0.01**2 / 3, 0.02**2
    df = (own + drawn) ** 2 / (own**2 / 2 + drawn**2 / 127)
    half = float(stats.t.ppf(0.975, df)) * math.sqrt(own + drawn)
    assert wide.interval == pytest.approx((0.1 - half, 0.1 + half))
    assert (wide.error_from, narrow.error_from) == ("examples", "seeds")
    assert narrow.interval == seeds.interval
    assert narrow.p == seeds.p
    # At 99.9% and far from 0 the seeds' t, with 2 degrees of freedom, is the wider one and the larger p.
    assert wide.at(0.999) == seeds.at(0.999)
    assert wide.p == seeds.p
    noisy = one_sample(values, Sampling(0.1, 128))
    assert noisy is not None
    error = math.sqrt(own + 0.1**2)
    df = error**4 / (own**2 / 2 + 0.1**4 / 127)
    assert noisy.p == pytest.approx(2 * float(stats.t.sf(0.1 / error, df)))


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0, 2.0, 8.0])
def test_intervals_cover_the_truth_whatever_the_two_errors_are(n: int, ratio: float) -> None:
    """Scores of n seeds vary by 1, all of them by the same draw of examples. Alone, t over five seeds covers 72% at
    ratio 2."""
    rng = np.random.default_rng([n, int(10 * ratio)])
    drawn = ratio / math.sqrt(n)
    trials, inside = 1500, 0
    for _ in range(trials):
        values = rng.normal(0.3, 1.0, n) + drawn * rng.normal()
        found = one_sample(dict(enumerate(values)), Sampling(drawn, 128) if drawn else None)
        assert found is not None
        assert found.interval is not None
        inside += found.interval[0] <= 0.3 <= found.interval[1]
    assert 0.925 < inside / trials < 0.975


def test_examples_give_an_interval_where_seeds_have_no_spread() -> None:
    found = one_sample({0: 0.5, 1: 0.5, 2: 0.5}, Sampling(0.01, 32))
    assert found is not None
    half = float(stats.t.ppf(0.975, 31)) * 0.01
    assert found.interval == pytest.approx((0.5 - half, 0.5 + half))
    assert found.p == pytest.approx(2 * float(stats.t.sf(50, 31)))


def test_both_tests_must_reject_for_the_corrected_interval_to_exclude_zero() -> None:
    rng = np.random.default_rng(9)
    found = []
    for mean in rng.uniform(-0.2, 0.2, 60):
        found.append(one_sample(dict(enumerate(rng.normal(mean, 0.05, 4))), Sampling(float(rng.uniform(0, 0.08)), 64)))
    for difference, (rejected, level) in zip(found, holm([d.p for d in found if d is not None]), strict=True):
        assert difference is not None
        low, high = difference.at(level) or (0.0, 0.0)
        assert (low > 0 or high < 0) == rejected


def test_one_sample_equals_scipy() -> None:
    values = [0.21, 0.25, 0.33, 0.30]
    found = one_sample(dict(enumerate(values)))
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert found is not None
    assert found.interval == pytest.approx((interval.low, interval.high))


def test_summary_of_scores() -> None:
    found = summarise([1.0, 2.0, 4.0])
    assert found is not None
    assert (found.n, found.mean) == (3, pytest.approx(7 / 3))
    assert found.sd == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert found.interval == pytest.approx(stats.t.interval(0.95, 2, 7 / 3, stats.sem([1, 2, 4])))
    assert summarise([]) is None
    single = summarise([2.0])
    assert single is not None
    assert (single.sd, single.interval) == (None, None)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(11)
    samples = rng.normal(0.7, 1.3, (4000, 4))
    inside = 0
    for row in samples:
        found = summarise(row.tolist())
        assert found is not None
        assert found.interval is not None
        inside += found.interval[0] <= 0.7 <= found.interval[1]
    assert 0.95 - 3 * math.sqrt(0.05 * 0.95 / 4000) < inside / 4000 < 0.95 + 3 * math.sqrt(0.05 * 0.95 / 4000)


def test_holm_known_example() -> None:
    """Four tests at 0.05 (p = .01, .04, .03, .005): .005 < .0125 and .01 < .0167 are rejected, .03 > .025 stops."""
    outcome = holm([0.01, 0.04, 0.03, 0.005])
    assert [rejected for rejected, _ in outcome] == [True, False, False, True]
    assert [round(level, 6) for _, level in outcome] == [
        round(1 - 0.05 / 3, 6),
        0.975,
        0.975,
        0.9875,
    ]
    assert holm_adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_claim_that_was_not_run_counts_in_the_family() -> None:
    assert holm([0.02]) == [(True, pytest.approx(0.95))]
    assert [rejected for rejected, _ in holm([0.02, None, None])] == [False, False, False]
    assert [rejected for rejected, _ in holm([0.01, None, None])] == [True, False, False]
    assert holm_adjusted([0.02, None, None]) == [pytest.approx(0.06), None, None]


def test_holm_agrees_with_the_closed_testing_it_is_a_shortcut_of() -> None:
    """A hypothesis is rejected when Bonferroni rejects every set of hypotheses that holds it."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        p = rng.uniform(0, 0.08, 4).tolist()
        expected = []
        for i in range(4):
            sets = [s for r in range(1, 5) for s in itertools.combinations(range(4), r) if i in s]
            expected.append(all(min(p[j] for j in s) < 0.05 / len(s) for s in sets))
        assert [rejected for rejected, _ in holm(p)] == expected
        adjusted = holm_adjusted(p)
        assert [a is not None and a < 0.05 for a in adjusted] == expected


def test_corrected_interval_excludes_zero_exactly_when_rejected() -> None:
    rng = np.random.default_rng(6)
    for _ in range(100):
        differences = [one_sample(dict(enumerate(rng.normal(effect, 0.3, 4)))) for effect in rng.uniform(-1.5, 1.5, 5)]
        outcome = holm([d.p for d in differences if d is not None])
        for difference, (rejected, level) in zip(differences, outcome, strict=True):
            assert difference is not None
            low, high = difference.at(level) or (0.0, 0.0)
            assert (low > 0 or high < 0) == rejected


def score(correct: list[int], total: list[int]) -> dict[str, list[int]]:
    return {"correct": correct, "total": total}


def test_sampling_error_of_a_mean_is_the_textbooks() -> None:
    """One label an example: the standard error of a proportion, with n - 1."""
    rng = np.random.default_rng(3)
    right = rng.binomial(1, 0.7, 200)
    found = sampling([score(right.tolist(), [1] * 200)])
    assert found is not None
    assert found.examples == 200
    assert found.error == pytest.approx(right.std(ddof=1) / math.sqrt(200))


def test_sampling_error_is_paired_and_averaged_over_seeds() -> None:
    rng = np.random.default_rng(4)
    total = [10] * 50
    one, two = rng.integers(0, 10, (2, 50)), rng.integers(0, 10, (2, 50))
    found = sampling([score(a.tolist(), total) for a in one], [score(b.tolist(), total) for b in two])
    per_example = (one - two).mean(axis=0) / 10
    assert found is not None
    assert found.error == pytest.approx(per_example.std(ddof=1) / math.sqrt(50))


def test_sampling_error_of_a_ratio_agrees_with_the_bootstrap() -> None:
    """Unequal numbers of labels: the linearised error is that of resampling whole examples."""
    rng = np.random.default_rng(5)
    total = rng.integers(1, 40, 300)
    correct = rng.binomial(total, 0.6)
    other = rng.binomial(total, 0.5)
    treatment, control = score(correct.tolist(), total.tolist()), score(other.tolist(), total.tolist())
    found = sampling([treatment], [control])
    resampled = bootstrap_difference(treatment, control)
    assert found is not None
    assert resampled is not None
    (low, high), _ = resampled
    assert 2 * 1.96 * found.error == pytest.approx(high - low, rel=0.08)


def test_saturated_scores_are_no_certainty() -> None:
    """All of 1000 labels right in both arms: the exact binomial bound on an error rate unseen is 1 - 0.025^(1/1000)."""
    perfect = [score([10] * 100, [10] * 100)] * 3
    found = sampling(perfect, perfect)
    assert found is not None
    assert found.error == pytest.approx(2 / 1000)
    difference = one_sample({0: 0.0, 1: 0.0, 2: 0.0}, found)
    assert difference is not None
    assert difference.interval is not None
    exact = 1 - 0.025 ** (1 / 1000)
    assert exact < difference.interval[1] < 1.15 * exact


def test_other_examples_in_each_arm_add_their_variances() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.binomial(1, 0.7, 80), rng.binomial(1, 0.4, 60)
    found = sampling([score(a.tolist(), [1] * 80)], [score(b.tolist(), [1] * 60)])
    assert found is not None
    assert found.error == pytest.approx(math.hypot(a.std(ddof=1) / math.sqrt(80), b.std(ddof=1) / math.sqrt(60)))
    assert found.examples == 60


@pytest.mark.parametrize(
    "sides",
    [
        ([{}],),
        ([{"value": 0.5}], [score([1], [1])]),
        ([score([1, 0], [1, 1]), score([1, 0, 1], [1, 1, 1])],),
        ([score([1], [1])],),
        ([],),
        ([score([0, 0], [0, 0])],),
    ],
)
def test_no_sampling_error_without_shared_examples(sides: tuple) -> None:
    assert sampling(*sides) is None


def test_bootstrap_over_examples_is_paired() -> None:
    """Each example is one better in the treatment: resampling them together leaves no spread at all."""
    rng = np.random.default_rng(2)
    control = rng.integers(0, 8, 60)
    found = bootstrap_difference(score((control + 1).tolist(), [10] * 60), score(control.tolist(), [10] * 60))
    assert found is not None
    interval, together = found
    assert together
    assert interval == pytest.approx((0.1, 0.1))


def test_bootstrap_agrees_with_the_normal_approximation() -> None:
    rng = np.random.default_rng(8)
    a, b = rng.binomial(1, 0.7, 400), rng.binomial(1, 0.5, 400)
    found = bootstrap_difference(score(a.tolist(), [1] * 400), score(b.tolist(), [1] * 400))
    assert found is not None
    difference = a - b
    half = 1.96 * difference.std(ddof=1) / math.sqrt(400)
    low, high = found[0]
    assert low == pytest.approx(difference.mean() - half, abs=0.01)
    assert high == pytest.approx(difference.mean() + half, abs=0.01)


def test_bootstrap_without_shared_examples_says_so() -> None:
    found = bootstrap_difference(score([1, 0, 1], [1, 1, 1]), score([1, 0], [1, 1]))
    assert found is not None
    assert not found[1]
    assert bootstrap_difference({"value": 0.5}, score([1], [1])) is None
