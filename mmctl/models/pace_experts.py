"""Cortical experts of PaceLLM (arXiv 2506.17310): hidden units of a feed-forward in clusters of equal size."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

ROUNDS = 50
"""Most rounds of k-means; it stops as soon as no unit moves."""


def cluster_units(rows: Tensor, experts: int, seed: int) -> Tensor:
    """Order (F,) of the hidden units in which each run of F / experts of them is one cluster.

    k-means on the L2-normalised rows (F, d) of W_1, clusters constrained to the same size: every round assigns all
    units at once at the least total distance (a linear assignment, each centre standing F / experts times).
    """
    from scipy.optimize import linear_sum_assignment

    unit = F.normalize(rows.detach().double().cpu(), dim=-1).numpy()
    size = len(unit) // experts
    generator = np.random.Generator(np.random.PCG64(seed))
    centres = _spread_start(unit, experts, generator)
    assigned = np.full(len(unit), -1)
    for _ in range(ROUNDS):
        distance = np.repeat(1 - unit @ centres.T, size, axis=1)
        columns = linear_sum_assignment(distance)[1]
        new = columns // size
        if np.array_equal(new, assigned):
            break
        assigned = new
        centres = np.stack([unit[assigned == e].mean(axis=0) for e in range(experts)])
    return torch.from_numpy(np.argsort(assigned, kind="stable")).to(rows.device)


def _spread_start(unit: np.ndarray, experts: int, generator: np.random.Generator) -> np.ndarray:
    """k-means++: each further centre is drawn in proportion to its squared distance from those before."""
    chosen = [int(generator.integers(len(unit)))]
    while len(chosen) < experts:
        distance = np.maximum(0, 2 - 2 * (unit @ unit[chosen].T).max(axis=1))
        distance[chosen] = 0
        total = distance.sum()
        weights = distance / total if total > 0 else None
        chosen.append(int(generator.choice(len(unit), p=weights)))
    return unit[chosen]
