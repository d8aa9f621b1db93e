"""The shared vocabulary: bytes 0-255 of real text, then symbols 256..V-1 that all synthetic tasks share.

The synthetic tasks reuse the same symbols on purpose: which task a sequence belongs to is told by its form, so a
model cannot keep its tasks apart by embeddings alone, and the vocabulary (V = 512) stays small. A subword tokenizer's
tokens (data.tokenizer) share them too.
"""

from __future__ import annotations

import numpy as np

BYTES = 256
"""Tokens 0-255 are bytes."""
FIRST_SYMBOL = BYTES
"""The first symbol; by convention the empty token (filler) of the synthetic tasks."""


def distinct(rng: np.random.Generator, count: int, low: int, high: int, size: int) -> np.ndarray:
    """`count` rows of `size` different integers of [low, high), each ordered row equally likely: (count, size) int64.

    Raises ValueError when size > high - low.
    """
    span = high - low
    if size > span:
        raise ValueError(f"{size} different numbers of {span}")
    if size * size <= span:  # few of many: draw, and redraw the rows (at most about 40%) that hold a repeat
        rows = rng.integers(low, high, (count, size))
        while True:
            ordered = np.sort(rows, axis=1)
            bad = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
            if not bad.any():
                return rows
            rows[bad] = rng.integers(low, high, (int(bad.sum()), size))
    keys = rng.random((count, span))
    if size < span:
        chosen = np.argpartition(keys, size, axis=1)[:, :size]
        keys = np.take_along_axis(keys, chosen, axis=1)
        return low + np.take_along_axis(chosen, np.argsort(keys, axis=1), axis=1)
    return low + np.argsort(keys, axis=1)


def weighted_distinct(rng: np.random.Generator, count: int, weights: np.ndarray, size: int) -> np.ndarray:
    """`count` rows of `size` different indices, drawn one after the other in proportion to `weights`: (count, size).

    The same distribution as numpy's `choice(replace=False, p=weights)` row by row: exponential clocks with rates
    `weights` ring in exactly that order.
    """
    rings = rng.standard_exponential((count, len(weights))) / weights
    return np.argsort(rings, axis=1)[:, :size]
