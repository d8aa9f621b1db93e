"""Accuracy against forward FLOPs per token, or against parameters: our arms with their intervals, and the published points
beside them.

The two are apart because neither axis is the same: our models are thousands of times smaller and do other tasks, and
the paper's FLOPs are counted by the `published` convention. What can be compared is the shape: who lies above whom at
which cost. Every axis names its convention; conventions never share an axis.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli.options import Root, Sweep, SweepOut
from mmctl.errors import UsageError, nearest
from mmctl.sweeps.reporting.words import large
from mmctl.sweeps.units import scale_of

from . import sources, style
from .cost_points import Point, Run, chance_of, collect, points, usual_metric
from .published_scores import PUBLISHED, PUBLISHED_AT, published_cost

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Point", "Run", "collect", "command", "draw", "draw_sweep", "plot", "points", "rows"]

TITLE = "Accuracy against forward FLOPs per token"
AGAINST = {"flops": TITLE, "parameters": "Accuracy against parameters"}
"""What the x axis may be, and the figure's title then."""
WIDTH = 7.4
"""Inches."""
LABEL = 44
"""Letters of a line of a legend's label."""
MOVED = (
    "; arms of (nearly) equal cost stand side by side, each moved right from its cost, which the tick below it marks and "
    "the CSV has exactly"
)


