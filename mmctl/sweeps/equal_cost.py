"""Architectures compared at equal cost: each one's sizes give a score as a function of cost, and the curves' means over
the costs that all of them cover are compared.

Between two sizes a score is interpolated linearly in the logarithm of the cost; nothing is extrapolated. The mean over the
shared range (in the logarithm of the cost too) is one number a family and seed, so a difference of two families is the
mean vertical distance of their curves, paired by seed. Which cost does not matter to a family alone; it decides which of
its sizes stand beside which of another's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmctl.sweeps import reading
from mmctl.sweeps.reading import Section
from mmctl.sweeps.scores import Number

COSTS = {
    "parameters": ("parameters", "parameters"),
    "flops": ("flops_per_token/executed", "forward FLOPs per token at the training length (executed)"),
}
"""Name after `cost:` -> (number of a run's result, in words)."""


@dataclass(frozen=True)
class EqualCost:
    """`cost` is a key of COSTS; `families` maps each derived arm to its sizes."""

    cost: str
    families: Mapping[str, tuple[str, ...]]

    @classmethod
    def read(cls, part: Section, arms: Sequence[str]) -> EqualCost:
        """`cost: parameters` or `flops`; `families: {derived arm: [arm, arm, ...], ...}`."""
        cost = part.take("cost", reading.one_of(*COSTS))
        families = part.take("families", reading.section)
        found = {}
        if families is not None:
            arm = reading.one_of(*arms) if arms else reading.name
            for name in families.values:
                families.attempt(lambda name=name: reading.name(families, name, name), None)  # type: ignore[misc]
                found[name] = tuple(families.take(name, reading.list_of(arm, least=2)) or ())
                families.attempt(lambda name=name: reading.unique(families, name, found[name]), None)  # type: ignore[misc]
            if len(found) < 2:
                part.attempt(lambda: families.fail("", "expected at least two families to compare"), None)
            families.done()
        return cls(cost or "", found)

    def members(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(arm for arms in self.families.values() for arm in arms))

    def derived(self) -> Mapping[str, tuple[str, ...]]:
        return self.families

    def record(self) -> dict[str, Any]:
        return {
            "function": "equal-cost",
            "cost": self.cost,
            "families": {name: list(arms) for name, arms in self.families.items()},
            "about": f"mean over the range of {COSTS[self.cost][1]} that all these arms' families share, interpolated "
            "linearly in its logarithm between sizes",
        }

    def check(self, configs: Mapping[str, Any]) -> None:
        """Any arms will do."""

    def metrics(self, name: str, configs: Mapping[str, Any]) -> list[str]:
        """None of its own: the families have their members' metrics."""
        return []

    def __call__(
        self, scores: Mapping[str, Mapping[str, Number]], configs: Mapping[str, Any] | None = None
    ) -> dict[str, dict[str, Number]]:
        """The families' mean scores over the shared range of costs; {} where two of them share none, or a family has
        fewer than two sizes."""
        costs = {}
        for name, arms in self.families.items():
            there = [arm for arm in arms if arm in scores]
            costs[name] = sorted((math.log(scores[arm][COSTS[self.cost][0]].value), arm) for arm in there)
        if any(len({cost for cost, _ in own}) < 2 for own in costs.values()):
            return {}
        low = max(own[0][0] for own in costs.values())
        high = min(own[-1][0] for own in costs.values())
        if low >= high:
            return {}
        return {name: self._family(own, scores, low, high) for name, own in costs.items()}

    def _family(
        self, sizes: Sequence[tuple[float, str]], scores: Mapping[str, Mapping[str, Number]], low: float, high: float
    ) -> dict[str, Number]:
        found = {}
        for metric, first in scores[sizes[0][1]].items():
            if "@" not in metric and not metric.startswith(("train_loss", "held_out_loss")):
                continue  # costs, times and diagnostics of single runs
            numbers = [scores[arm][metric] for _, arm in sizes if metric in scores[arm]]
            if len(numbers) == len(sizes):
                weights = weights_between([cost for cost, _ in sizes], low, high)
                value = float(weights @ [number.value for number in numbers])
                examples = together(weights, numbers)
                count = None if examples is None else first.n
                found[metric] = Number(
                    value, f"equal-cost ({self.cost})", count, examples=examples, chance=first.chance
                )
        return found


def weights_between(x: Sequence[float], low: float, high: float) -> np.ndarray:
    """(n,) weights w such that w @ y is the mean over [low, high] of the straight lines through the points (x, y); x
    ascending, low and high within it."""
    knots = np.array([low, *(value for value in x if low < value < high), high])
    lines = np.array([np.interp(knots, x, unit) for unit in np.eye(len(x))])  # (n, K): each point's share at the knots
    return np.sum((lines[:, 1:] + lines[:, :-1]) / 2 * np.diff(knots), axis=1) / (high - low)


def together(weights: np.ndarray, numbers: Sequence[Number]) -> dict[str, Any] | None:
    """Per-example sums of the weighted score, so that its examples' sampling error is known as an arm's is: every size is
    scored on the same examples, so the weighted numerators stand over the same denominators. None where they do not."""
    for over, under in (("correct", "total"), ("sum", "count")):
        scores = [number.examples or {} for number in numbers]
        if all(over in score and score.get(under) == scores[0].get(under) for score in scores):
            sums = weights @ np.array([score[over] for score in scores], dtype=np.float64)
            return {over: sums.tolist(), under: list(scores[0][under])}
    return None
