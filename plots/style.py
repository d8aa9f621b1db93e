"""The one house style of every figure: colours, lines, markers, and how a figure is saved.

Figures are `matplotlib.figure.Figure` objects; pyplot is never imported, so nothing is global and no display is needed.
The palette begins with Okabe and Ito's, which people with any common colour blindness can tell apart. It is ordered so
that neighbours also differ in lightness, and every series has its own line style and marker, so a grey print stays
readable.
"""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from mmctl.errors import MmctlError
from mmctl.runs import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, GRID = "#1a1a1a", "#5c5c5c", "#dcdcdc"

COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#B8A800",
    "#882255", "#8C8C8C", "#44AA99", "#8B5A2B",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
LINES: tuple[Any, ...] = (
    "-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 3)), (0, (1, 3)),
    (0, (6, 1, 1, 1)), (0, (2, 1)), (0, (10, 2, 2, 2)), (0, (4, 1, 4, 3)),
)  # fmt: skip

# A printed page's text block is about 6.5 inches wide; text below 7 points is hard to read on paper.
RULES: dict[str, Any] = {
    "figure.facecolor": "white",
    "figure.titlesize": 11,
    "savefig.dpi": 200,
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.labelsize": 8.5,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 5.5,
    "pdf.fonttype": 42,  # TrueType: text stays text, and journals accept it
}


@dataclass(frozen=True)
class Series:
    """How one series is drawn everywhere in a figure: the same arm has the same look in every panel."""

    colour: str
    marker: str
    line: Any


def series(index: int) -> Series:
    """The look of the `index`-th series (0-based). Up to twelve can be told apart; after that looks repeat shifted."""
    turn, place = divmod(index, len(COLOURS))
    return Series(COLOURS[place], MARKERS[(place + turn) % len(MARKERS)], LINES[(place + turn) % len(LINES)])


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib's settings inside the block are ours, whatever the user's matplotlibrc says; outside nothing
    changes."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        for name, value in RULES.items():
            matplotlib.rcParams[name] = value  # type: ignore[index]
        yield


def figure(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches with constrained layout. Call it inside `house_style()`."""
    return Figure(figsize=(width, height), layout="constrained")


def log_ticks(axes: Axes) -> None:
    """A log y axis with plain numbers at 1, 2 and 5 times each power of ten: its range may hold only one of these."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")


def note(drawn: Figure, *texts: str) -> None:
    """What the figure shows, above it, a line or more each; wrapped to the figure's width. Empty texts are left out."""
    letters = int(18 * drawn.get_figwidth())
    lines = [line for text in texts if text for line in _balanced(text, letters)]
    drawn.suptitle("\n".join(lines), fontsize=7.5, color=MUTED)


def _balanced(text: str, letters: int) -> list[str]:
    """As few lines as fit, and those about equally long: no last line of one word."""
    lines = textwrap.wrap(text, letters)
    while letters > 20 and len(narrower := textwrap.wrap(text, letters - 1)) == len(lines):
        lines, letters = narrower, letters - 1
    return lines


def save(
    drawn: Figure,
    directory: Path,
    stem: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    title: str,
    runs: Sequence[str],
    n: int,
    numbers: Mapping[str, Any] | None = None,
) -> dict[str, Path]:
    """Write a figure as `stem`.png, .pdf, .csv (the plotted numbers) and .json (runs, n, date, summary numbers).

    drawn: the figure; directory: created if absent; rows: one mapping per plotted point, all with the same keys;
    title: in the metadata of PNG and PDF; runs: names of the runs shown; n: how many units (sequences, seeds) stand
    behind a plotted number; numbers: summary for the JSON. Returns the paths by kind. Each file is replaced atomically.
    """
    date = datetime.now(UTC)
    about = f"runs: {', '.join(runs) or 'none'}; n = {n}; {date:%Y-%m-%d %H:%M} UTC"
    png, pdf = io.BytesIO(), io.BytesIO()
    with house_style():
        drawn.savefig(png, format="png", metadata={"Title": title, "Description": about, "Software": "mmctl"})
        drawn.savefig(
            pdf, format="pdf", metadata={"Title": title, "Subject": about, "Creator": "mmctl", "CreationDate": date}
        )
    summary = {"title": title, "runs": list(runs), "n": n, "date": date.isoformat(), **(numbers or {})}
    contents = {
        "png": _smaller(png.getvalue()),
        "pdf": pdf.getvalue(),
        "csv": _csv(rows).encode(),
        "json": (json.dumps(summary, indent=1, allow_nan=False) + "\n").encode(),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MmctlError(f"cannot create {directory}: {error.strerror or error}") from None
    paths = {kind: directory / f"{stem}.{kind}" for kind in contents}
    for kind, data in contents.items():
        files.write_bytes(paths[kind], data)
    return paths


def _smaller(png: bytes) -> bytes:
    """The same picture in 256 colours: a third of the bytes, and nothing an eye could tell (a report holds its figures,
    and is read on a phone). The colours that cover it best are moved to the means of what they stand for: without that a
    light grey became a light green."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    about, smaller = PngInfo(), io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        for key, text in image.info.items():
            if isinstance(key, str) and isinstance(text, str):
                about.add_text(key, text)
        few = image.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
        few.save(smaller, "png", optimize=True, pnginfo=about, dpi=image.info["dpi"])
    return smaller.getvalue()


def slug(text: str) -> str:
    """`text` as a file name: lower case, anything but letters, digits and dots becomes one '-'."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "figure"


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV. A missing number is an empty field, never 0."""
    if not rows:
        raise ValueError("a figure without plotted numbers cannot be saved")
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: "" if value is None else value for key, value in row.items()})
    return text.getvalue()
