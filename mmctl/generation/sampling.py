"""Choosing the next token: greedy, or sampled with temperature, top-k and top-p."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mmctl.errors import UsageError


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from the model's distribution."""

    temperature: float = 0.0
    """Logits are divided by it; 0 takes the most likely token (of equals, the lowest)."""
    top_k: int | None = None
    """Only the k most likely tokens can be drawn."""
    top_p: float | None = None
    """Only the fewest most likely tokens whose probabilities (at this temperature, after top_k) reach p can be
    drawn."""
    seed: int = 0
    """With the prompt's number, the seed of the prompt's own generator: a draw depends on nothing else in its batch."""

    def validate(self) -> None:
        """UsageError, one line naming the option."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"--temperature {self.temperature}: expected a finite number of at least 0")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"--top-k {self.top_k}: expected a whole number of at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p}: expected a number above 0 and at most 1")
        if self.seed < 0:
            raise UsageError(f"--seed {self.seed}: expected a whole number of at least 0")

    def generator(self, number: int) -> np.random.Generator:
        """The private generator of the prompt of this number."""
        return np.random.default_rng([self.seed, number])


def choose(logits: np.ndarray, sampling: Sampling, rng: np.random.Generator) -> int:
    """One token from logits (V,) in float64. Greedy draws nothing from `rng`, sampling exactly one number."""
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    order = np.argsort(-logits, kind="stable")[: sampling.top_k]
    # Differences first: a very low temperature must not overflow.
    with np.errstate(over="ignore"):  # of a difference: to -inf, whose weight is 0
        weights = np.exp((logits[order] - logits[order[0]]) / sampling.temperature)
    reached = np.cumsum(weights)
    kept = len(order)
    if sampling.top_p is not None:
        kept = int(np.searchsorted(reached, sampling.top_p * reached[-1] * (1 - 1e-12))) + 1
    drawn = int(np.searchsorted(reached[:kept], rng.random() * reached[kept - 1], side="right"))
    return int(order[min(drawn, kept - 1)])


def log_probability(logits: np.ndarray, token: int) -> float:
    """log p(token) in nats under the model's own distribution: logits (V,) in float64, before any temperature."""
    top = logits.max()
    return float(logits[token] - top - np.log(np.exp(logits - top).sum()))
