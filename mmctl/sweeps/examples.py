"""What the held-out examples behind a score contribute to its error: their sampling error, and a bootstrap over them.

A score is a ratio of sums over examples; evaluations keep its per-example numerators and denominators
(`correct`/`total` of an accuracy, `sum`/`count` of a loss), so that examples, whose labels share a context, are
resampled whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmctl.sweeps.statistics import LEVEL, Sampling

RESAMPLES = 2000
"""Bootstrap resamples for an interval over the examples of a single run."""


def sampling(
    treatment: Sequence[Mapping[str, Any]], control: Sequence[Mapping[str, Any]] | None = None
) -> Sampling | None:
    """Sampling error of the held-out examples in the mean over seeds of treatment minus control (or of treatment
    alone).

    Both are one score a seed. Linearised ratio estimator, examples as clusters of labels: u_i = (a_i - R c_i) / sum(c),
    averaged over seeds, which see the same examples, and subtracted where both arms see the same ones (else their
    variances are added); the error is the root of sum(u_i^2) n / (n - 1). None without such lists.

    An accuracy that is 0 or 1 throughout has no spread to take an error from, and is no certainty: its error is never
    less than 2 / labels, whose 95% interval is a little wider than the exact binomial one of no error in as many
    trials.
    """
    sides = [_influence(scores) for scores in (treatment, control) if scores is not None]
    known = [side for side in sides if side is not None]
    if len(known) < len(sides):
        return None
    if len(known) == 2 and np.array_equal(known[0].counts, known[1].counts):
        variance = _clustered(known[0].influence - known[1].influence)
    else:
        variance = sum(_clustered(side.influence) for side in known)
    examples = min(int(np.count_nonzero(side.counts)) for side in known)
    least = max((2 / side.counts.sum() for side in known if side.accuracy), default=0.0)
    return Sampling(max(math.sqrt(variance), float(least)), examples) if examples > 1 else None


@dataclass(frozen=True)
class _Side:
    """One arm: (n,) influence of each example on its mean score over seeds, and (n,) labels of each."""

    influence: np.ndarray
    counts: np.ndarray
    accuracy: bool


def _influence(scores: Sequence[Mapping[str, Any]]) -> _Side | None:
    """None where there are no examples, or where the seeds do not share them."""
    tables = [_examples(score) for score in scores]
    first = tables[0] if tables else None
    if first is None or first[1].sum() == 0:
        return None
    total = np.zeros(first.shape[1])
    for table in tables:
        if table is None or not np.array_equal(table[1], first[1]):
            return None
        over, under = table
        total += (over - over.sum() / under.sum() * under) / under.sum()
    return _Side(total / len(tables), first[1], "correct" in scores[0])


def _clustered(influence: np.ndarray) -> float:
    n = len(influence)
    return float((influence**2).sum() * n / (n - 1)) if n > 1 else 0.0


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
