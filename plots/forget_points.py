"""What the forget figure shows: losses by position, ratios, thresholds and passkeys of a sweep whose ablation has an `across`
entry of forget-threshold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmctl.data.stream import edges
from mmctl.errors import UsageError
from mmctl.evaluation.forgetting_rules import RULES

from . import grid, sources

PART = re.compile(r".+/loss-part(?P<part>\d+)@(?P<multiple>\d+)x")
PASSKEY = re.compile(r".+/accuracy-passkey@(?P<multiple>\d+)x")
Interval = tuple[float, float] | None


@dataclass(frozen=True)
class Point:
    """A plotted number: of an arm (or a seed's threshold) at x, mean over n seeds with its 95% interval."""

    panel: str
    """loss, ratio, threshold-2x, above-2x, passkey, ..."""
    family: str
    arm: str
    training_length: int | None
    x: float
    """Tokens: position, training length or context; for thresholds thousands of state numbers."""
    mean: float
    interval: Interval = None
    n: int = 1
    seed: str = ""


@dataclass
class Found:
    points: list[Point] = field(default_factory=list)
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """rule -> (slope, intercept) of each seed: tokens per thousand state numbers, tokens."""

    def of(self, panel: str, family: str | None = None) -> list[Point]:
        return [p for p in self.points if p.panel == panel and family in (None, p.family)]

    def families(self) -> list[str]:
        return list(dict.fromkeys(p.family for p in self.points if p.panel == "loss"))


def collect(sweep: Path, ablation: str | None = None) -> Found:
    """Everything drawn. UsageError where no ablation of the sweep (or not the one named) measures forgetting."""
    found = Found()
    chosen = grid.ablations(sources.read_results(sweep), [ablation] if ablation else ())
    for one in chosen:
        arms = {arm["name"]: arm for arm in one["arms"]}
        for entry in one.get("across", []):
            if entry["function"] == "forget-threshold":
                for family, members in entry["families"].items():
                    _family(found, family, [arms[name] for name in members if name in arms])
                    _made(found, family, entry["arms"][family]["scores"])
                _lines(found, entry["arms"][entry["fit"]]["scores"])
    if not found.of("loss"):
        raise UsageError(f"{sweep}: no ablation of it measures forgetting; run mmctl ablate forget")
    return found


def _family(found: Found, family: str, arms: Iterable[Mapping[str, Any]]) -> None:
    for arm in arms:
        trained, name = arm["cost"]["context"], arm["name"]
        parts = {(int(m["multiple"]), int(m["part"])): s for k, s in arm["scores"].items() if (m := PART.fullmatch(k))}
        longest = max((multiple for multiple, _ in parts), default=0)
        ends = edges(longest * trained, trained)
        for (multiple, part), score in sorted(parts.items()):
            if multiple == (1 if ends[part] <= trained else longest):  # as the rules read them
                middle = (ends[part - 1] + ends[part]) / 2
                found.points.append(_point("loss", family, name, trained, middle, score))
        for key, score in arm["scores"].items():
            if passkey := PASSKEY.fullmatch(key):
                x = int(passkey["multiple"]) * trained
                found.points.append(_point("passkey", family, name, trained, x, score))


def _point(panel: str, family: str, arm: str, trained: int | None, x: float, score: Mapping[str, Any]) -> Point:
    interval = score["interval"] and (score["interval"][0], score["interval"][1])
    return Point(panel, family, arm, trained, x, score["mean"], interval, score["n"])


def _made(found: Found, family: str, scores: Mapping[str, Any]) -> None:
    for name, score in scores.items():
        if name.startswith("across:ratio-t"):
            length = int(name.removeprefix("across:ratio-t"))
            found.points.append(_point("ratio", family, "", length, length, score))
    state = scores.get("across:state")
    if state is None:  # stored pairs and tokens: no size to stand against
        return
    for what in ("threshold", "above"):
        for rule in RULES:
            for seed, entry in scores.get(f"across:{what}-{rule:g}x", {"seeds": {}})["seeds"].items():
                point = Point(f"{what}-{rule:g}x", family, "", None, state["mean"], entry["value"], seed=seed)
                found.points.append(point)


def _lines(found: Found, scores: Mapping[str, Any]) -> None:
    for rule in RULES:
        slopes, ends = (
            scores.get(f"across:{what}-{rule:g}x", {"seeds": {}})["seeds"] for what in ("slope", "intercept")
        )
        found.lines[f"{rule:g}x"] = [(slopes[seed]["value"], ends[seed]["value"]) for seed in slopes]
