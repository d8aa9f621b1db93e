"""Scores against the length they are measured at, with the training length marked: what still works beyond it?

Memory Mosaics v2 (arXiv 2507.03285) trains at 4k and scores at up to 32k without fine-tuning; here the same multiples
of a shorter training length. One row of panels an ablation, one panel a task, one line an arm.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli.options import Root, Sweep, SweepOut
from mmctl.errors import UsageError, nearest
from mmctl.sweeps.units import scale_of

from . import grid, sources, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Scores against the length they are measured at"
LABELS = 6
"""Lengths that have room beside each other under a panel."""
LETTER, GAP = 0.062, 0.35
"""Inches: a letter of a title, and the room between two panels."""
HIGH = 70.0
"""Percent: panels whose scores all lie above show that part of the scale alone."""
MAIN = ("accuracy-last-quarter", "accuracy", "loss", "flatness-far")
"""What a task is shown by: the first of these that it has."""
SCORE = re.compile(r"(?P<metric>.+)@(?P<multiple>\d+)x")


@dataclass(frozen=True)
class Point:
    """An arm's score at one length: mean over n seeds with its 95% interval, in the metric's own unit."""

    ablation: str
    arm: str
    metric: str
    length: int
    training_length: int
    mean: float
    interval: tuple[float, float] | None
    n: int
    chance: float | None
    left_out: str = ""
    """Why it is on no line of the figure: which arms of its ablation are; "" if it is on one."""


def collect(sweep: Path, metrics: Sequence[str] = (), ablations: Sequence[str] = ()) -> list[Point]:
    """Points of every arm and length of a sweep. metrics: without "@...x"; default: the main one of each task.

    Raises UsageError for a metric or an ablation the sweep does not have, or when nothing is scored at two lengths.
    """
    found: list[Point] = []
    chosen = grid.ablations(sources.read_results(sweep), ablations)
    known = list(
        dict.fromkeys(m["metric"] for a in chosen for arm in a["arms"] for m in map(_split, arm["scores"]) if m)
    )
    for metric in metrics:
        if metric not in known:
            raise UsageError(f'--metric "{metric}": {sweep.name} has no such score{nearest(metric, known, "scores")}')
    wanted = list(metrics) or main_scores(known)
    for ablation in chosen:
        for arm in ablation["arms"]:
            context = arm["cost"]["context"]
            for name, score in arm["scores"].items():
                parts = _split(name)
                if parts and parts["metric"] in wanted:
                    length = context * int(parts["multiple"])
                    interval = score["interval"] and (score["interval"][0], score["interval"][1])
                    about = (ablation["name"], arm["name"], parts["metric"], length, context)
                    found.append(Point(*about, score["mean"], interval, score["n"], score["chance"]))
        scored = {p.arm for p in found if p.ablation == ablation["name"]}
        shown, which = grid.readable(ablation, scored)
        others = scored.difference(shown)
        found = [replace(p, left_out=which) if p.ablation == ablation["name"] and p.arm in others else p for p in found]
    if len({p.length / p.training_length for p in found}) < 2:
        raise UsageError(f"{sweep}: nothing is scored at more than one length (evaluation.lengths)")
    return sorted(found, key=lambda p: wanted.index(p.metric))


def plot(found: Sequence[Point], note: str = "") -> Figure:
    """One row an ablation, one panel a metric, lengths on a log axis, the training length as a dotted line. Of more arms
    than can be told apart those that claims compare; a note names the others."""
    names = list(dict.fromkeys(p.ablation for p in found))
    metrics = list(dict.fromkeys(p.metric for p in found))
    about = f"mean over seeds ({grid.seeds([p.n for p in found])}) with its 95% interval; dotted: training length; "
    about += "grey dashes: chance (where in view); scales differ between panels"
    left_out = grid.left_out(found)
    found = [p for p in found if not p.left_out]
    with style.house_style():
        # Titles may not run into the next one, nor the last into a legend that is higher than its panel.
        wide = (grid.WIDTH - 1.25 - 0.055 * max(len(p.arm) for p in found)) / len(metrics)
        rooms = [wide] * (len(metrics) - 1) + [wide - GAP]
        titles = [
            "\n".join([*_lines(m, int(room / LETTER)), f"({scale_of(m).unit})"])
            for m, room in zip(metrics, rooms, strict=True)
        ]
        drawn, axes = grid.panels(names, titles, note, about, *left_out)
        for row, name in enumerate(names):
            arms = list(dict.fromkeys(p.arm for p in found if p.ablation == name))
            for column, metric in enumerate(metrics):
                own = [p for p in found if p.ablation == name and p.metric == metric]
                panel(axes[row][column], own, arms, metric)
                if row == len(names) - 1:
                    axes[row][column].set_xlabel("tokens", fontsize=7.5)
            grid.legend(axes[row][-1], arms)
    return drawn


def _lines(metric: str, letters: int) -> list[str]:
    """A metric's name in lines of so many letters, broken after "/" or "-"."""
    lines = textwrap.wrap(metric.replace("/", "/ "), max(letters, 8))
    return [line.replace("/ ", "/") for line in lines]


