"""Speed of the kernels against the length of the sequence, beside their peers and this machine's own ceilings.

Drawn from the CSV of `mmctl bench kernels`: a column a case, a row a head width. Reads of a memory are shown in TFLOP/s
under the measured matrix product, the extractors in GB/s under the measured copy, a layer and a training step in
milliseconds. What was refused or unavailable has no point; the CSV says why.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.errors import MmctlError, UsageError

from . import sources, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Speed of the kernels against sequence length"
STEM = "kernel-speed"
UNITS = {
    "long": ("tflops", "TFLOP/s"),
    "short": ("tflops", "TFLOP/s"),
    "key-scan": ("gbytes", "GB/s"),
    "value-extract": ("gbytes", "GB/s"),
    "state-space": ("gbytes", "GB/s"),
    "layer": ("milliseconds", "milliseconds"),
    "step": ("milliseconds", "milliseconds"),
}
"""What each case's vertical axis shows, and its name."""
CEILINGS = {"tflops": ("matmul_tflops", "measured matrix product"), "gbytes": ("copy_gbytes", "measured copy")}
SHOWN = ("both", "step")
"""Phases drawn: forward and backward together; the CSV has them apart as well."""


@dataclass(frozen=True)
class Point:
    """One contender's median at one size."""

    case: str
    width: int
    contender: str
    tokens: int
    value: float
    ceiling: float | None
    device: str
    precision: str


def collect(path: Path) -> list[Point]:
    """Measured points of a benchmark's CSV. MmctlError, one line, when it is none."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(file))
        return [_point(row) for row in table if row["status"] == "measured" and row["phase"] in SHOWN]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; expected the CSV of mmctl bench kernels") from None
    except (KeyError, ValueError, UnicodeDecodeError, csv.Error):
        raise MmctlError(f"{path}: not the CSV of mmctl bench kernels") from None


def _point(row: dict[str, str]) -> Point:
    field, _ = UNITS[row["case"]]
    ceiling = float(row[CEILINGS[field][0]]) if field in CEILINGS else None
    return Point(
        row["case"], int(row["width"]), row["contender"], int(row["tokens"]), float(row[field]), ceiling,
        row["device"], row["precision"],
    )  # fmt: skip


def plot(found: Sequence[Point]) -> Figure:
    """Small multiples; a contender looks the same in every panel."""
    cases = [case for case in UNITS if any(p.case == case for p in found)]
    widths = sorted({p.width for p in found}, reverse=True)
    contenders = list(dict.fromkeys(p.contender for p in found))
    with style.house_style():
        drawn = style.figure(max(3.4, 1.8 * len(cases)), 0.9 + 2.1 * max(1, len(widths)))
        if not found:
            axes = drawn.subplots()
            axes.set_axis_off()
            axes.text(0.5, 0.5, "nothing was measured", ha="center", va="center")
            return drawn
        grid = drawn.subplots(len(widths), len(cases), squeeze=False)
        handles: dict[str, Any] = {}
        for row, width in enumerate(widths):
            for column, case in enumerate(cases):
                here = [p for p in found if (p.case, p.width) == (case, width)]
                handles |= _panel(grid[row][column], here, case, contenders)
                if row == 0:
                    grid[row][column].set_title(case, loc="left")
                if row == len(widths) - 1:
                    grid[row][column].set_xlabel("tokens")
                if column == 0:
                    grid[row][column].annotate(
                        f"D = {width}", (0, 1), xytext=(-4, 16), xycoords="axes fraction", textcoords="offset points",
                        ha="right", fontsize=8, color=style.MUTED,
                    )  # fmt: skip
        drawn.legend(handles.values(), handles, loc="outside lower center", ncols=min(4, len(handles)))
        about = f"{found[0].device}, {found[0].precision}: medians, forward and backward together; dashed: the ceiling measured in the same process"
        drawn.suptitle(about, fontsize=7.5, color=style.MUTED)
    return drawn


def _panel(axes: Axes, here: Sequence[Point], case: str, contenders: Sequence[str]) -> dict[str, Any]:
    """One case at one width; returns a handle a contender."""
    field, unit = UNITS[case]
    if not here:
        axes.set_axis_off()
        return {}
    handles = {}
    for index, contender in enumerate(contenders):
        line = sorted((p.tokens, p.value) for p in here if p.contender == contender)
        if not line:
            continue
        look = style.series(index)
        (handles[contender],) = axes.plot(
            [t for t, _ in line], [v for _, v in line], color=look.colour, marker=look.marker, linestyle=look.line,
            markersize=4, zorder=3 if contender == "ours" else 2,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    ticks = sorted({p.tokens for p in here})
    axes.set_xticks(ticks, [f"{t // 1024}k" if t >= 1024 and t % 1024 == 0 else str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_ylabel(unit)
    if field == "milliseconds":
        axes.set_ylim(0, 1.08 * max(p.value for p in here))
    else:
        ceiling = max(p.ceiling or 0.0 for p in here)
        axes.axhline(ceiling, linestyle="--", linewidth=0.9, color=style.INK)
        axes.set_ylim(0, 1.05 * max(ceiling, *(p.value for p in here)))
    return handles


def rows(found: Sequence[Point]) -> list[dict[str, Any]]:
    """The plotted numbers."""
    return [vars(p) | {"unit": UNITS[p.case][1]} for p in found]


def draw(path: Path, directory: Path) -> dict[str, Path]:
    """Draw a benchmark's CSV and save the figure beside its numbers, as kernel-speed-figure.*. Returns the paths by
    kind."""
    found = collect(path)
    shown: list[dict[str, Any]] = rows(found) or [dict.fromkeys([*Point.__dataclass_fields__, "unit"])]
    return style.save(plot(found), directory, f"{STEM}-figure", shown, title=TITLE, runs=[str(path)], n=1)


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """There is none: speeds come from a benchmark. Raises MmctlError."""
    raise MmctlError(f"figure {STEM}: drawn from the CSV of mmctl bench kernels, not from a sweep ({sweep.name})")


def command(
    table: Annotated[
        Path, typer.Argument(metavar="CSV", help="kernel-speed.csv of mmctl bench kernels, or its folder.")
    ] = Path("benchmarks"),
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the figure (default: that of the CSV).", show_default=False)
    ] = None,
) -> None:
    """Speed of the kernels against sequence length, beside their peers and the machine's ceilings.

    Example: mmctl plot kernel-speed benchmarks
    """
    path = table / f"{STEM}.csv" if table.is_dir() else table
    sources.announce(draw(path, out or path.parent))