def plot(
    found: Sequence[Point], *, metric: str, convention: str, context: int, against: str = "flops",
    chance: float | None = None, note: str = "",
) -> Figure:  # fmt: skip
    """Left: our arms (mean, 95% interval over seeds, seeds as dots). Right: published points, marked as such.

    metric: the y axis; against: the x axis, one of AGAINST; convention, context: how and at how many tokens our FLOPs are
    counted; chance: drawn as a line.
    """
    with style.house_style():
        labels = [textwrap.fill(name, LABEL) for name in dict.fromkeys(map(_series, found))]
        columns = _columns(labels)
        lines = -(-len(labels) // columns) * max(label.count("\n") + 1 for label in labels)
        drawn = style.figure(WIDTH, 3.6 + 0.17 * lines)
        ours, published = drawn.subplots(1, 2, width_ratios=(1.25, 1))
        scale = scale_of(metric)
        moved = _ours(ours, found, _costs(found, against), scale.factor)
        if chance is not None:
            ours.axhline(scale.factor * chance, color=style.MUTED, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
            ours.annotate(
                f"chance {scale.value(chance)}{scale.unit}", (0.01, scale.factor * chance), xytext=(0, 2.5), fontsize=6.5,
                xycoords=("axes fraction", "data"), textcoords="offset points", ha="left", va="bottom", color=style.MUTED,
            )  # fmt: skip
        if "accuracy" in metric:
            ours.set_ylim(0, 103)
        ours.set_title("this laboratory", loc="left")
        flops = against == "flops"
        counted = f"forward FLOPs per token at {context:,} tokens\n(convention: {convention})"
        ours.set_xlabel(counted if flops else "parameters\n(of the arm as evaluated)")
        ours.set_ylabel(f"{metric} ({scale.unit})")
        _published(published, against)
        published.set_title("as published", loc="left")
        counted = f"forward FLOPs per token at {PUBLISHED_AT:,} tokens\n(convention: published)"
        published.set_xlabel(counted if flops else "parameters\n(convention: published)")
        published.set_ylabel("RULER QA1 and QA2 at 32k, percent")
        counts = sorted({p.n for p in found})
        seeds = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
        about = (
            f"left: mean over seeds ({seeds}) with its 95% interval, dots are seeds"
            + ("; lines join the sizes of one architecture" if any(p.family for p in found) else "")
            + f"{MOVED if moved else ''}. Right: one published number a point, no interval given; other sizes, other tasks: "
            "compare shapes, not heights"
        )
        handles, _ = ours.get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=columns, handletextpad=0.4)
        style.note(drawn, note, about)
    return drawn


def rows(found: Sequence[Point], *, metric: str, convention: str, context: int) -> list[dict[str, Any]]:
    """Every plotted number, ours and published, each with its metric, convention and context."""
    table = []
    for p in found:
        low, high = p.interval or (None, None)
        table.append(
            _row(
                "ours",
                p.arm,
                p.model,
                metric,
                p.mean,
                low,
                high,
                p.n,
                p.flops_per_token,
                p.parameters,
                convention,
                context,
            )
            | {"seeds": " ".join(f"{v:.6g}" for v in p.values)}
        )
    for printed in PUBLISHED:
        flops, parameters = published_cost(printed)
        table.append(
            _row("published", printed.label, printed.model, "RULER QA, percent", printed.score, None, None, None, flops,
                 parameters, "published", PUBLISHED_AT) | {"seeds": None}
        )  # fmt: skip
    return table


def _row(
    source: str, arm: str, model: str, metric: str, value: float, low: float | None, high: float | None, n: int | None,
    flops: float, parameters: int, convention: str, context: int,
) -> dict[str, Any]:  # fmt: skip
    return {
        "source": source, "arm": arm, "model": model, "metric": metric, "value": value, "low": low, "high": high, "n": n,
        "flops_per_token": flops, "parameters": parameters, "convention": convention, "context": context,
    }  # fmt: skip


def _costs(found: Sequence[Point], against: str) -> list[float]:
    return [p.flops_per_token if against == "flops" else float(p.parameters) for p in found]


def _ours(axes: Axes, found: Sequence[Point], costs: Sequence[float], factor: float) -> bool:
    """Draws the points, and a line through the sizes of a family; whether any point had to be moved from its cost."""
    names = list(dict.fromkeys(map(_series, found)))
    looks = [style.series(names.index(_series(point))) for point in found]
    spots = list(costs) if any(point.family for point in found) else _side_by_side(costs)
    for name, look in {_series(point): look for point, look in zip(found, looks, strict=True)}.items():
        sizes = sorted((x, p.mean) for x, p in zip(spots, found, strict=True) if _series(p) == name)
        if len(sizes) > 1:
            axes.plot(
                *zip(*((x, factor * y) for x, y in sizes), strict=True), look.line, color=look.colour, linewidth=1.1
            )
    firsts = {_series(point): point for point in reversed(found)}
    for point, x, look in zip(found, spots, looks, strict=True):
        axes.plot(
            [x] * point.n,
            [factor * v for v in point.values],
            ".",
            color=look.colour,
            markersize=3,
            alpha=0.55,
            zorder=2,
        )
        error = None
        if point.interval:
            low, high = point.interval
            error = [[factor * (point.mean - low)], [factor * (high - point.mean)]]
        axes.errorbar(
            x, factor * point.mean, error, fmt=look.marker, color=look.colour, markeredgecolor=style.INK,
            markeredgewidth=0.6, elinewidth=1.1, capsize=2.5, zorder=3, label=_series(point) if point is firsts[_series(point)] else None,
        )  # fmt: skip
    _cost_axis(axes, spots)
    moved = [(place, cost) for place, cost in enumerate(costs) if spots[place] != cost]
    for place, cost in moved:  # a tick in the arm's colour at its true cost, just above the axis
        axes.plot(
            [cost, cost], [0.0, 0.025], transform=axes.get_xaxis_transform(), color=looks[place].colour,
            linewidth=2.0, solid_capstyle="butt", clip_on=False, zorder=4,
        )  # fmt: skip
    return bool(moved)


def _series(point: Point) -> str:
    """What the legend calls a point: its family, of which it is one size, or itself."""
    return point.family or point.arm


def _published(axes: Axes, against: str) -> None:
    flops = against == "flops"
    costs = [float(published_cost(printed)[0 if flops else 1]) for printed in PUBLISHED]
    for printed, cost in zip(PUBLISHED, costs, strict=True):
        mosaic = printed.model.startswith("mosaic")
        axes.plot(
            cost, printed.score, marker="^" if mosaic else "o", color="white", linestyle="none", markersize=7,
            markeredgecolor=style.MUTED if printed.removed else style.INK, markeredgewidth=1.3,
        )  # fmt: skip
        name = printed.label.replace(" (16-layer count)", "").replace(", long-term removed", ",\nlong-term removed")
        right = cost < 0.7 * max(costs)
        beside = (7 if right else -7, 0) if not printed.removed else (0, -8)  # below: the side is another point's label
        axes.annotate(
            name, (cost, printed.score), xytext=beside, textcoords="offset points", fontsize=7,
            ha="center" if printed.removed else "left" if right else "right", va="top" if printed.removed else "center",
            color=style.INK,
        )  # fmt: skip
    axes.set_xlim(0, 1.1 * max(costs))
    axes.xaxis.set_major_formatter(lambda value, _: large(value))
    axes.set_ylim(0, 60)
    text = "small: counted with 16 layers, the only\nreading that gives its printed FLOPs"
    axes.text(0.97, 0.04, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=6.5, color=style.MUTED)


def _cost_axis(axes: Axes, costs: Sequence[float]) -> None:
    """Log where costs differ by more than a factor of 3, else linear; labelled as people say such numbers."""
    from matplotlib.ticker import LogLocator

    low, high = min(costs), max(costs)
    if high / low > 3:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.5, high * 1.5)
        if high < 50 * low:  # its range may hold only one power of ten
            axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    else:
        room = 0.12 * (high - low) or 0.1 * high
        axes.set_xlim(low - room, high + room)
    axes.xaxis.set_major_formatter(lambda value, _: large(value))
    axes.xaxis.set_minor_formatter(lambda value, _: "")


