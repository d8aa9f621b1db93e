"""How the attention-distribution figure is drawn: a panel for each layer and memory of every configuration."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mmctl.evaluation.attention import peak_begin

from . import style
from .attention_weights import Distribution, Group, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {
    "attention": "attention",
    "attention-long": "long-range heads",
    "attention-short": "short-range heads",
    "contextual": "contextual memory",
    "long-term": "long-term memory",
    "short-term": "short-term memory",
}
DRAWN_LAYERS = 6
"""At most, over all rows of configurations."""
MOST_COLUMNS = 4
"""Panels side by side: more would be too small in print."""
LETTERS = 13
"""Of a title, in an inch."""
BAND = style.COLOURS[5]


def plot(distributions: Sequence[Distribution], layers: Sequence[int] | None = None) -> Figure:
    """One panel per layer and memory, configurations side by side (in rows, where they are many), all on the same axes.

    layers: which to draw; default all, or some evenly spaced ones of a deeper model (the CSV always holds all).
    """
    bands = _bands(grouped(distributions))
    most = max(2, DRAWN_LAYERS // len(bands))
    shown = list(layers) if layers else _spread(sorted({n for d in distributions for n in d.layers()}), most)
    limits = _limits(distributions)
    columns = [sum(len(group.first.memories()) for group in band) for band in bands]
    with style.house_style():
        wide = 2.1 if max(columns) <= 3 else 1.6
        width = max(4.2, 0.7 + wide * max(columns))
        drawn = style.figure(width, 0.75 + (0.7 + 1.45 * len(shown)) * len(bands))
        groups: list[Any] = []
        for place, band in zip(drawn.subfigures(len(bands), 1, squeeze=False)[:, 0], bands, strict=True):
            # The first group also holds the y labels: with their room added, panels of all runs are equally wide.
            ratios = [len(g.first.memories()) * wide + (0.0 if i else 0.7) for i, g in enumerate(band)]
            rest = [width - sum(ratios)] if width - sum(ratios) > 0.01 else []
            parts = place.subfigures(1, len(ratios + rest), width_ratios=ratios + rest, squeeze=False)[0]
            titles = [_title(group, wide) for group in band]
            for i, (part, group) in enumerate(zip(parts, band, strict=False)):
                lines = titles[i] + [""] * (max(map(len, titles)) - len(titles[i]))  # panels of a row are equally high
                part.suptitle("\n".join(lines), fontsize=9, color=style.INK)
                _group(part, group, shown, limits, labelled=i == 0)
                groups.append(part)
        style.note(drawn, _explained(distributions))
        _legend(drawn, grouped(distributions))
        _centred(drawn, groups)
    return drawn


def _bands(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups in rows of at most MOST_COLUMNS panels."""
    bands: list[list[Group]] = [[]]
    for group in groups:
        used = sum(len(g.first.memories()) for g in bands[-1])
        if bands[-1] and used + len(group.first.memories()) > MOST_COLUMNS:
            bands.append([])
        bands[-1].append(group)
    return bands


def _title(group: Group, wide: float) -> list[str]:
    letters = int(LETTERS * wide * len(group.first.memories()))
    if group.alone:
        return [*textwrap.wrap(group.first.model, letters), *textwrap.wrap(group.name, letters)]
    return [*textwrap.wrap(group.name, letters), f"{len(group.seeds)} seeds"]


def _group(part: Any, group: Group, shown: Sequence[int], limits: tuple[float, float], *, labelled: bool) -> None:
    """One configuration: a row of panels a layer, a column a memory."""
    memories = group.first.memories()
    grid = part.subplots(len(shown), len(memories), squeeze=False, sharex=True, sharey=True)
    for row, layer in enumerate(shown):
        for column, memory in enumerate(memories):
            axes = grid[row][column]
            _draw(axes, group, f"layer{layer}/{memory}")
            if row == 0:
                axes.set_title(TITLES.get(memory, memory))
            if column == 0 and labelled:
                axes.set_ylabel(f"layer {layer}")
            axes.tick_params(labelleft=column == 0 and labelled)
    grid[0][0].set_yscale("log")
    grid[0][0].set_ylim(*limits)
    grid[0][0].minorticks_off()
    grid[0][0].set_xlim(0, group.first.length)
    part.supxlabel("position attended to", fontsize=8.5)
    if labelled:
        part.supylabel("attention weight (log)", fontsize=8.5)


