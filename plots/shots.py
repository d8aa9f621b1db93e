"""Accuracy against the number of demonstrations: does a model go on learning in its context?

From the evaluations of runs, or from the arms of a sweep over their seeds: icl and intents (examples of the same class
seen before in the sequence), and in-context classification (rounds of one example of every class; mean over the four
prompts). To the right of the dotted line are more demonstrations than training sequences hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli.options import Root, RunsOut
from mmctl.errors import UsageError, nearest
from mmctl.evaluation.changes import changed

from . import sources, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mmctl.runs import RunFolder

TITLE = "Accuracy against demonstrations"
EPISODES = re.compile(r"(?P<task>[^/]+)/accuracy-shots(?P<shots>\d+)@(?P<multiple>\d+)x")
PROMPTS = re.compile(r"(?P<task>[^/]+)/accuracy-mean@(?P<shots>\d+)")


@dataclass(frozen=True)
class Point:
    """Accuracy of one run after so many shots; n examples, 95% interval over them. Of an arm of a sweep: the mean over n
    seeds, and the interval over those."""

    run: str
    task: str
    shots: int
    value: float
    interval: tuple[float, float] | None
    n: int
    chance: float | None
    seen: int | None = None
    """Most shots that sequences of the training length reach."""


def collect(runs: Sequence[RunFolder], tasks: Sequence[str] = ()) -> list[Point]:
    """Points of every run; episodes at the longest length that reaches a number of shots. UsageError when there is
    none."""
    found = _Longest()
    for run in runs:
        for evaluation in run.evaluations().values():
            if changed(evaluation.get("changes")):
                continue
            notes = evaluation.get("tasks", {})
            for name, score in evaluation["scores"].items():
                match = EPISODES.fullmatch(name) or PROMPTS.fullmatch(name)
                if match is not None:
                    multiple = int(match.groupdict().get("multiple", 1))
                    about = (
                        notes.get(f"{match['task']}@{multiple}x") or notes.get(match["task"].partition("-")[0]) or {}
                    )
                    found.add(run.label, match, score["value"], score, about.get("chance"))
    if not found.found:
        names = ", ".join(run.label for run in runs)
        raise UsageError(f"{names}: no scores by shots; {sources.to_score(runs[0], 'icl')}")
    return found.points(tasks)


def collect_sweep(sweep: Path, tasks: Sequence[str] = ()) -> list[Point]:
    """Points of every arm of a sweep that changes nothing at evaluation, over its seeds. UsageError when there is
    none."""
    found = _Longest()
    for arm in sources.arms(sources.read_results(sweep)):
        for name, score in arm["scores"].items():
            match = EPISODES.fullmatch(name)
            if match is not None and not changed(arm["evaluate"]):
                found.add(arm["shown"], match, score["mean"], score, score["chance"])
    if not found.found:
        raise UsageError(f"{sweep}: no scores by shots (tasks icl or intents, suite in-context)")
    return found.points(tasks)


class _Longest:
    """Of the scores of a line after a number of shots, that of the longest sequences."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, int], tuple[int, Point]] = {}
        self.seen: dict[str, int] = {}

    def add(
        self, line: str, match: re.Match[str], value: float, score: Mapping[str, Any], chance: float | None
    ) -> None:
        key = line, match["task"], int(match["shots"])
        multiple = int(match.groupdict().get("multiple") or 0)
        if multiple == 1:
            self.seen[match["task"]] = max(self.seen.get(match["task"], 0), key[2])
        if key not in self.found or self.found[key][0] < multiple:
            interval = score["interval"] and (score["interval"][0], score["interval"][1])
            self.found[key] = multiple, Point(*key, value, interval, score["n"], chance)

    def points(self, tasks: Sequence[str]) -> list[Point]:
        """Those of `tasks` (none named: all), in order. UsageError for an unknown task."""
        points = [replace(point, seen=self.seen.get(point.task)) for _, point in self.found.values()]
        known = sorted({p.task for p in points})
        for task in tasks:
            if task not in known:
                raise UsageError(f'--task "{task}": no run has scores of it by shots{nearest(task, known, "tasks")}')
        points = [p for p in points if not tasks or p.task in tasks]
        return sorted(points, key=lambda p: (p.task, p.run, p.shots))


