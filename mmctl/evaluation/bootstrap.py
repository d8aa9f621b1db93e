"""95% intervals of a ratio of sums: what would another draw of as many examples have given?"""

from __future__ import annotations

import numpy as np


def resample_counts(examples: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """How often each example is drawn in each resample: (resamples, examples) float64, rows summing to `examples`."""
    return rng.multinomial(examples, np.full(examples, 1 / examples), size=resamples).astype(np.float64)


def interval(
    total: np.ndarray, count: np.ndarray, draws: np.ndarray, accuracy: bool = False, level: float = 0.95
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of total.sum() / count.sum() over examples (n,), given `draws` (R, n).

    Examples are resampled whole, as the labels of one share a context. Resamples without a single label are left out;
    None when fewer than two examples have one (nothing is known of the spread then). An accuracy of exactly 0 or 1 has
    no spread to resample, and a width of 0 would claim certainty: it gets the exact binomial (Clopper-Pearson) bound,
    with an example counted as one trial, which errs on the wide side.
    """
    examples = int(np.count_nonzero(count))
    if examples < 2:
        return None
    tail = (1 - level) / 2
    value = total.sum() / count.sum()
    if accuracy and value in (0, 1):
        reach = tail ** (1 / examples)
        return (0.0, 1 - reach) if value == 0 else (reach, 1.0)
    denominator = draws @ count
    usable = denominator > 0
    values = (draws @ total)[usable] / denominator[usable]
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
