"""Forget and recall thresholds of every state size, from models of several training lengths, and their line.

    across:
      - function: forget-threshold
        task: stream
        families: {n8: [n8-t16, n8-t32], n16: [n16-t16, n16-t32], n32: [n32-t16, n32-t32]}
        fit: line

Every family is a derived arm with, for each rule k of forgetting_rules.RULES (`2x`, `1.5x`): `across:threshold-2x`, the
smallest training length tried that forgets robustly, in tokens; where none does, `across:above-2x` instead, the largest
tried, which the threshold lies above. Besides, `across:state`, thousands of numbers in the whole model's state, `across:ratio-t16` for each training length (what the rules judge), and
`across:recall-threshold`: the longest context of any of the family's models. The derived arm named by `fit` has
`across:slope-2x` (tokens per thousand numbers of state), `across:intercept-2x` (tokens) and `across:r2-2x` of the line
through the thresholds that are known, and `across:points-2x`, how many those are. Families of models without a state
have thresholds and no part in the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmctl.data.stream import edges
from mmctl.errors import UsageError
from mmctl.evaluation.forgetting_rules import NEEDED, RULES, forget_threshold, line, ratio, recall_threshold
from mmctl.sweeps import reading
from mmctl.sweeps.reading import Section
from mmctl.sweeps.scores import Number

PART = re.compile(r"(?P<task>[^/]+)/loss-part(?P<part>\d+)@(?P<multiple>\d+)x")
FITTED = ("slope", "intercept", "r2", "points")


@dataclass(frozen=True)
class ForgetThreshold:
    """`families` maps each derived arm, a state size, to its models of different training lengths."""

    families: Mapping[str, tuple[str, ...]]
    fit: str
    task: str = "stream"

    @classmethod
    def read(cls, part: Section, arms: Sequence[str]) -> ForgetThreshold:
        """`families: {derived arm: [arm, arm, ...], ...}`, `fit: derived arm`, `task: stream`."""
        task = part.take("task", reading.one_of("stream"), "stream")
        fit = part.take("fit", reading.name)
        families = part.take("families", reading.section)
        found: dict[str, tuple[str, ...]] = {}
        if families is not None:
            arm = reading.one_of(*arms) if arms else reading.name
            for name in families.values:
                families.attempt(lambda name=name: reading.name(families, name, name), None)  # type: ignore[misc]
                found[name] = tuple(families.take(name, reading.list_of(arm, least=2)) or ())
                families.attempt(lambda name=name: reading.unique(families, name, found[name]), None)  # type: ignore[misc]
            families.done()
        return cls(found, fit or "", task or "stream")

    def members(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(arm for arms in self.families.values() for arm in arms))

    def derived(self) -> Mapping[str, tuple[str, ...]]:
        return {**self.families, self.fit: self.members()}

    def check(self, configs: Mapping[str, Any]) -> None:
        """UsageError unless each family is one state size at different training lengths, and trains on the task."""
        for name, arms in self.families.items():
            own = [configs[arm] for arm in arms if arm in configs]
            if len({state_size(config) for config in own}) > 1:
                raise UsageError(f"families.{name}: {', '.join(arms)}: expected models of one state size")
            if len({config.data.length for config in own}) < len(own):
                raise UsageError(f"families.{name}: {', '.join(arms)}: expected a training length of its own for each")
            if any(self.task not in config.data.tasks_in_mixture() for config in own):
                raise UsageError(f"families.{name}: {', '.join(arms)}: expected models that train on {self.task}")

    def metrics(self, name: str, configs: Mapping[str, Any]) -> list[str]:
        """What derived arm `name` may have, given its members' configurations."""
        if name == self.fit:
            return [f"across:{what}-{_word(rule)}" for rule in RULES for what in FITTED]
        lengths = sorted({configs[arm].data.length for arm in self.families[name] if arm in configs})
        found = [f"across:{what}-{_word(rule)}" for rule in RULES for what in ("threshold", "above")]
        own = ["across:state", "across:recall-threshold"]
        return [*found, *(f"across:ratio-t{length}" for length in lengths), *own]

    def record(self) -> dict[str, Any]:
        return {
            "function": "forget-threshold",
            "task": self.task,
            "families": {name: list(arms) for name, arms in self.families.items()},
            "fit": self.fit,
            "about": "smallest training length (tokens) from which the loss beyond it never exceeds "
            f"{' or '.join(f'{rule:g}' for rule in RULES)} times the largest within it, for each state size (above: none "
            "did, up to the length shown), and the line through these against thousands of state numbers; longest context "
            f"with a passkey accuracy above {NEEDED:g}",
        }

    def __call__(
        self, scores: Mapping[str, Mapping[str, Number]], configs: Mapping[str, Any]
    ) -> dict[str, dict[str, Number]]:
        """Thresholds by family and the line, of one seed. A family of which a selection left out a model has none."""
        made: dict[str, dict[str, Number]] = {}
        points: dict[float, list[tuple[float, float]]] = {rule: [] for rule in RULES}
        for name, arms in self.families.items():
            if not all(arm in scores for arm in arms):
                continue
            found = {configs[arm].data.length: self.ratio_of(scores[arm], configs[arm].data.length) for arm in arms}
            ratios = {length: value for length, value in found.items() if value is not None}
            if len(ratios) < len(found):
                continue
            numbers: dict[str, float] = {f"ratio-t{length}": value for length, value in ratios.items()}
            size = state_size(configs[arms[0]])
            if size is not None:
                numbers["state"] = size / 1000
            for rule in RULES:
                threshold = forget_threshold(ratios, rule)
                if threshold is None:
                    numbers[f"above-{_word(rule)}"] = max(ratios)
                else:
                    numbers[f"threshold-{_word(rule)}"] = threshold
                    if size is not None:  # stored pairs and tokens grow: no size to fit against
                        points[rule].append((size / 1000, threshold))
            recalled = [self.recall_of(scores[arm], configs[arm].data.length) for arm in arms]
            if any(recalled):
                numbers["recall-threshold"] = max(length for length in recalled if length)
            made[name] = _numbers(numbers)
        fitted: dict[str, float] = {}
        for rule, known in points.items():
            fitted[f"points-{_word(rule)}"] = len(known)
            through = line([x for x, _ in known], [y for _, y in known])
            if through is not None:
                fitted[f"slope-{_word(rule)}"] = through.slope
                fitted[f"intercept-{_word(rule)}"] = through.intercept
                if through.r2 is not None:
                    fitted[f"r2-{_word(rule)}"] = through.r2
        if made:
            made[self.fit] = _numbers(fitted)
        return made

    def ratio_of(self, scores: Mapping[str, Number], training_length: int) -> float | None:
        """What the rules judge: beyond the training length from the longest sequences scored, within it from those of
        that length, of which there are more."""
        matches = ((PART.fullmatch(name), number.value) for name, number in scores.items())
        parts = [(int(m["multiple"]), int(m["part"]), v) for m, v in matches if m and m["task"] == self.task]
        longest = max((multiple for multiple, _, _ in parts), default=1)
        ends = edges(longest * training_length, training_length)
        inside = [value for multiple, _, value in parts if multiple == 1]
        beyond = [v for multiple, part, v in parts if multiple == longest and ends[part] > training_length]
        return ratio(inside, beyond)

    def recall_of(self, scores: Mapping[str, Number], training_length: int) -> int | None:
        start = f"{self.task}/accuracy-passkey@"
        found = {
            name.removeprefix(start).rstrip("x"): number.value
            for name, number in scores.items()
            if name.startswith(start)
        }
        return recall_threshold({int(multiple) * training_length: value for multiple, value in found.items()})


def state_size(config: Any) -> int | None:
    """Numbers in the state of the whole model; None where memory grows with the sequence."""
    return getattr(config.model, "state_size", None)


def _word(rule: float) -> str:
    return f"{rule:g}x"


def _numbers(values: Mapping[str, float]) -> dict[str, Number]:
    return {f"across:{name}": Number(float(value), "forget-threshold") for name, value in values.items()}