def _explained(distributions: Sequence[Distribution]) -> str:
    first, groups = distributions[0], grouped(distributions)
    several = "" if all(g.alone for g in groups) else "; ± and bands: 95% intervals over seeds (Student's t)"
    one = " one seed a model;" if all(g.alone for g in groups) else ""
    return (
        f"Weights of the last query, mean over {first.sequences} held-out sequences of {first.task}, T = {first.length};"
        f"{one} shaded: the last {first.near} positions. Flatness: effective share of the positions before those, 1 / (1 + "
        f"CV²) of their weights without sampling noise (1: perfectly flat). Peak mass: weight on the last {first.near}. Both "
        f"are taken per head and averaged over heads{several}."
    )


def _centred(drawn: Figure, groups: Sequence[Any]) -> None:
    """Each group's title and x label over and under its panels: the first group is wider by its y labels."""
    drawn.draw_without_rendering()  # only now is known where the panels lie
    for group in groups:
        boxes = [axes.get_window_extent() for axes in group.axes]
        middle = (min(b.x0 for b in boxes) + max(b.x1 for b in boxes)) / 2
        place = group.transSubfigure.inverted().transform((middle, 0.0))[0]
        for text in (group._suptitle, group._supxlabel):
            text.set_x(place)


def _draw(axes: Axes, group: Group, name: str) -> None:
    panels = group.of(name)
    if not panels:
        axes.text(0.5, 0.5, "no such layer", transform=axes.transAxes, ha="center", color=style.MUTED)
        return
    length, near = group.first.length, group.first.near
    positions, visible = np.arange(length), group.visible(name)
    axes.axvspan(peak_begin(length, near), length, color="#efefef", linewidth=0, zorder=0)
    if group.alone:
        for curve in panels[0].mean:
            axes.plot(positions, np.where(visible, curve, np.nan), color=BAND, linewidth=0.6, alpha=0.75)
    elif (band := group.band(name)) is not None:
        low, high = (np.where(visible, edge, np.nan) for edge in band)
        axes.fill_between(positions, low, high, color=BAND, linewidth=0, alpha=0.6)
    mean = group.mean(name)
    # A jagged curve of many positions fills up with ink when it is thick.
    axes.plot(positions, np.where(visible, mean, np.nan), color=style.INK, linewidth=1.3 if length <= 256 else 0.9)
    seen = positions[visible]
    if seen.size:
        uniform = np.full(seen.size, group.curves(name).mean(axis=0)[visible].sum() / seen.size)
        axes.plot(seen, uniform, color=style.COLOURS[4], linewidth=0.9, linestyle=(0, (1, 1.5)))
    numbers = group.numbers(name)
    text = f"flatness {_said(numbers['flatness'])}\npeak mass {_said(numbers['peak_mass'])}"
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.0}  # a curve may pass behind it
    axes.text(0.03, 0.95, text, transform=axes.transAxes, va="top", fontsize=7, color=style.INK, bbox=ground)


def _said(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return "–"
    interval = summary["interval"]
    return f"{summary['mean']:.2f}" + (f" ± {interval[1] - summary['mean']:.2f}" if interval else "")


def _legend(drawn: Figure, groups: Sequence[Group]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    if any(group.alone for group in groups):
        handles.append(Line2D([], [], color=BAND, linewidth=1.0, label="one head"))
    mean = "mean over heads" if all(group.alone for group in groups) else "mean over heads and seeds"
    handles.append(Line2D([], [], color=style.INK, linewidth=1.3, label=mean))
    if not all(group.alone for group in groups):
        handles.append(Patch(color=BAND, alpha=0.6, linewidth=0, label="its 95% interval"))
    dots = (0, (1, 1.5))
    handles.append(Line2D([], [], color=style.COLOURS[4], linewidth=0.9, linestyle=dots, label="uniform"))
    drawn.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _limits(distributions: Sequence[Distribution]) -> tuple[float, float]:
    """Shared y limits: down to where nearly all weights lie, up past the largest so that the numbers have room."""
    seen = np.concatenate([p.mean[p.mean > 0.0].ravel() for d in distributions for p in d.panels.values()])
    if seen.size == 0:
        return 1e-4, 1.0
    return float(max(np.quantile(seen, 0.005) / 2.0, 1e-8)), float(max(8.0 * seen.max(), 1.0))


def _spread(layers: list[int], most: int) -> list[int]:
    if len(layers) <= most:
        return layers
    return [layers[round(i * (len(layers) - 1) / (most - 1))] for i in range(most)]
