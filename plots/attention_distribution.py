"""Where the last query looks: attention weight on every earlier position, per layer and memory ("flat, then a peak").

Memory Mosaics (arXiv 2405.06394), the attention-score figure: the weight of the *last* query on every earlier position,
averaged over sequences in evaluation mode, one thin curve per head and their mean, on a log axis, at T = 512. A
transformer with positions depends on them everywhere; a mosaic's curve is flat far from the end and peaks near it.
Memory Mosaics v2 (arXiv 2507.03285) promises the same split into its long- and short-term memories.

Two numbers say the same without eyes. *Flatness* is the coefficient of variation over the visible positions further
than `near` before the query (0 = perfectly flat), beside the part of it that sampling noise alone would give; *peak
mass* is the weight on the last `near` positions. Both are taken per head and averaged over heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from mmctl.cli.options import Root
from mmctl.evaluation.attention import peak_begin

from . import sources, style
from .attention_weights import Distribution, collect

__all__ = ["Distribution", "collect", "command", "draw", "draw_sweep", "plot", "rows", "summary"]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mmctl.runs import RunFolder

TITLE = "Attention of the last query on every earlier position"
TITLES = {
    "attention": "attention",
    "attention-long": "long-range heads",
    "attention-short": "short-range heads",
    "contextual": "contextual memory",
    "long-term": "long-term memory",
    "short-term": "short-term memory",
}
DRAWN_LAYERS = 6


def plot(distributions: Sequence[Distribution], layers: Sequence[int] | None = None) -> Figure:
    """One panel per layer and memory, runs side by side, all on the same axes.

    layers: which to draw; default all, or six evenly spaced ones of a deeper model (the CSV always holds all).
    """
    shown = list(layers) if layers else _spread(sorted({n for d in distributions for n in d.layers()}))
    columns = [len(d.memories()) for d in distributions]
    floor, ceiling = _limits(distributions)
    with style.house_style():
        wide = 2.1 if sum(columns) <= 3 else 1.6
        drawn = style.figure(max(4.2, 0.7 + wide * sum(columns)), 1.45 + 1.45 * len(shown))
        # The first group also holds the y labels: with their room added, panels of all runs are equally wide.
        ratios = [c * wide + (0.7 if place == 0 else 0.0) for place, c in enumerate(columns)]
        groups = drawn.subfigures(1, len(distributions), width_ratios=ratios, squeeze=False)[0]
        for place, (group, one) in enumerate(zip(groups, distributions, strict=True)):
            group.suptitle(f"{one.model}\n{one.run}", fontsize=9, color=style.INK)
            grid = group.subplots(len(shown), len(one.memories()), squeeze=False, sharex=True, sharey=True)
            for row, layer in enumerate(shown):
                for column, memory in enumerate(one.memories()):
                    axes = grid[row][column]
                    _draw(axes, one, f"layer{layer}/{memory}", narrow=wide < 2)
                    if row == 0:
                        axes.set_title(TITLES.get(memory, memory))
                    if column == 0 and place == 0:
                        axes.set_ylabel(f"layer {layer}")
                    axes.tick_params(labelleft=column == 0 and place == 0)
            grid[0][0].set_yscale("log")
            grid[0][0].set_ylim(floor, ceiling)
            grid[0][0].minorticks_off()
            grid[0][0].set_xlim(0, one.length)
            group.supxlabel("position attended to", fontsize=8.5)
            if place == 0:
                group.supylabel("attention weight, mean over sequences (log)", fontsize=8.5)
        first = distributions[0]
        style.note(
            drawn,
            f"last query of {first.sequences} held-out sequences of {first.task}, T = {first.length}, one seed a model; "
            f"shaded: the last {first.near} positions. Flatness: standard deviation over mean of the weights on the positions "
            f"before those (0: perfectly flat), noise: what sampling {first.sequences} sequences alone would give. Peak mass: "
            f"weight on the last {first.near}. Both are taken per head and averaged over heads.",
        )
        _legend(drawn)
        _centred(drawn, groups)
    return drawn


def _centred(drawn: Figure, groups: Sequence[Any]) -> None:
    """Each group's title and x label over and under its panels: the first group is wider by its y labels."""
    drawn.draw_without_rendering()  # only now is known where the panels lie
    for group in groups:
        boxes = [axes.get_window_extent() for axes in group.axes]
        middle = (min(b.x0 for b in boxes) + max(b.x1 for b in boxes)) / 2
        place = group.transSubfigure.inverted().transform((middle, 0.0))[0]
        for text in (group._suptitle, group._supxlabel):
            text.set_x(place)


def rows(distributions: Sequence[Distribution]) -> list[dict[str, Any]]:
    """Every plotted number: one row per run, layer, memory, head (and their mean) and position."""
    table = []
    for one in distributions:
        for name, panel in one.panels.items():
            layer, _, memory = name.partition("/")
            curves = [*((str(h), curve) for h, curve in enumerate(panel.mean)), ("mean", panel.mean.mean(axis=0))]
            for head, curve in curves:
                for position, weight in enumerate(curve):
                    table.append(
                        {
                            "run": one.run,
                            "model": one.model,
                            "layer": int(layer.removeprefix("layer")),
                            "memory": memory,
                            "head": head,
                            "position": position,
                            "weight": float(f"{weight:.6g}"),
                        }
                    )
    return table


