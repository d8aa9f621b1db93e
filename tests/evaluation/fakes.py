"""Models whose scores are known without training: they read the answer off the tokens, or always say the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from mmctl.config import Config, load

QUICK = [
    "data.length=64",
    "evaluation.examples=40",
    "evaluation.minimum_examples=20",
    "evaluation.lengths=[1,2]",
    "evaluation.resamples=400",
]


def quick_config(*overrides: str) -> Config:
    """The smoke preset cut down to fractions of a second; `overrides` win."""
    given = {o.partition("=")[0] for o in overrides}
    return load("smoke", [*(q for q in QUICK if q.partition("=")[0] not in given), *overrides])


class Fake:
    """Base: logits (N, V) with a peak of `confidence` at `answer(tokens, t)` for each labelled position t."""

    confidence = 8.0

    def __init__(self, vocabulary: int = 512) -> None:
        self.vocabulary = vocabulary
        self.training = False
        self.calls: list[tuple[int, ...]] = []

    def eval(self) -> None:
        self.training = False

    def train(self) -> None:
        self.training = True

    def __call__(self, tokens: Tensor, *, documents: Tensor | None = None, labelled: Tensor | None = None) -> Tensor:
        assert labelled is not None
        assert torch.is_inference_mode_enabled()
        assert not self.training
        self.calls.append(tuple(tokens.shape))
        logits = torch.zeros(int(labelled.sum()), self.vocabulary)
        for n, (row, t) in enumerate(labelled.nonzero().tolist()):
            logits[n, self.answer(tokens[row].numpy(), t)] = self.confidence
        return logits

    def answer(self, tokens: np.ndarray, t: int) -> int:
        raise NotImplementedError


class Constant(Fake):
    """Always the same token."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token

    def answer(self, tokens: np.ndarray, t: int) -> int:
        return self.token


class Lookup(Fake):
    """What followed the last earlier occurrence of the current token: perfect recall. With long-term memory: it is
    removed by looking only at the last `near` tokens."""

    near: int | None = None

    def answer(self, tokens: np.ndarray, t: int) -> int:
        begin = 0 if self.near is None else max(0, t - self.near)
        before = np.flatnonzero(tokens[begin:t] == tokens[t])
        return int(tokens[begin + before[-1] + 1]) if len(before) else 0

    @contextlib.contextmanager
    def evaluation_changes(self, *, remove_long_term: bool = False, delay: int | None = None) -> Iterator[None]:
        self.near = 4 if remove_long_term else delay
        try:
            yield
        finally:
            self.near = None


class Learner(Fake):
    """In-context learner: the label of the last earlier example that shares a word (3 words, separator, label)."""

    def answer(self, tokens: np.ndarray, t: int) -> int:
        words = set(tokens[t - 3 : t].tolist())
        for start in range(t - 8, -1, -5):
            if words & set(tokens[start : start + 3].tolist()):
                return int(tokens[start + 4])
        return 0