def plot(points: Sequence[Point], over: str = "examples") -> Figure:
    """One panel a task, one line a run (or an arm), chance as grey dashes, the most shots of training as a dotted line.

    over: what the intervals are over, and what a point's n counts.
    """
    tasks, names = (list(dict.fromkeys(getattr(p, key) for p in points)) for key in ("task", "run"))
    with style.house_style():
        drawn = style.figure(max(3.6, 2.7 * len(tasks) + 0.4), 3.1)
        axes = drawn.subplots(1, len(tasks), squeeze=False)[0]
        for panel, task in zip(axes, tasks, strict=True):
            for index, name in enumerate(names):
                own = [p for p in points if (p.task, p.run) == (task, name)]
                if not own:
                    continue
                look, x = style.series(index), [p.shots for p in own]
                panel.plot(
                    x, [100 * p.value for p in own], color=look.colour, marker=look.marker, linestyle=look.line,
                    markersize=3.5, linewidth=1.1, label=name,
                )  # fmt: skip
                sure = [p for p in own if p.interval]
                panel.fill_between(
                    [p.shots for p in sure],
                    [100 * max(0.0, p.interval[0]) for p in sure if p.interval],
                    [100 * min(1.0, p.interval[1]) for p in sure if p.interval],
                    color=look.colour,
                    alpha=0.18,
                    linewidth=0,
                )
            chance = next((p.chance for p in points if p.task == task and p.chance is not None), None)
            if chance is not None:
                panel.axhline(100 * chance, color=style.MUTED, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
            seen = next((p.seen for p in points if p.task == task and p.seen is not None), None)
            most = max(p.shots for p in points if p.task == task)
            if seen is not None and seen < most:
                panel.axvline(seen, color=style.INK, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
            panel.set_title(task)
            panel.set_xlabel("shots: examples of the class seen before")
            panel.set_xscale("symlog", base=2, linthresh=1)
            ticks = [0, *(2**i for i in range(most.bit_length()))]
            panel.set_xticks(ticks, [str(t) for t in ticks])
            panel.minorticks_off()
            panel.set_xlim(-0.3, 1.2 * max(most, 1))
            panel.set_ylim(-3, 103)
        axes[0].set_ylabel("accuracy (%)")
        handles, labels = axes[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=len(tasks), fontsize=7)
        fewest, most = min(p.n for p in points), max(p.n for p in points)
        counts = f"n = {fewest}" if fewest == most else f"n = {fewest} to {most} a point"
        beyond = "; right of the dotted line: more than in training" if any(p.seen is not None for p in points) else ""
        style.note(drawn, f"bands: 95% intervals over {over}, {counts}; grey dashes: chance{beyond}")
    return drawn


def rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Every plotted number."""
    return [
        {
            "run": p.run, "task": p.task, "shots": p.shots, "accuracy": p.value, "low": p.interval and p.interval[0],
            "high": p.interval and p.interval[1], "n": p.n, "chance": p.chance, "seen_in_training": p.seen,
        }
        for p in points
    ]  # fmt: skip


def draw(runs: Sequence[RunFolder], directory: Path, tasks: Sequence[str] = ()) -> dict[str, Path]:
    """Collect, draw and save the figure of these runs. Returns the paths by kind."""
    points = collect(runs, tasks)
    return _save(plot(points), points, directory, tasks, [run.label for run in runs])


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The figure of a sweep's arms over their seeds."""
    points = collect_sweep(sweep)
    labels = sources.run_labels(sources.read_results(sweep))
    return _save(plot(points, "seeds"), points, directory, (), labels)


def _save(
    drawn: Figure, points: Sequence[Point], directory: Path, tasks: Sequence[str], labels: Sequence[str]
) -> dict[str, Path]:
    stem = style.slug("-".join(["shots", *tasks]))
    return style.save(drawn, directory, stem, rows(points), title=TITLE, runs=labels, n=max(p.n for p in points))


def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs evaluated in context.", show_default=False)],
    task: Annotated[
        list[str] | None, typer.Option("--task", help="Only this task; repeat.", show_default=False)
    ] = None,
    out: RunsOut = None,
    root: Root = None,
) -> None:
    """Accuracy against the number of demonstrations, one line a run.

    Example: mmctl plot shots mosaic-v2/seed0 transformer/seed0
    """
    from mmctl.runs import runs_root

    found = sources.named_runs(runs_root(root), runs)
    sources.announce(draw(found, out or found[0].path / "figures", task or ()), found)
