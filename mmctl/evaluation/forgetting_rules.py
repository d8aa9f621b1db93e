"""The definitions of Stuffed Mamba (arXiv 2410.07145): robust forgetting, the forget threshold with its line, and the
recall threshold. Plain numbers in, plain numbers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RULES = (2.0, 1.5)
"""Multiples of the largest loss within the training length: the paper's, and the stricter one its authors checked."""
NEEDED = 0.95
"""Accuracy a passkey must exceed."""
FEWEST_POINTS = 3
"""State sizes with a threshold, without which no line is fitted: two points lie on one by themselves."""


def ratio(inside: Sequence[float], beyond: Sequence[float]) -> float | None:
    """The largest loss beyond the training length over the largest within it; None without both, or where nothing is
    lost inside."""
    if not inside or not beyond or max(inside) <= 0:
        return None
    return max(beyond) / max(inside)


def forget_threshold(ratios: Mapping[int, float], rule: float) -> int | None:
    """The smallest training length (tokens) whose ratio is at most `rule`; None: above the largest tried."""
    return min((length for length, found in ratios.items() if found <= rule), default=None)


def recall_threshold(accuracies: Mapping[int, float], needed: float = NEEDED) -> int | None:
    """The longest context (tokens) up to which every one tried has an accuracy above `needed`; None: not even the
    shortest."""
    longest = None
    for length in sorted(accuracies):
        if accuracies[length] <= needed:
            break
        longest = length
    return longest


@dataclass(frozen=True)
class Line:
    """y = slope x + intercept by least squares, and the part of y's variance it explains (None: y does not vary)."""

    slope: float
    intercept: float
    r2: float | None


def line(x: Sequence[float], y: Sequence[float]) -> Line | None:
    """None for fewer than `FEWEST_POINTS` points or a single x."""
    if len(x) != len(y):
        raise ValueError(f"{len(x)} x and {len(y)} y")
    if len(x) < FEWEST_POINTS or len(set(x)) < 2:
        return None
    slope, intercept = (float(v) for v in np.polyfit(x, y, 1))
    left = np.asarray(y, dtype=np.float64) - (slope * np.asarray(x) + intercept)
    spread = float(((np.asarray(y) - np.mean(y)) ** 2).sum())
    return Line(slope, intercept, None if len(set(y)) == 1 else 1.0 - float((left**2).sum()) / spread)
