"""Reads the numbers of one arm's run from its folder. A number that is not there, or not finite, is missing: never
0."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmctl.errors import MmctlError
from mmctl.evaluation.changes import Changes

if TYPE_CHECKING:
    from mmctl.config import Config
    from mmctl.runs import RunFolder

COSTS = ("tokens", "seconds")


@dataclass(frozen=True)
class Number:
    """A measured value, where it stands (`result.json` or an evaluation's name), and over how many examples."""

    value: float
    source: str
    n: int | None = None
    interval: tuple[float, float] | None = None
    examples: Mapping[str, Any] | None = None
    """The score's entry with its per-example counts, for a bootstrap."""
    chance: float | None = None
    """Accuracy of a guess that has learned the task's form only; None for a loss or where none is defined."""


def read(run: RunFolder, config: Config, changes: Changes) -> dict[str, Number]:
    """{metric: Number} of a finished run, scored with `changes`; {} of one that is not finished.

    What belongs to training (losses, diagnostics) is left out for an arm that changes something at evaluation: it is
    the trained run's, not the arm's. What the training cost stays.
    """
    if not run.finished:
        return {}
    numbers: dict[str, Number] = {}
    for name, value in flat_result(run.result()).items():
        if not changes or name in COSTS:
            _add(numbers, name, value, "result.json")
    from mmctl.evaluation import find_evaluation, reported

    for suite in reported(config, changes):
        try:
            found = find_evaluation(run, config, suite, changes)
        except MmctlError as error:  # one file of one run must not keep a whole sweep from being reported
            print(f"mmctl: {error}; the scores of {run.label} in it count as missing", file=sys.stderr)
            continue
        if found is None:
            continue
        stem, evaluation = found
        for name, value in flat_notes(evaluation.get("change_notes") or {}).items():
            _add(numbers, f"diagnostics:{name}", value, f"eval/{stem}.json")
        for name, score in evaluation["scores"].items():
            interval, chance = score.get("interval"), None
            if "/accuracy" in name:
                task = f"{name.partition('/')[0]}@{name.rpartition('@')[2]}"
                chance = (evaluation.get("tasks", {}).get(task) or {}).get("chance")
            _add(numbers, name, score.get("value"), f"eval/{stem}.json", score.get("n"), interval, score, chance)
    return numbers


def flat_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars of result.json; `diagnostics` under `diagnostics:<name>`."""
    flat = {k: v for k, v in result.items() if not isinstance(v, Mapping) and k not in ("identity", "seed", "steps")}
    diagnostics = result.get("diagnostics") or {}
    return {**flat, **{f"diagnostics:{k}": v for k, v in diagnostics.items()}}


def flat_notes(notes: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """What evaluation-time changes noted, under `<change>/<part>/<what>`."""
    flat: dict[str, Any] = {}
    for key, value in notes.items():
        flat |= flat_notes(value, f"{prefix}{key}/") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _add(
    numbers: dict[str, Number],
    name: str,
    value: Any,
    source: str,
    n: int | None = None,
    interval: Any = None,
    examples: Mapping[str, Any] | None = None,
    chance: float | None = None,
) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return
    pair = (float(interval[0]), float(interval[1])) if interval else None
    numbers[name] = Number(float(value), source, n, pair, examples, chance)