def _spaced(lengths: Sequence[int]) -> list[str]:
    """Labels of a log axis; "" for those so near the last one labelled that they would touch."""
    apart, last, labels = math.log2(lengths[-1] / lengths[0]) / LABELS, -math.inf, []
    for length in lengths:
        near = math.log2(length) - last < apart
        labels.append("" if near else f"{length:,}")
        last = last if near else math.log2(length)
    return labels


def panel(axes: Axes, found: Sequence[Point], arms: Sequence[str], metric: str) -> None:
    factor = scale_of(metric).factor
    for index, arm in enumerate(arms):
        own = sorted((p for p in found if p.arm == arm), key=lambda p: p.length)
        if not own:
            continue
        look = style.series(index)
        most = 1.0 if factor != 1.0 else math.inf  # an accuracy's interval may reach beyond what there is
        x, y = [p.length for p in own], [factor * p.mean for p in own]
        axes.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.line, markersize=3.5, linewidth=1.1)
        if all(p.interval for p in own):
            low, high = zip(*(p.interval for p in own if p.interval), strict=True)
            axes.fill_between(
                x,
                [factor * v for v in low],
                [factor * min(v, most) for v in high],
                color=look.colour,
                alpha=0.18,
                linewidth=0,
            )
    if not found:
        axes.text(0.5, 0.5, "not scored", transform=axes.transAxes, ha="center", color=style.MUTED)
        return
    chance = sorted({(p.length, p.chance) for p in found if p.chance is not None})
    if chance:
        axes.plot(
            [c[0] for c in chance], [factor * c[1] for c in chance], color=style.MUTED, linewidth=0.9,
            linestyle=(0, (4, 2)), zorder=1,
        )  # fmt: skip
    lengths = sorted({p.length for p in found})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, _spaced(lengths), fontsize=6.5)
    axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    axes.minorticks_off()
    for trained in {p.training_length for p in found}:
        axes.axvline(trained, color=style.INK, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
    if factor != 1.0:
        lowest = factor * min(p.interval[0] if p.interval else p.mean for p in found)
        if lowest < HIGH:
            axes.set_ylim(-3, 103)
        else:  # near the top nothing could be told apart on the whole scale
            room = 0.06 * (100 - lowest) + 0.02
            axes.set_ylim(lowest - room, 100 + room)
            axes.set_yticks([tick for tick in axes.get_yticks() if lowest - room <= tick <= 100])


def rows(found: Sequence[Point]) -> list[dict[str, Any]]:
    """Every plotted number, in the metric's own unit."""
    return [
        {
            "ablation": p.ablation, "arm": p.arm, "metric": p.metric, "length": p.length,
            "training_length": p.training_length, "mean": p.mean, "low": p.interval and p.interval[0],
            "high": p.interval and p.interval[1], "n": p.n, "chance": p.chance,
        }
        for p in found
    ]  # fmt: skip


def _split(name: str) -> re.Match[str] | None:
    return SCORE.fullmatch(name)


def main_scores(known: Sequence[str]) -> list[str]:
    """One metric a task: its last quarter's accuracy, else its accuracy, else its loss; text by its loss, attention by its
    flatness."""
    chosen: dict[str, list[str]] = {}
    for metric in known:
        chosen.setdefault(metric.partition("/")[0], []).append(metric.partition("/")[2])
    picked = []
    for task, scores in chosen.items():
        order: Sequence[str] = ["loss"] if "bits-per-byte" in scores else MAIN
        picked += [f"{task}/{next(s for s in order if s in scores)}"] if set(order) & set(scores) else []
    return picked


def draw(sweep: Path, directory: Path, metrics: Sequence[str] = (), ablations: Sequence[str] = ()) -> dict[str, Path]:
    """Collect, draw and save the figure of a sweep. Returns the paths by kind."""
    found = collect(sweep, metrics, ablations)
    return style.save(
        plot(found, f"sweep {sweep.name}"),
        directory,
        style.slug("-".join(["extrapolation", *ablations, *metrics])),
        rows(found),
        title=TITLE,
        runs=sources.run_labels(sources.read_results(sweep)),
        n=max(p.n for p in found),
        numbers={"sweep": sweep.name},
    )


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The figure for a sweep with its default metrics."""
    return draw(sweep, directory)


def command(
    sweep: Sweep = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", help="Score without its length, such as recall/accuracy; repeat.", show_default=False),
    ] = None,
    ablation: Annotated[
        list[str] | None, typer.Option("--ablation", help="Only this ablation; repeat.", show_default=False)
    ] = None,
    out: SweepOut = None,
    root: Root = None,
) -> None:
    """Scores against length, the training length marked: one row an ablation, one panel a task, 95% intervals over
    seeds.

    Example: mmctl plot extrapolation --ablation bandwidth --metric recall/accuracy
    """
    from mmctl.runs import runs_root

    found = sources.find_sweep(runs_root(root), sweep)
    sources.announce(draw(found, out or found / "figures", metric or (), ablation or ()), sweep=found)
