"""Paired statistics over seeds: arms share their seeds, so what is tested is the mean of the per-seed differences.

Everything here takes plain numbers and gives plain numbers; how a number becomes a verdict is in verdicts.py, and what
the held-out examples behind a number contribute to its error in examples.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
"""Confidence of every interval that is not said to be corrected."""


@dataclass(frozen=True)
class Sampling:
    """Standard error that drawing `examples` held-out examples gives a mean over seeds, whatever its spread over
    seeds."""

    error: float
    examples: int


@dataclass(frozen=True)
class Summary:
    """n numbers: their mean, standard deviation (n - 1; None for a single one) and the mean's 95% interval."""

    n: int
    mean: float
    sd: float | None
    interval: tuple[float, float] | None
    error_from: str | None = None
    """"seeds", or "examples" where these widen the interval (see `Estimate`)."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n seeds with both of its errors: the spread over seeds, and the draw of the held-out examples.

    Every seed is scored on the same examples, so the spread over seeds holds nothing of their sampling error, and of
    saturated scores it is 0. Two intervals are therefore made, and the wider one holds: Student's t over seeds
    (variance sd^2 / n, n - 1 degrees of freedom), and that of both errors together (variance sd^2 / n + sampling^2,
    degrees of freedom by Welch and Satterthwaite's formula); p is the larger of the two tests'. Simulated, this covers
    94 to 96% for any ratio of the two errors, where either alone does not. Without spread and without examples nothing
    is known.
    """

    mean: float
    sd: float | None
    n: int
    sampling: Sampling | None = None

    def errors(self) -> dict[str, tuple[float, float]]:
        """{"seeds" or "examples": (standard error, degrees of freedom)}; "examples" is both together."""
        if self.sd is None:
            return {}
        own = self.sd**2 / self.n
        found = {"seeds": (math.sqrt(own), self.n - 1.0)} if own > 0 else {}
        if self.sampling is not None and self.sampling.error > 0:
            drawn = self.sampling.error**2
            df = (own + drawn) ** 2 / (own**2 / (self.n - 1) + drawn**2 / (self.sampling.examples - 1))
            found["examples"] = (math.sqrt(own + drawn), df)
        return found

    def half_widths(self, level: float = LEVEL) -> dict[str, float]:
        return {source: quantile(level, df) * error for source, (error, df) in self.errors().items()}

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        half = max(self.half_widths(level).values(), default=None)
        return None if half is None else (self.mean - half, self.mean + half)

    def error_from(self) -> str | None:
        """ "examples" where these widen the interval over seeds."""
        widths = self.half_widths()
        return max(widths, key=widths.__getitem__) if widths else None

    def p(self) -> float | None:
        """Two-sided p-value of a mean of 0."""
        from scipy.stats import t

        tests = (2.0 * float(t.sf(abs(self.mean) / error, df)) for error, df in self.errors().values())
        return max(tests, default=None)


@dataclass(frozen=True)
class Difference:
    """Mean paired difference, treatment minus control, in the metric's unit.

    `interval` is the 95% interval (see `Estimate`; `over` = "seeds"), or for a single pair of runs a paired bootstrap
    over their examples (`over` = "examples"), or None where neither can be had. `p` is the two-sided test's.
    """

    n: int
    mean: float
    sd: float | None
    interval: tuple[float, float] | None
    p: float | None
    over: str = "seeds"
    seeds: tuple[int, ...] = ()
    sampling: Sampling | None = None
    error_from: str | None = None
    """"seeds", or "examples" where these widen the interval."""

    def at(self, level: float) -> tuple[float, float] | None:
        """The interval at another confidence level; None where no error is known."""
        return Estimate(self.mean, self.sd, self.n, self.sampling).interval(level)


def quantile(level: float, df: float) -> float:
    """Student's two-sided quantile: 4.30 for 0.95 with 2 degrees of freedom."""
    from scipy.stats import t

    return float(t.ppf(0.5 + level / 2, df))


def summarise(values: Sequence[float], sampling: Sampling | None = None) -> Summary | None:
    """Mean, spread and interval of one arm's scores; None for no scores."""
    if not values:
        return None
    found = Estimate(*_moments(values), len(values), sampling)
    return Summary(found.n, found.mean, found.sd, found.interval(), found.error_from())


def paired(
    treatment: Mapping[int, float], control: Mapping[int, float], sampling: Sampling | None = None
) -> Difference | None:
    """Difference over the seeds both arms have, {seed: score} each. None when they share none."""
    seeds = tuple(sorted(treatment.keys() & control.keys()))
    return _tested([treatment[s] - control[s] for s in seeds], seeds, sampling)


def one_sample(values: Mapping[int, float], sampling: Sampling | None = None) -> Difference | None:
    """The same for one arm's own values, for claims that a quantity lies in a range (p is not used there)."""
    seeds = tuple(sorted(values))
    return _tested([values[s] for s in seeds], seeds, sampling)


def _tested(values: Sequence[float], seeds: tuple[int, ...], sampling: Sampling | None) -> Difference | None:
    if not values:
        return None
    one = Estimate(*_moments(values), len(values), sampling)
    return Difference(
        one.n, one.mean, one.sd, one.interval(), one.p(), seeds=seeds, sampling=sampling, error_from=one.error_from()
    )


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

    A test without a p-value has not been run: it counts in the family (as p = 1) and is never rejected, so filling it
    in later cannot have helped the others. The k-th smallest of m p-values is compared with alpha / (m - k + 1); the
    level of its interval is one minus that. From the first that is not rejected, all share that one's level: an
    interval then excludes 0 exactly when its test is rejected.
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
