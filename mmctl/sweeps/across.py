"""Numbers made from several arms of one seed: an ablation's `across:` entries.

An entry names a function and gives it its settings; the function makes *derived arms* from the arms of one seed, and
claims compare these as they compare arms, paired by seed:

    across:
      - function: equal-cost
        cost: parameters
        families:
          mosaic-at-parameters: [mosaic-32, mosaic-64]
          transformer-at-parameters: [transformer-32, transformer-64]
    claims:
      - {treatment: mosaic-at-parameters, control: transformer-at-parameters, metric: recall/accuracy@1x, ...}

A new function is a class of one file and a line in FUNCTIONS. A seed that lacks one of the function's arms has no number:
what is made from fewer arms would be another quantity.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from mmctl.sweeps import reading
from mmctl.sweeps.reading import Section

if TYPE_CHECKING:
    from mmctl.config import Config
    from mmctl.sweeps.matrix import Matrix
    from mmctl.sweeps.scores import Number

FUNCTIONS: dict[str, str] = {
    "equal-cost": "mmctl.sweeps.equal_cost:EqualCost",
    "forget-threshold": "mmctl.sweeps.forget_threshold:ForgetThreshold",
}
"""Name after `function:` -> "module:Class"."""


class Across(Protocol):
    """A function with its settings, as an `across` entry gives them."""

    @classmethod
    def read(cls, part: Section, arms: Sequence[str]) -> Self:
        """From the entry's other keys (`part.take`), strictly; `arms` are the ablation's (none: they are wrong
        themselves)."""

    def members(self) -> tuple[str, ...]:
        """Arms it is made from."""

    def derived(self) -> Mapping[str, tuple[str, ...]]:
        """{derived arm: the arms it is made from}: its scores have their names, units and chance."""

    def check(self, configs: Mapping[str, Config]) -> None:
        """UsageError, one line, for arms it cannot be made from. `configs`: those of the members a selection has left."""

    def metrics(self, name: str, configs: Mapping[str, Config]) -> Sequence[str]:
        """Numbers of its own making that derived arm `name` may have, `across:<name>`; the others are its members'."""

    def __call__(
        self, scores: Mapping[str, Mapping[str, Number]], configs: Mapping[str, Config]
    ) -> Mapping[str, Mapping[str, Number]]:
        """{derived arm: {metric: number}} from {arm: {metric: number}} of one seed. `scores` and `configs` hold those
        members that a selection has left; a number that cannot be made of them is missing."""

    def record(self) -> dict[str, Any]:
        """JSON-ready, for the manifest and the results: what it is and how it is made, in `about`."""


def read(parent: Section, key: str, value: Any, arms: Sequence[str]) -> Across:
    """One entry of `across`. The file's Section collects what is wrong."""
    part = reading.section(parent, key, value)
    name = part.take("function", reading.one_of(*FUNCTIONS))
    if name is None:  # what is wrong with the rest cannot be said without it
        part.asked += part.values
        part.done()
    module, _, attribute = FUNCTIONS[name].partition(":")
    found: Across = getattr(importlib.import_module(module), attribute).read(part, arms)
    part.done()
    return found


def names(entries: Sequence[Across]) -> list[str]:
    """Derived arms of an ablation."""
    return [name for entry in entries for name in entry.derived()]


def members_of(entries: Sequence[Across], name: str) -> tuple[str, ...]:
    """The arms that derived arm `name` is made from; () for any other name."""
    return next((entry.derived()[name] for entry in entries if name in entry.derived()), ())


def derive(
    matrix: Matrix, scored: dict[tuple[str, str], dict[int, dict[str, Number]]], configs: Mapping[str, Config]
) -> None:
    """Add the derived arms of `matrix` to `scored`, {(ablation, arm): {seed: {metric: number}}}. configs: by arm."""
    present = {arm.name for arm in matrix.arms}
    for entry in matrix.across:
        members = [name for name in entry.members() if name in present]
        own = {name: scored.get((matrix.name, name), {}) for name in members}
        seeds = set.intersection(*(set(found) for found in own.values())) if own else set()
        for seed in sorted(seeds):
            for name, numbers in entry({member: own[member][seed] for member in members}, configs).items():
                if numbers:
                    scored.setdefault((matrix.name, name), {})[seed] = dict(numbers)
