"""Small multiples: one row of panels an ablation, one line an arm, the legend beside its row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmctl.errors import UsageError, nearest

from . import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, ROW = 7.4, 1.75
"""Inches: a page's width, a row's height."""
MOST = len(style.COLOURS)
"""Lines of one panel that can be told apart."""


def ablations(results: Mapping[str, Any], wanted: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The ablations named, in the sweep's order; all without names. UsageError with the nearest name."""
    known = [a["name"] for a in results["ablations"]]
    for name in wanted:
        if name not in known:
            raise UsageError(f'--ablation "{name}": not in this sweep{nearest(name, known, "ablations")}')
    return [a for a in results["ablations"] if not wanted or a["name"] in wanted]


def panels(rows: Sequence[str], columns: Sequence[str], *notes: str) -> tuple[Figure, list[list[Axes]]]:
    """A figure of rows x columns panels with the columns' titles above, the rows' names on the left and the notes on
    top. Call it inside `house_style()`."""
    drawn = style.figure(WIDTH, 0.75 + ROW * len(rows))
    grid = drawn.subplots(len(rows), len(columns), squeeze=False)
    for place, title in enumerate(columns):
        grid[0][place].set_title(title, loc="left", fontsize=8)
    for place, name in enumerate(rows):
        grid[place][0].annotate(
            name, (0, 0.5), xytext=(-42, 0), xycoords="axes fraction", textcoords="offset points", rotation=90,
            ha="center", va="center", fontsize=8.5, fontweight="bold", color=style.INK,
        )  # fmt: skip
    style.note(drawn, *notes)
    return drawn, [list(row) for row in grid]


def legend(axes: Axes, labels: Sequence[str]) -> None:
    """The arms of a row, in their looks, right of its last panel."""
    from matplotlib.lines import Line2D

    looks = [style.series(i) for i in range(len(labels))]
    handles = [
        Line2D([], [], color=k.colour, marker=k.marker, linestyle=k.line, label=label, markersize=4)
        for k, label in zip(looks, labels, strict=True)
    ]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.03, 0.5), fontsize=7, handlelength=2.6)


def readable(ablation: Mapping[str, Any], among: Collection[str] | None = None) -> tuple[list[str], str]:
    """The arms to draw as lines in one panel, and, where they are not all, which: those that claims compare, where that is
    a choice, else the first. A figure's CSV holds all. `among`: the arms there is anything to draw of (None: all)."""
    arms = [arm["name"] for arm in ablation["arms"] if among is None or arm["name"] in among]
    if len(arms) <= MOST:
        return arms, ""
    claimed = {claim.get(role) for claim in ablation["claims"] for role in ("treatment", "control")}
    chosen = [arm for arm in arms if arm in claimed]
    which = "that its claims compare" if chosen else "that come first"
    shown = (chosen or arms)[:MOST]
    return shown, f"of {ablation['name']} the {len(shown)} of {len(arms)} arms {which}"


def left_out(found: Sequence[Any]) -> list[str]:
    """A note for each ablation of whose arms some are no line: which are, and the others' names. Each of `found` has an
    `arm` and what `readable` says of it as `left_out` ("" for a line)."""
    notes = dict.fromkeys(one.left_out for one in found if one.left_out)
    names = {note: dict.fromkeys(one.arm for one in found if one.left_out == note) for note in notes}
    return [f"{note}; left out, but in the CSV: {', '.join(arms)}" for note, arms in names.items()]


def seeds(counts: Sequence[int]) -> str:
    """How many seeds stand behind the numbers: "n = 3" or "n = 1 to 3"."""
    low, high = min(counts), max(counts)
    return f"n = {low}" if low == high else f"n = {low} to {high}"