def summary(distributions: Sequence[Distribution]) -> dict[str, Any]:
    """Flatness and peak mass of every run, layer and memory: what the figure's JSON holds beside its origin."""
    return {
        "length": distributions[0].length,
        "near": distributions[0].near,
        "panels": {
            one.run: {
                "model": one.model,
                "task": one.task,
                **{name: panel.numbers(one.near, one.sequences) for name, panel in one.panels.items()},
            }
            for one in distributions
        },
    }


def _draw(axes: Axes, one: Distribution, name: str, *, narrow: bool) -> None:
    panel = one.panels.get(name)
    if panel is None:
        axes.text(0.5, 0.5, "no such layer", transform=axes.transAxes, ha="center", color=style.MUTED)
        return
    positions = np.arange(one.length)
    visible = panel.mean.max(axis=0) > 0.0
    axes.axvspan(peak_begin(one.length, one.near), one.length, color="#efefef", linewidth=0, zorder=0)
    for curve in panel.mean:
        axes.plot(positions, np.where(visible, curve, np.nan), color=style.COLOURS[5], linewidth=0.6, alpha=0.75)
    mean = np.where(visible, panel.mean.mean(axis=0), np.nan)
    # A jagged curve of many positions fills up with ink when it is thick.
    axes.plot(positions, mean, color=style.INK, linewidth=1.3 if one.length <= 256 else 0.9)
    seen = positions[visible]
    if seen.size:
        uniform = np.full(seen.size, panel.mean.mean(axis=0)[visible].sum() / seen.size)
        axes.plot(seen, uniform, color=style.COLOURS[4], linewidth=0.9, linestyle=(0, (1, 1.5)))
    numbers = panel.numbers(one.near, one.sequences)
    flat = numbers["flatness"]
    text = "flatness –" if flat is None else f"flatness {flat:.2f}"
    text += f"\npeak mass {numbers['peak_mass']:.2f}"
    axes.text(0.03, 0.95, text, transform=axes.transAxes, va="top", fontsize=7, color=style.INK)


def _legend(drawn: Figure) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=style.COLOURS[5], linewidth=1.0, label="one head"),
        Line2D([], [], color=style.INK, linewidth=1.3, label="mean over heads"),
        Line2D(
            [], [], color=style.COLOURS[4], linewidth=0.9, linestyle=(0, (1, 1.5)), label="uniform over what is visible"
        ),
    ]
    drawn.legend(handles=handles, loc="outside lower center", ncols=3)


def _limits(distributions: Sequence[Distribution]) -> tuple[float, float]:
    """Shared y limits: down to where nearly all weights lie, up past the largest so that the numbers have room."""
    seen = np.concatenate([p.mean[p.mean > 0.0].ravel() for d in distributions for p in d.panels.values()])
    if seen.size == 0:
        return 1e-4, 1.0
    return float(max(np.quantile(seen, 0.005) / 2.0, 1e-8)), float(max(8.0 * seen.max(), 1.0))


def _spread(layers: list[int]) -> list[int]:
    if len(layers) <= DRAWN_LAYERS:
        return layers
    return [layers[round(i * (len(layers) - 1) / (DRAWN_LAYERS - 1))] for i in range(DRAWN_LAYERS)]


def draw(runs: Sequence[RunFolder], directory: Path, **options: Any) -> dict[str, Path]:
    """Measure, draw and save the figure of `runs`; options are those of `collect`. Returns the paths by kind."""
    found = collect(runs, **options)
    names = "-".join(dict.fromkeys(one.model for one in found))
    return style.save(
        plot(found),
        directory,
        style.slug(f"attention-distribution-{names}-T{found[0].length}"),
        rows(found),
        title=TITLE,
        runs=[one.run for one in found],
        n=found[0].sequences,
        numbers=summary(found),
    )


def shows(results: Mapping[str, Any]) -> Any:
    """What the figure depends on: the trained runs, not what is claimed of them."""
    return sources.trained(results)


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The figure for a sweep: one baseline run of each model in it, side by side."""
    return draw(sources.baseline_runs(sweep), directory)


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Runs, side by side (default: one of each model in the newest sweep).",
            show_default=False,
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            "--length", "-T", min=2, help="Tokens a sequence (default: the training length).", show_default=False
        ),
    ] = None,
    sequences: Annotated[int, typer.Option("--sequences", help="Held-out sequences to average over.")] = 256,
    task: Annotated[
        str | None,
        typer.Option("--task", help="Task to read (default: text, or the run's heaviest task).", show_default=False),
    ] = None,
    near: Annotated[
        int | None,
        typer.Option(
            "--near", min=1, help="Last positions that count as the peak (default: h of the runs).", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for the figure (default: the run's or the sweep's figures/).", show_default=False
        ),
    ] = None,
    root: Root = None,
) -> None:
    """Where the last query looks: its weight on every earlier position, per layer and memory.

    Writes PNG, PDF, CSV (every plotted number) and JSON (flatness and peak mass), and logs them to MLflow.

    Example: mmctl plot attention-distribution transformer mosaic-v2 --length 512
    """
    from mmctl.runs import RunFolder, runs_root

    where = runs_root(root)
    if runs:
        chosen = [RunFolder.find(where, text) for text in runs]
        directory = out or chosen[0].path / "figures"
    else:
        sweep = sources.find_sweep(where, None)
        chosen = sources.baseline_runs(sweep)
        directory = out or sweep / "figures"
    paths = draw(chosen, directory, length=length, sequences=sequences, task=task, near=near, progress=sources.progress)
    sources.announce(paths, chosen)
