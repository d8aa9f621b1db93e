"""Generation from caches: batched, greedy or sampled, with stop strings; and log-likelihoods of given text."""

from __future__ import annotations

from mmctl.generation.loop import Continuation, generate, left_padded
from mmctl.generation.sampling import Sampling
from mmctl.generation.scoring import Score, log_likelihoods

__all__ = ["Continuation", "Sampling", "Score", "generate", "left_padded", "log_likelihoods"]