def _columns(labels: Sequence[str]) -> int:
    """How many columns of a legend with these labels fit the figure's width, at most four."""
    longest = max(len(line) for label in labels for line in label.split("\n"))
    return max(1, min(4, len(labels), int(WIDTH / (0.45 + 0.065 * longest))))


def _side_by_side(costs: Sequence[float]) -> list[float]:
    """Arms of (nearly) equal cost get neighbouring places, so that no point hides another; the CSV has exact costs."""
    spread = max(costs) - min(costs) or max(costs)
    placed: list[float] = []
    for cost in costs:
        while any(abs(cost - other) < 0.02 * spread for other in placed):
            cost += 0.025 * spread
        placed.append(cost)
    return placed


def draw(
    sweep: Path, directory: Path, metric: str | None = None, convention: str = "executed", against: str = "flops"
) -> dict[str, Path]:
    """Collect, draw and save the figure of a sweep. metric: None for `usual_metric`. Returns the paths by kind."""
    if against not in AGAINST:
        raise UsageError(f'--against "{against}": no such axis{nearest(against, AGAINST, "axes")}')
    metric = usual_metric(sweep) if metric is None else metric
    runs, context = collect(sweep, metric, convention)
    found = points(runs)
    said: dict[str, Any] = {"metric": metric, "convention": convention, "context": context}
    chance = chance_of(sweep, metric)
    stem = f"flops-accuracy-{metric}-{convention}" if against == "flops" else f"params-accuracy-{metric}"
    return style.save(
        plot(found, **said, against=against, chance=chance, note=f"sweep {sweep.name}"),
        directory,
        style.slug(stem),
        rows(found, **said),
        title=AGAINST[against],
        runs=list(dict.fromkeys(f"{r.run or r.arm}/seed{r.seed}" for r in runs)),
        n=max(p.n for p in found),
        numbers=said | {"sweep": sweep.name, "chance": chance, "against": against},
    )


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The figure for a sweep with its default metric, convention and axis."""
    return draw(sweep, directory)


def command(
    sweep: Sweep = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            help="Score on the y axis, as results.json names it (default: the accuracy most of the sweep's claims are about).",
            show_default=False,
        ),
    ] = None,
    convention: Annotated[
        str, typer.Option("--convention", help="How our FLOPs are counted: executed or published.")
    ] = "executed",
    against: Annotated[str, typer.Option("--against", help="The x axis: flops (per token) or parameters.")] = "flops",
    out: SweepOut = None,
    root: Root = None,
) -> None:
    """Accuracy against forward FLOPs per token, or against parameters: our arms with 95% intervals over seeds, published
    points beside them.

    Example: mmctl plot flops-accuracy --metric recall/accuracy@4x --against parameters
    """
    from mmctl.runs import runs_root

    found = sources.find_sweep(runs_root(root), sweep)
    sources.announce(draw(found, out or found / "figures", metric, convention, against), sweep=found)
