"""Does a state of fixed size go on working beyond its training length, and from which training length on?

Stuffed Mamba (arXiv 2410.07145): loss by position with the training length marked, one panel a state size; below, the
largest loss beyond the training length over the largest within it, the forget threshold against the size of the state
with its line, and the accuracy of a passkey against the context it is hidden in. From a sweep whose ablation has an
`across` entry of forget-threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli.options import Root, Sweep, SweepOut
from mmctl.evaluation.forgetting_rules import NEEDED, RULES
from mmctl.sweeps.statistics import summarise

from . import grid, sources, style
from .forget_points import Found, Point, collect

__all__ = ["collect", "command", "draw", "draw_sweep", "plot", "rows"]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Forgetting beyond the training length"
COLUMNS = 3
FLOOR = 1e-9
"""Where a band ends whose interval reaches below 0: a logarithmic axis has no 0."""


def plot(found: Found, note: str = "") -> Figure:
    """A panel a family, then ratios, thresholds with their line, passkeys."""
    families = found.families()
    rows = -(-len(families) // COLUMNS)
    lengths = sorted({p.training_length for p in found.of("loss") if p.training_length is not None})
    means = [p.mean for p in found.of("loss") if p.mean > 0.0]
    ends = (0.7 * min(means, default=0.1), 1.6 * max(means, default=1.0))
    with style.house_style():
        drawn = style.figure(grid.WIDTH, 1.1 + 1.6 * (rows + 1))
        axes = drawn.subplots(rows + 1, COLUMNS, squeeze=False)
        for place in range(rows * COLUMNS):
            panel = axes[place // COLUMNS][place % COLUMNS]
            if place < len(families):
                _loss(panel, found.of("loss", families[place]), families[place], lengths)
                panel.set_ylim(*ends)
                if place % COLUMNS == 0:
                    panel.set_ylabel("loss (nats)")
            else:
                panel.set_axis_off()
        _legend(axes[0][COLUMNS - 1], [f"trained on {length}" for length in lengths])
        _ratios(axes[rows][0], found, families)
        _thresholds(axes[rows][1], found)
        _passkeys(axes[rows][2], found, families)
        _legend(axes[rows][2], families)
        n = grid.seeds([p.n for p in found.of("loss")])
        style.note(
            drawn, note, f"mean over seeds ({n}) with its 95% interval; top: dotted at the training length in the line's "
            "colour; thresholds: a mark a seed, an open triangle where it lies above the largest length tried; the line is the "
            "mean of the seeds' with its 95% interval",
        )  # fmt: skip
    return drawn


def _legend(axes: Axes, labels: Sequence[str]) -> None:
    grid.legend(axes, labels)


def _curve(axes: Axes, points: Sequence[Point], index: int, factor: float = 1.0, most: float | None = None) -> None:
    look, own = style.series(index), sorted(points, key=lambda p: p.x)
    x = [p.x for p in own]
    axes.plot(
        x, [factor * p.mean for p in own], color=look.colour, marker=look.marker, linestyle=look.line, markersize=2.8,
        linewidth=1.0,
    )  # fmt: skip
    if own and all(p.interval for p in own):
        low = [factor * max(p.interval[0], FLOOR) for p in own if p.interval]
        high = [factor * (p.interval[1] if most is None else min(p.interval[1], most)) for p in own if p.interval]
        axes.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)


def _loss(axes: Axes, points: Sequence[Point], family: str, lengths: Sequence[int]) -> None:
    for index, length in enumerate(lengths):
        own = [p for p in points if p.training_length == length]
        if own:
            _curve(axes, own, index)
            axes.axvline(length, color=style.series(index).colour, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
    axes.set_xscale("log", base=2)
    _logarithmic(axes)  # the rules are about ratios of losses: equally far apart wherever the loss begins
    axes.set_title(family, loc="left", fontsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("position (tokens)", fontsize=7.5)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")


def _ratios(axes: Axes, found: Found, families: Sequence[str]) -> None:
    for index, family in enumerate(families):
        _curve(axes, found.of("ratio", family), index)
    for rule in RULES:
        axes.axhline(rule, color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    _logarithmic(axes)
    found_ratios = [p.mean for p in found.of("ratio") if p.mean > 0.0]
    axes.set_ylim(0.7 * min(found_ratios, default=1.0), 1.6 * max([*found_ratios, *RULES]))
    lengths = sorted({p.x for p in found.of("ratio")})
    axes.set_xticks(lengths, [f"{length:g}" for length in lengths])
    axes.set_title("loss beyond / within", loc="left", fontsize=8)
    axes.set_xlabel("training length (tokens)", fontsize=7.5)
    axes.set_ylabel(f"ratio (rules: {' and '.join(f'{rule:g}' for rule in RULES)})", fontsize=7.5)


def _thresholds(axes: Axes, found: Found) -> None:
    import numpy as np

    sizes = [p.x for rule in RULES for p in [*found.of(f"threshold-{rule:g}x"), *found.of(f"above-{rule:g}x")]]
    room = (max(sizes) - min(sizes)) * 0.012 if sizes else 0.0
    for index, rule in enumerate(RULES):
        word, look = f"{rule:g}x", style.series(index)
        for what, marker, face in (("threshold", look.marker, look.colour), ("above", "^", "none")):
            for place, point in enumerate(sorted(found.of(f"{what}-{word}"), key=lambda p: p.seed)):
                shift = room * (
                    (place % 3) - 1 + 4 * index
                )  # equal thresholds of several seeds would lie on each other
                axes.plot(point.x + shift, point.mean, marker, color=look.colour, markerfacecolor=face, markersize=4)
        lines = found.lines.get(word, [])
        if lines and sizes:
            x = np.linspace(min(sizes), max(sizes), 50)
            through = [summarise([slope * at + end for slope, end in lines]) for at in x]
            means = [one.mean for one in through if one]
            axes.plot(x, means, color=look.colour, linestyle=look.line, linewidth=1.0, label=f"rule of {word}")
            bands = [one.interval for one in through if one and one.interval]
            if len(bands) == len(x):
                low, high = zip(*bands, strict=True)
                axes.fill_between(x, low, high, color=look.colour, alpha=0.12, linewidth=0)
        else:
            axes.plot([], [], look.marker, color=look.colour, label=f"rule of {word}")
    tried = sorted({p.x for p in found.of("ratio")})
    if tried:
        axes.set_ylim(0, 1.35 * max(tried))
        axes.set_yticks(tried, [f"{length:g}" for length in tried])
    axes.legend(fontsize=6.5, loc="upper left")
    axes.set_title("forget threshold (tokens)", loc="left", fontsize=8)
    axes.set_xlabel("state (thousands of numbers)", fontsize=7.5)


def _passkeys(axes: Axes, found: Found, families: Sequence[str]) -> None:
    """Of each family the models trained on the longest sequences."""
    for index, family in enumerate(families):
        own = found.of("passkey", family)
        longest = max((p.training_length or 0 for p in own), default=0)
        _curve(axes, [p for p in own if p.training_length == longest], index, 100.0, 1.0)
    axes.axhline(100 * NEEDED, color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylim(-3, 103)
    axes.set_title("passkey (%), longest training", loc="left", fontsize=8)
    axes.set_xlabel("context (tokens)", fontsize=7.5)


def rows(found: Found) -> list[dict[str, Any]]:
    """Every plotted number; the lines' slopes in tokens per thousand state numbers."""
    made = [
        {
            "panel": p.panel, "family": p.family, "arm": p.arm, "training_length": p.training_length, "seed": p.seed, "x": p.x,
            "value": p.mean, "low": p.interval and p.interval[0], "high": p.interval and p.interval[1], "n": p.n,
        }
        for p in found.points
    ]  # fmt: skip
    for rule, lines in found.lines.items():
        for what, values in (("slope", [s for s, _ in lines]), ("intercept", [e for _, e in lines])):
            one = summarise(values)
            if one is not None:
                low, high = one.interval or (None, None)
                blank = dict.fromkeys(made[0], None)
                made.append(
                    blank | {"panel": f"{what}-{rule}", "value": one.mean, "low": low, "high": high, "n": one.n}
                )
    return made


def draw(sweep: Path, directory: Path, ablation: str | None = None) -> dict[str, Path]:
    """Collect, draw and save the figure of a sweep. Returns the paths by kind."""
    found = collect(sweep, ablation)
    return style.save(
        plot(found, f"sweep {sweep.name}"),
        directory,
        style.slug("-".join(["forget", *([ablation] if ablation else [])])),
        rows(found),
        title=TITLE,
        runs=sources.run_labels(sources.read_results(sweep)),
        n=max(p.n for p in found.points),
        numbers={"sweep": sweep.name},
    )


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The figure for a sweep."""
    return draw(sweep, directory)


def command(
    sweep: Sweep = None,
    ablation: Annotated[str | None, typer.Option("--ablation", help="Only this ablation.", show_default=False)] = None,
    out: SweepOut = None,
    root: Root = None,
) -> None:
    """Loss beyond the training length by state size, forget thresholds with their line, passkeys.

    Example: mmctl plot forget
    """
    from mmctl.runs import runs_root

    found = sources.find_sweep(runs_root(root), sweep)
    sources.announce(draw(found, out or found / "figures", ablation), sweep=found)
