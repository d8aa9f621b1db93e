"""What the flops-accuracy figure shows: every arm's score over its seeds, with its forward FLOPs per token."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmctl.errors import UsageError, nearest

from . import sources


@dataclass(frozen=True)
class Run:
    """One trained run's score: `value` in its own unit, forward FLOPs per token at the context it was scored at."""

    arm: str
    model: str
    seed: int
    value: float
    flops_per_token: float
    parameters: int
    run: str = ""
    interval: tuple[float, float] | None = None
    """The arm's 95% interval as the results have it; None leaves it to `points`."""
    family: str = ""
    """What it is one size of, where the ablation says so (`across`, equal-cost); else empty."""


@dataclass(frozen=True)
class Point:
    """An arm over its seeds: mean, 95% interval (None below two seeds), n, cost; values in the metric's own unit."""

    arm: str
    model: str
    mean: float
    interval: tuple[float, float] | None
    n: int
    flops_per_token: float
    parameters: int
    values: tuple[float, ...]
    family: str = ""


def points(runs: Iterable[Run]) -> list[Point]:
    """Runs grouped by arm, in order of appearance. A missing score is no run, never a zero."""
    from mmctl.sweeps.statistics import summarise

    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.arm, []).append(run)
    result = []
    for arm, members in groups.items():
        values, first = tuple(m.value for m in members), members[0]
        summary = summarise(values)
        assert summary is not None
        interval = first.interval or summary.interval
        result.append(
            Point(
                arm, first.model, summary.mean, interval, len(values), first.flops_per_token, first.parameters,
                values, first.family,
            )
        )  # fmt: skip
    return result


def collect(sweep: Path, metric: str, convention: str) -> tuple[list[Run], int]:
    """Scores of every distinct arm of a sweep by seed, with FLOPs per token at the context the metric is scored at.

    Returns the runs and that context, in tokens. Raises UsageError when the sweep has no such metric or convention.
    """
    from mmctl.models.flops import CONVENTIONS, flops_per_token

    if convention not in CONVENTIONS:
        raise UsageError(f'--convention "{convention}": no such convention{nearest(convention, CONVENTIONS)}')
    results = sources.read_results(sweep)
    arms, family = sources.arms(results), families(results)
    known = sorted({name for arm in arms for name in arm["scores"]})
    if metric not in known:
        raise UsageError(f'--metric "{metric}": {sweep.name} has no such score{nearest(metric, known, "scores")}')
    times = int(found[1]) if (found := re.search(r"@(\d+)x$", metric)) else 1
    runs, contexts = [], set()
    for arm in arms:
        if metric not in arm["scores"]:
            continue
        cost = arm["cost"]
        context = times * cost["context"]
        contexts.add(context)
        flops = cost["flops_per_token"][convention]
        run = sources.run_of(arm, sweep)
        if times > 1 and run is not None:
            config = run.config()
            removed = arm["evaluate"]["remove_long_term"]
            flops = flops_per_token(config.model, config.data.vocabulary, context, convention, removed)
        interval = arm["scores"][metric].get("interval")
        for seed, score in arm["scores"][metric]["seeds"].items():
            runs.append(
                Run(
                    arm["shown"],
                    arm["model"],
                    int(seed),
                    score["value"],
                    flops,
                    cost["parameters"],
                    arm.get("cell") or "",
                    interval and (interval[0], interval[1]),
                    family.get(arm["identity"], ""),
                )
            )
    if len(contexts) > 1:
        raise UsageError(
            f"{sweep}: arms are scored at different contexts {sorted(contexts)}, which share no FLOPs axis"
        )
    return runs, contexts.pop()


def usual_metric(sweep: Path) -> str:
    """The score most claims of a sweep are about: an accuracy where there is one; of equally many, the first claimed.

    UsageError, with the scores there are to choose from, where no claim is about a score that an arm has.
    """
    from mmctl.sweeps.metrics import SCORE

    results = sources.read_results(sweep)
    scores = sorted({name for arm in sources.arms(results) for name in arm["scores"] if SCORE.fullmatch(name)})
    if not scores:
        raise UsageError(f"{sweep.name}: no arm has a score yet")
    claimed = Counter(claim["metric"] for ablation in results["ablations"] for claim in ablation["claims"])
    about = [metric for metric, _ in claimed.most_common() if metric in scores]
    if not about:
        shortest = min(scores, key=lambda name: int(name.rpartition("@")[2].removesuffix("x"))).rpartition("@")[2]
        there = ", ".join(name for name in scores if name.endswith(f"@{shortest}"))
        raise UsageError(f"{sweep.name}: none of its claims is about a score; choose one with --metric: {there}")
    return next((metric for metric in about if "/accuracy" in metric), about[0])


def families(results: Mapping[str, Any]) -> dict[str, str]:
    """{arm's identity: what it is one size of}: what the labels of an equal-cost family's arms begin with, or
    else the family's name."""
    found: dict[str, str] = {}
    for ablation in results["ablations"]:
        arms = {arm["name"]: arm for arm in ablation["arms"]}
        for entry in ablation.get("across", []):
            for name, members in entry.get("families", {}).items():
                own = [arms[member] for member in members if member in arms]
                starts = {arm["label"].rpartition(",")[0] for arm in own}  # "memory mosaic v2, d = 64"
                label = starts.pop() if len(starts) == 1 and starts != {""} else name
                found |= {arm["identity"]: label for arm in own}
    return found


def chance_of(sweep: Path, metric: str) -> float | None:
    """Accuracy of a guess that has learned the task's form only; None where none is defined."""
    arms = sources.arms(sources.read_results(sweep))
    found = {arm["scores"][metric].get("chance") for arm in arms if metric in arm["scores"]}
    return found.pop() if len(found) == 1 else None
