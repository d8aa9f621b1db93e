"""Paired statistics over seeds: arms share their seeds, so what is tested is the mean of the per-seed differences.

Everything here takes plain numbers and gives plain numbers; how a number becomes a verdict is in verdicts.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEVEL = 0.95
"""Confidence of every interval that is not said to be corrected."""

RESAMPLES = 2000
"""Bootstrap resamples for an interval over the examples of a single run."""


@dataclass(frozen=True)
class Summary:
    """n numbers: their mean, standard deviation (n - 1; None for a single one) and the mean's t interval."""

    n: int
    mean: float
    sd: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Difference:
    """Mean paired difference, treatment minus control, in the metric's unit.

    `interval` is the 95% interval: Student's t over seeds (`over` = "seeds"), or for a single pair of runs a paired
    bootstrap over their examples (`over` = "examples"), or None where neither can be had. `p` is the two-sided t-test's.
    """

    n: int
    mean: float
    sd: float | None
    interval: tuple[float, float] | None
    p: float | None
    over: str = "seeds"
    seeds: tuple[int, ...] = ()

    def at(self, level: float) -> tuple[float, float] | None:
        """The t interval at another confidence level; None where there is no spread over seeds."""
        return None if self.sd is None else t_interval(self.mean, self.sd, self.n, level)


def t_interval(mean: float, sd: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Student's interval for the mean of n numbers with standard deviation sd. Zero spread gives a point."""
    from scipy.stats import t

    half = float(t.ppf(0.5 + level / 2, n - 1)) * sd / math.sqrt(n) if sd > 0 else 0.0
    return mean - half, mean + half


def summarise(values: Sequence[float]) -> Summary | None:
    """Mean, spread and interval of one arm's scores; None for no scores."""
    if not values:
        return None
    mean, sd = _moments(values)
    return Summary(len(values), mean, sd, None if sd is None else t_interval(mean, sd, len(values)))


def paired(treatment: Mapping[int, float], control: Mapping[int, float]) -> Difference | None:
    """Difference over the seeds both arms have, {seed: score} each. None when they share none.

    Without spread (every pair differs by the same amount) the interval is a point and p is 0, or 1 for no difference.
    """
    seeds = tuple(sorted(treatment.keys() & control.keys()))
    return _tested([treatment[s] - control[s] for s in seeds], seeds)


def one_sample(values: Mapping[int, float]) -> Difference | None:
    """The same for one arm's own values, for claims that a quantity lies in a range (p is not used there)."""
    seeds = tuple(sorted(values))
    return _tested([values[s] for s in seeds], seeds)


def _tested(values: Sequence[float], seeds: tuple[int, ...]) -> Difference | None:
    if not values:
        return None
    n = len(values)
    mean, sd = _moments(values)
    if sd is None:
        return Difference(n, mean, None, None, None, seeds=seeds)
    if sd == 0.0:
        p = 1.0 if mean == 0.0 else 0.0
    else:
        from scipy.stats import t

        p = 2.0 * float(t.sf(abs(mean) / (sd / math.sqrt(n)), n - 1))
    return Difference(n, mean, sd, t_interval(mean, sd, n), p, seeds=seeds)


def _moments(values: Sequence[float]) -> tuple[float, float | None]:
    numbers = np.asarray(values, dtype=np.float64)
    if len(numbers) == 1:
        return float(numbers[0]), None
    # The spread of equal numbers is exactly zero, whatever rounding their mean suffers.
    if np.all(numbers == numbers[0]):
        return float(numbers[0]), 0.0
    return float(numbers.mean()), float(numbers.std(ddof=1))


def holm(p_values: Sequence[float | None], alpha: float = 1.0 - LEVEL) -> list[tuple[bool, float]]:
    """Holm's step-down procedure (1979): for each test, (rejected, confidence level of its corrected interval).

    A test without a p-value has not been run: it counts in the family (as p = 1) and is never rejected, so filling it in
    later cannot have helped the others. The k-th smallest of m p-values is compared with alpha / (m - k + 1); the level of
    its interval is one minus that. From the first that is not rejected, all share that one's level: an interval then
    excludes 0 exactly when its test is rejected.
    """
    m = len(p_values)
    order = sorted(range(m), key=lambda i: math.inf if p_values[i] is None else p_values[i])  # type: ignore[arg-type, return-value]
    outcome = [(False, 1.0 - alpha)] * m
    stopped_at: float | None = None
    for rank, index in enumerate(order):
        threshold = alpha / (m - rank) if stopped_at is None else stopped_at
        p = p_values[index]
        rejected = stopped_at is None and p is not None and p < threshold
        if not rejected and stopped_at is None:
            stopped_at = threshold
        outcome[index] = (rejected, 1.0 - threshold)
    return outcome


def holm_adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm-adjusted p-values: reject at alpha exactly where they are below alpha. None stays None but counts."""
    m = len(p_values)
    order = sorted(range(m), key=lambda i: math.inf if p_values[i] is None else p_values[i])  # type: ignore[arg-type, return-value]
    adjusted: list[float | None] = [None] * m
    running = 0.0
    for rank, index in enumerate(order):
        p = p_values[index]
        if p is None:
            continue
        running = max(running, min(1.0, p * (m - rank)))
        adjusted[index] = running
    return adjusted


def bootstrap_difference(
    treatment: Mapping[str, Any], control: Mapping[str, Any], *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[tuple[float, float], bool] | None:
    """95% percentile interval of treatment minus control over the examples of one run each, and whether it is paired.

    Both are scores with per-example numerators and denominators (`correct`/`total` or `sum`/`count`); the score is the
    ratio of their sums. Two runs evaluated on the same examples are resampled together. None without such lists.
    """
    a, b = _examples(treatment), _examples(control)
    if a is None or b is None:
        return None
    together = a.shape == b.shape and bool(np.array_equal(a[1], b[1]))
    rng = np.random.default_rng([seed, a.shape[1], b.shape[1]])
    differences = np.empty(resamples)
    for i in range(resamples):
        pick = rng.integers(a.shape[1], size=a.shape[1])
        other = pick if together else rng.integers(b.shape[1], size=b.shape[1])
        differences[i] = _ratio(a[:, pick]) - _ratio(b[:, other])
    differences = differences[np.isfinite(differences)]
    if not len(differences):
        return None
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return (float(low), float(high)), together


def _examples(score: Mapping[str, Any]) -> np.ndarray | None:
    """(2, n): per-example numerators and denominators."""
    for over, under in (("correct", "total"), ("sum", "count")):
        if isinstance(score.get(over), list) and isinstance(score.get(under), list) and score[over]:
            return np.asarray([score[over], score[under]], dtype=np.float64)
    return None


def _ratio(examples: np.ndarray) -> float:
    over, under = examples.sum(axis=1)
    return float(over / under) if under else math.nan
