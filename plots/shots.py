"""Accuracy against the number of demonstrations: does a model go on learning in its context?

From the evaluations of runs: icl and intents (examples of the same class seen before in the sequence), and in-context
classification (rounds of one example of every class; mean over the four prompts).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
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
    """Accuracy of one run after so many shots; n examples, 95% interval over them."""

    run: str
    task: str
    shots: int
    value: float
    interval: tuple[float, float] | None
    n: int
    chance: float | None


def collect(runs: Sequence[RunFolder], tasks: Sequence[str] = ()) -> list[Point]:
    """Points of every run; episodes at the longest length that reaches a number of shots. UsageError when there is
    none."""
    found: dict[tuple[str, str, int], tuple[int, Point]] = {}
    for run in runs:
        for evaluation in run.evaluations().values():
            if changed(evaluation.get("changes")):
                continue
            for name, score in evaluation["scores"].items():
                match = EPISODES.fullmatch(name) or PROMPTS.fullmatch(name)
                if match is None:
                    continue
                multiple = int(match.groupdict().get("multiple", 1))
                key = (run.label, match["task"], int(match["shots"]))
                if key in found and found[key][0] >= multiple:
                    continue
                notes = evaluation.get("tasks", {})
                about = notes.get(f"{match['task']}@{multiple}x") or notes.get(match["task"].partition("-")[0]) or {}
                interval = score["interval"] and (score["interval"][0], score["interval"][1])
                found[key] = multiple, Point(*key, score["value"], interval, score["n"], about.get("chance"))
    points = [point for _, point in found.values()]
    known = sorted({p.task for p in points})
    for task in tasks:
        if task not in known:
            raise UsageError(f'--task "{task}": no run has scores of it by shots{nearest(task, known, "tasks")}')
    points = [p for p in points if not tasks or p.task in tasks]
    if not points:
        raise UsageError(
            f"{', '.join(run.label for run in runs)}: no scores by shots; first mmctl eval RUN --suite in-context"
        )
    return sorted(points, key=lambda p: (p.task, p.run, p.shots))


def plot(points: Sequence[Point]) -> Figure:
    """One panel a task, one line a run, chance as grey dashes."""
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
                    [100 * p.interval[0] for p in sure if p.interval],
                    [100 * p.interval[1] for p in sure if p.interval],
                    color=look.colour,
                    alpha=0.18,
                    linewidth=0,
                )
            chance = next((p.chance for p in points if p.task == task and p.chance is not None), None)
            if chance is not None:
                panel.axhline(100 * chance, color=style.MUTED, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
            panel.set_title(task)
            panel.set_xlabel("shots: examples of the class seen before")
            panel.set_ylim(-3, 103)
        axes[0].set_ylabel("accuracy (%)")
        handles, labels = axes[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=len(tasks), fontsize=7)
        fewest, most = min(p.n for p in points), max(p.n for p in points)
        style.note(drawn, f"bands: 95% intervals over examples, n = {fewest} to {most} a point; grey dashes: chance")
    return drawn


def rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Every plotted number."""
    return [
        {
            "run": p.run, "task": p.task, "shots": p.shots, "accuracy": p.value, "low": p.interval and p.interval[0],
            "high": p.interval and p.interval[1], "n": p.n, "chance": p.chance,
        }
        for p in points
    ]  # fmt: skip


def draw(runs: Sequence[RunFolder], directory: Path, tasks: Sequence[str] = ()) -> dict[str, Path]:
    """Collect, draw and save the figure of these runs. Returns the paths by kind."""
    points = collect(runs, tasks)
    return style.save(
        plot(points),
        directory,
        style.slug("-".join(["shots", *tasks])),
        rows(points),
        title=TITLE,
        runs=[run.label for run in runs],
        n=max(p.n for p in points),
    )


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The figure of one run of each model in a sweep."""
    return draw(sources.baseline_runs(sweep), directory)


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
    from mmctl.runs import RunFolder, runs_root

    found = [RunFolder.find(runs_root(root), run) for run in runs]
    sources.announce(draw(found, out or found[0].path / "figures", task or ()), found)
