"""Percentile bootstrap of a ratio of sums: what would another draw of as many examples have given?"""

from __future__ import annotations

import numpy as np


def resample_counts(examples: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """How often each example is drawn in each resample: (resamples, examples) float64, rows summing to `examples`."""
    return rng.multinomial(examples, np.full(examples, 1 / examples), size=resamples).astype(np.float64)


def interval(
    total: np.ndarray, count: np.ndarray, draws: np.ndarray, level: float = 0.95
) -> tuple[float, float] | None:
    """Percentile interval of total.sum() / count.sum() over examples (n,), given `draws` (R, n).

    Examples are resampled whole, as their labels share a context. Resamples without a single label are left out; None
    when fewer than two examples have one (nothing is known of the spread then).
    """
    if np.count_nonzero(count) < 2:
        return None
    denominator = draws @ count
    usable = denominator > 0
    values = (draws @ total)[usable] / denominator[usable]
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
