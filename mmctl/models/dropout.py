"""Dropout whose masks are a function of the run's seed, the step and the sequence: a resumed run, a recomputed block, a
batch cut into parts or shared among processes all drop the same numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

STREAM = 1_000_033
"""Private random stream, apart from the data's and from that of m."""


@dataclass(frozen=True)
class Noise:
    """One training pass: the run's seed, the step, and which sequences (B,) of the step's batch are passed."""

    seed: int
    step: int
    rows: np.ndarray


def dropout(x_BTd: Tensor, rate: float, noise: Noise | None, site: int) -> Tensor:
    """x with a share `rate` of its numbers set to 0 and the others divided by 1 - rate; x itself without noise.

    site: which of the model's dropouts this is; each draws for itself.
    """
    if rate == 0 or noise is None:
        return x_BTd
    kept = torch.empty(x_BTd.shape, dtype=torch.bool, device=x_BTd.device)
    for mask, row in zip(kept, noise.rows.tolist(), strict=True):
        seed = np.random.SeedSequence([noise.seed, STREAM, noise.step, row, site]).generate_state(1, np.uint64)[0]
        generator = torch.Generator(x_BTd.device).manual_seed(int(seed >> np.uint64(1)))
        mask.bernoulli_(1 - rate, generator=generator)
    return x_BTd * kept / (1 - rate)
