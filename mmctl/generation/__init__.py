"""Generation from caches: batched, greedy or sampled, with stop strings; and log-likelihoods of given text."""

from __future__ import annotations

from mmctl.generation.loop import Beginning, Continuation, common_beginning, generate, left_padded, read_beginning
from mmctl.generation.sampling import Sampling
from mmctl.generation.scoring import Score, log_likelihoods

__all__ = [
    "Beginning",
    "Continuation",
    "Sampling",
    "Score",
    "common_beginning",
    "generate",
    "left_padded",
    "log_likelihoods",
    "read_beginning",
]
