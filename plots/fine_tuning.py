"""Scores against the steps of fine-tuning at a longer context: how few does a trained model need there?

One panel a task, scored at the length that was fine-tuned at; one line a model. Memory Mosaics v2 (arXiv 2507.03285)
fine-tunes at 32k what was trained at 4k; its printed numbers stand in the panel of recall, which stands in for RULER.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli.options import Root, Sweep, SweepOut
from mmctl.errors import UsageError, nearest
from mmctl.evaluation.changes import changed
from mmctl.sweeps.units import scale_of

from . import grid, sources, style
from .extrapolation import SCORE, main_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Scores against fine-tuning steps"
CHANGE = "fine_tuning"
STANDS_IN = "recall/accuracy"
"""The score beside which the published ones are drawn."""


@dataclass(frozen=True)
class Published:
    """A printed score (RULER question answering at 32k, percent); steps None: fine-tuned, by a number not printed."""

    label: str
    steps: int | None
    score: float


PUBLISHED = (
    Published("mosaic v2 large", 0, 26.5),
    Published("mosaic v2 large", 1, 48.5),  # 26.5 and "+22 points after one step"; only the large model has room for 22
    Published("mosaic v2 large", None, 53.4),
    Published("transformer large", None, 41.1),
)
"""Memory Mosaics v2 (arXiv 2507.03285), trained at 4k, scored at 32k."""


@dataclass(frozen=True)
class Point:
    """A model's score after so many steps at `length` tokens: mean over n seeds with its 95% interval, in the metric's
    own unit."""

    model: str
    metric: str
    steps: int
    length: int
    mean: float
    interval: tuple[float, float] | None
    n: int
    chance: float | None


def collect(sweep: Path, metrics: Sequence[str] = ()) -> list[Point]:
    """Points of every model that the sweep fine-tunes, at the length it is fine-tuned at; 0 steps: as it was trained.

    metrics: without "@...x"; default: the main one of each task. UsageError where nothing is fine-tuned, or for a metric
    that the sweep does not have.
    """
    arms = sources.arms(sources.read_results(sweep))
    tuned = [(arm, arm["evaluate"][CHANGE]) for arm in arms if _only_tuned(arm)]
    if not tuned:
        raise UsageError(f"{sweep}: no arm is fine-tuned at evaluation; first mmctl ablate fine-tuning")
    lengths = {(arm["identity"], settings["length"]) for arm, settings in tuned}
    usual = {arm["identity"]: arm for arm in arms if not changed(arm["evaluate"])}
    tuned += [(usual[i], {"steps": 0, "length": k}) for i, k in sorted(lengths) if i in usual]
    known = list(dict.fromkeys(m["metric"] for arm, _ in tuned for m in map(SCORE.fullmatch, arm["scores"]) if m))
    for metric in metrics:
        if metric not in known:
            raise UsageError(f'--metric "{metric}": {sweep.name} has no such score{nearest(metric, known, "scores")}')
    wanted = list(metrics) or main_scores(known)
    found = []
    for arm, settings in tuned:
        name = arm["model"] if len({k for i, k in lengths if i == arm["identity"]}) == 1 else _named(arm, settings)
        for metric in wanted:
            score = arm["scores"].get(f"{metric}@{settings['length']}x")
            if score:
                interval = score["interval"] and (score["interval"][0], score["interval"][1])
                length = settings["length"] * arm["cost"]["context"]
                about = (name, metric, settings["steps"], length)
                found.append(Point(*about, score["mean"], interval, score["n"], score["chance"]))
    if not found:
        raise UsageError(f"{sweep}: nothing is scored at the length it is fine-tuned at (evaluation.lengths)")
    return sorted(found, key=lambda p: (wanted.index(p.metric), p.model, p.steps))


def _only_tuned(arm: dict[str, Any]) -> bool:
    others = {key: value for key, value in arm["evaluate"].items() if key != CHANGE}
    return CHANGE in arm["evaluate"] and not changed(others)


def _named(arm: dict[str, Any], settings: dict[str, Any]) -> str:
    return f"{arm['model']}, {settings['length']}x"


def plot(points: Sequence[Point], note: str = "") -> Figure:
    """One panel a metric on a symmetric-log axis of steps, 0 included; published numbers in grey beside recall."""
    from matplotlib.lines import Line2D

    metrics, models = (list(dict.fromkeys(getattr(p, key) for p in points)) for key in ("metric", "model"))
    beside = STANDS_IN in metrics
    about = (
        f"mean over seeds ({grid.seeds([p.n for p in points])}) with its 95% interval, at {_lengths(points)} tokens; "
    )
    about += "grey dashes: chance (where in view); scales differ between panels"
    with style.house_style():
        drawn = style.figure(min(grid.WIDTH, max(4.2, 2.5 * len(metrics))), 3.1)
        axes = drawn.subplots(1, len(metrics), squeeze=False)[0]
        for panel, metric in zip(axes, metrics, strict=True):
            _panel(panel, [p for p in points if p.metric == metric], models, metric)
        handles = []
        for i, model in enumerate(models):
            k = style.series(i)
            handles.append(Line2D([], [], color=k.colour, marker=k.marker, linestyle=k.line, label=model, markersize=4))
        if beside:
            handles += [
                Line2D(
                    [], [], color=style.MUTED, marker="*", linestyle=(0, (1, 1)), markerfacecolor="white",
                    label="published: mosaic v2 large, RULER QA at 32k",
                ),
                Line2D([], [], color=style.MUTED, linewidth=0.8, label="published: fine-tuned (steps not printed)"),
            ]  # fmt: skip
        drawn.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=7)
        style.note(drawn, note, about)
    return drawn


def _lengths(points: Sequence[Point]) -> str:
    return " and ".join(f"{length:,}" for length in sorted({p.length for p in points}))


def _panel(axes: Axes, points: Sequence[Point], models: Sequence[str], metric: str) -> None:
    scale = scale_of(metric)
    for index, model in enumerate(models):
        own = [p for p in points if p.model == model]
        if not own:
            continue
        look, x = style.series(index), [p.steps for p in own]
        axes.plot(
            x, [scale.factor * p.mean for p in own], color=look.colour, marker=look.marker, linestyle=look.line,
            markersize=3.5, linewidth=1.1,
        )  # fmt: skip
        sure = [(p.steps, *p.interval) for p in own if p.interval]
        axes.fill_between(
            [s for s, _, _ in sure],
            [scale.factor * low for _, low, _ in sure],
            [scale.factor * high for _, _, high in sure],
            color=look.colour,
            alpha=0.18,
            linewidth=0,
        )
    if metric == STANDS_IN:
        printed = [p for p in PUBLISHED if p.steps is not None]
        axes.plot(
            [p.steps for p in printed if p.steps is not None], [p.score for p in printed], color=style.MUTED, marker="*",
            markerfacecolor="white", linestyle=(0, (1, 1)), linewidth=0.9,
        )  # fmt: skip
        for p in PUBLISHED:
            if p.steps is None:
                axes.axhline(p.score, color=style.MUTED, linewidth=0.8, zorder=1)
                axes.annotate(
                    p.label, (1, p.score), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=6.5,
                    color=style.MUTED,
                )  # fmt: skip
    for value in sorted({p.chance for p in points if p.chance is not None}):
        axes.axhline(scale.factor * value, color=style.MUTED, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    steps = sorted({p.steps for p in points})
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks(steps, [f"{s:,}" for s in steps])
    axes.minorticks_off()
    axes.set_xlim(-0.3, 1.35 * max(*steps, 1))
    if scale.factor != 1.0:
        axes.set_ylim(-3, 103)
    axes.set_title(f"{metric}\n({scale.unit})", fontsize=8)
    axes.set_xlabel("fine-tuning steps")


def rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Every plotted number in the metric's own unit, then the published ones (percent; no interval, no seeds)."""
    ours = [
        {
            "model": p.model, "metric": p.metric, "steps": p.steps, "length": p.length, "mean": p.mean,
            "low": p.interval and p.interval[0], "high": p.interval and p.interval[1], "n": p.n, "chance": p.chance,
            "published": "",
        }
        for p in points
    ]  # fmt: skip
    if not any(p.metric == STANDS_IN for p in points):
        return ours
    empty = dict.fromkeys(("low", "high", "n", "chance"))
    return ours + [
        {
            "model": p.label, "metric": "RULER question answering (percent)", "steps": p.steps, "length": 32_768,
            "mean": p.score, **empty, "published": "arXiv 2507.03285",
        }
        for p in PUBLISHED
    ]  # fmt: skip


def draw(sweep: Path, directory: Path, metrics: Sequence[str] = ()) -> dict[str, Path]:
    """Collect, draw and save the figure of a sweep. Returns the paths by kind."""
    points = collect(sweep, metrics)
    return style.save(
        plot(points, f"sweep {sweep.name}"),
        directory,
        style.slug("-".join(["fine-tuning", *metrics])),
        rows(points),
        title=TITLE,
        runs=sources.run_labels(sources.read_results(sweep)),
        n=max(p.n for p in points),
    )


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The figure of a sweep, as its report shows it."""
    return draw(sweep, directory)


def command(
    sweep: Sweep = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="Only this score, without @...x; repeat.", show_default=False)
    ] = None,
    out: SweepOut = None,
    root: Root = None,
) -> None:
    """Scores against the steps of fine-tuning at a longer context, one line a model, 95% intervals over seeds.

    Example: mmctl plot fine-tuning --metric recall/accuracy
    """
    from mmctl.runs import runs_root

    found = sources.find_sweep(runs_root(root), sweep)
    sources.announce(draw(found, out or found / "figures", metric or ()), sweep=found)
