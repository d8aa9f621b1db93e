"""A sweep on one page of small multiples: for each ablation its claims, a score against length, and the training loss.

Differences in different units share an axis by being drawn in multiples of the margin that their claim says counts as no
effect (for a claim of a range: from its middle, in halves of its width), so that the grey band means the same everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.cli.options import Root, Sweep, SweepOut
from mmctl.errors import UsageError
from mmctl.sweeps.reporting.words import large, tone
from mmctl.sweeps.units import scale_of

from . import extrapolation, grid, loss, sources, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "The sweep on one page"
PAGE, HEAD, LINE, KEY = 10.4, 1.5, 0.145, 0.125
"""Inches: the most a page is high, what its notes and legend take, a claim's line, an arm's line in the legend."""
LOOKS = {
    "held": (style.COLOURS[0], "o", True),
    "against": (style.COLOURS[4], "s", True),
    "open": (style.MUTED, "o", False),
    "none": (style.MUTED, "x", True),
}
"""Kind of verdict -> colour, marker, filled."""
MEANS = {
    "held": "as claimed",
    "against": "not as claimed",
    "open": "open, or against an arm at chance",
    "none": "both at chance",
}
TICKS = (1, 10, 100)


@dataclass(frozen=True)
class Mark:
    """A claim (or its part for one layer), scaled so that -1 to 1 is its margin or range."""

    label: str
    value: float
    interval: tuple[float, float] | None
    n: int
    verdict: str
    is_range: bool


@dataclass(frozen=True)
class Row:
    """One ablation. `points` are of one metric; either list may be empty. `shown` are the arms drawn as lines, `which` says
    so where there are others."""

    ablation: str
    shown: list[str]
    which: str
    marks: list[Mark]
    points: list[extrapolation.Point]
    curves: list[loss.Curve]


def collect(sweep: Path) -> list[Row]:
    """What there is to show of each ablation. UsageError when there is nothing at all."""
    found = []
    for ablation in sources.read_results(sweep)["ablations"]:
        name, (shown, which) = ablation["name"], grid.readable(ablation)
        marks = [mark for claim in ablation["claims"] for mark in _marks(claim)]
        found.append(Row(name, shown, which, marks, _points(sweep, ablation), _curves(sweep, name)))
    if not any(row.marks or row.points or row.curves for row in found):
        raise UsageError(f"{sweep}: nothing has been measured yet")
    return found


def _marks(claim: Mapping[str, Any]) -> list[Mark]:
    low, high = claim.get("range") or (-(claim["margin"] or 0.0), claim["margin"] or 0.0)
    middle, half = (low + high) / 2, (high - low) / 2
    if half <= 0.0:
        return []
    parts = claim.get("parts") or [{"part": "", **claim}]
    made = []
    for part in parts:
        difference = part["difference"]
        if difference is None:
            continue
        pair = difference["interval"] and tuple((end - middle) / half for end in difference["interval"])
        label = f"{claim['id']} {part['part']}".rstrip()
        value = (difference["mean"] - middle) / half
        made.append(Mark(label, value, pair, difference["n"], part["verdict"], bool(claim.get("range"))))
    return made


def _points(sweep: Path, ablation: Mapping[str, Any]) -> list[extrapolation.Point]:
    """The score that most of the ablation's claims are about (of several the one with the largest difference), at every
    length."""
    try:
        found = extrapolation.collect(sweep, ablations=[ablation["name"]])
    except UsageError:  # nothing scored at two lengths
        return []
    claimed: Counter[str] = Counter()
    largest: dict[str, float] = {}
    for claim in ablation["claims"]:
        metric = claim["metric"].partition("@")[0]
        claimed[metric] += 1
        largest[metric] = max([largest.get(metric, 0.0), *(abs(mark.value) for mark in _marks(claim))])
    metrics = list(dict.fromkeys(p.metric for p in found))
    chosen = max(metrics, key=lambda metric: (claimed[metric], largest.get(metric, 0.0), -metrics.index(metric)))
    return [p for p in found if p.metric == chosen]


def _curves(sweep: Path, ablation: str) -> list[loss.Curve]:
    try:
        return loss.collect(sweep, ablations=[ablation])
    except UsageError:  # no run has logged a loss, or the runs lie elsewhere
        return []


def plot(found: Sequence[Row], note: str = "") -> Figure:
    """A row of three panels for each ablation."""
    heights = [max(1.0, 0.3 + LINE * len(row.marks), KEY * len(row.shown)) for row in found]
    counts = [m.n for row in found for m in row.marks] + [p.n for row in found for p in row.points]
    about = "left: differences with 95% intervals (uncorrected) in multiples of the margin that counts as no effect, or from the "
    about += (
        "middle of the claimed range in halves of its width; middle: a score against length (dotted: training length; "
    )
    about += "dashes: chance); right: training loss, band from lowest to highest seed; " * any(r.curves for r in found)
    about += grid.seeds(counts) if counts else ""
    left_out = "; ".join(row.which for row in found if row.which)
    with style.house_style():
        drawn = style.figure(grid.WIDTH, min(PAGE, HEAD + sum(heights)))
        axes = drawn.subplots(len(found), 3, squeeze=False, width_ratios=(1.35, 1, 1), height_ratios=heights)
        for (claims, scores, losses), row in zip(axes, found, strict=True):
            _claims(claims, row)
            _scores(scores, row)
            _losses(losses, row)
            claims.set_title(row.ablation, loc="left", fontsize=8)
            grid.legend(losses, row.shown)
            for panel in (claims, scores, losses):
                panel.tick_params(labelsize=6)
        axes[-1][0].set_xlabel("multiples of the margin", fontsize=7)
        axes[-1][1].set_xlabel("tokens", fontsize=7)
        axes[-1][2].set_xlabel("training tokens", fontsize=7)
        _legend(drawn, found)
        style.note(drawn, note, about, left_out)
    return drawn


def _claims(axes: Axes, row: Row) -> None:
    if not row.marks:
        _empty(axes, "no claim measured")
        return
    axes.axvspan(-1.0, 1.0, color="#e4e4e4", linewidth=0, zorder=0)
    axes.axvline(0.0, color=style.INK, linewidth=0.7, zorder=1)
    for place, mark in enumerate(row.marks):
        colour, marker, filled = LOOKS[tone(mark.verdict)]
        error = None
        if mark.interval is not None:
            error = [[mark.value - mark.interval[0]], [mark.interval[1] - mark.value]]
        axes.errorbar(
            mark.value, place, xerr=error, fmt=marker, color=colour, markersize=3.5, elinewidth=1.0, capsize=1.6,
            markerfacecolor=colour if filled else "white", zorder=3,
        )  # fmt: skip
    far = max(abs(end) for m in row.marks for end in (m.interval or (m.value, m.value)))
    axes.set_xscale("symlog", linthresh=1.0, linscale=0.6)
    shown = [tick for tick in TICKS if tick == 1 or tick < 1.5 * far]
    axes.set_xticks([s * tick for tick in shown for s in (-1, 1)] + [0])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.set_yticks(range(len(row.marks)), [m.label + " ↔" * m.is_range for m in row.marks])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(row.marks) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def _scores(axes: Axes, row: Row) -> None:
    if not row.points:
        _empty(axes, "not scored at two lengths")
        return
    metric = row.points[0].metric
    extrapolation.panel(axes, [p for p in row.points if p.arm in row.shown], row.shown, metric)
    axes.set_title(f"{metric} ({scale_of(metric).unit})", loc="left", fontsize=6.5, fontweight="normal")


def _losses(axes: Axes, row: Row) -> None:
    if not row.curves:
        _empty(axes, "no logged loss at hand")
        return
    for curve in [c for c in row.curves if c.arm in row.shown]:
        look, x = style.series(row.shown.index(curve.arm)), curve.tokens
        low, high = curve.values.min(axis=0), curve.values.max(axis=0)
        axes.fill_between(x, low, high, color=look.colour, alpha=0.2, linewidth=0)
        axes.plot(
            x, curve.values.mean(axis=0), color=look.colour, linestyle=look.line, marker=look.marker, linewidth=1.0,
            markevery=max(1, len(x) // 4), markersize=3,
        )  # fmt: skip
    style.log_ticks(axes)
    axes.xaxis.set_major_formatter(lambda value, _: large(value))
    axes.xaxis.set_major_locator(_few())
    axes.set_title("training loss (nats)", loc="left", fontsize=6.5, fontweight="normal")


def _few() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)


def _empty(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=6.5, color=style.MUTED)
    axes.set_axis_off()


def _legend(drawn: Figure, found: Sequence[Row]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    seen = {tone(mark.verdict) for row in found for mark in row.marks}
    handles: list[Any] = [
        Line2D(
            [], [], color=colour, marker=marker, markersize=4, linewidth=1.0, label=MEANS[kind],
            markerfacecolor=colour if filled else "white",
        )
        for kind, (colour, marker, filled) in LOOKS.items() if kind in seen
    ]  # fmt: skip
    if seen:
        handles.append(Patch(color="#e4e4e4", label="within the margin, or the range (↔)"))
        drawn.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=7)


def rows(found: Sequence[Row]) -> list[dict[str, Any]]:
    """Every plotted number: claims in multiples of their margin, scores in their own unit, losses by seed."""
    table: list[dict[str, Any]] = []

    def add(
        row: Row, kind: str, name: str, what: str, x: Any, value: float, pair: Any, n: int, verdict: str = ""
    ) -> None:
        low, high = pair or (None, None)
        table.append(
            {"ablation": row.ablation, "kind": kind, "name": name, "metric": what, "x": x, "value": value, "low": low,
             "high": high, "n": n, "verdict": verdict}
        )  # fmt: skip

    for row in found:
        for m in row.marks:
            add(row, "claim", m.label, "multiples of the margin", None, m.value, m.interval, m.n, m.verdict)
        for p in row.points:
            add(row, "score", p.arm, p.metric, p.length, p.mean, p.interval, p.n)
        for c in row.curves:
            ends = zip(c.tokens, c.values.mean(axis=0), c.values.min(axis=0), c.values.max(axis=0), strict=True)
            for tokens, mean, low, high in ends:
                add(row, "loss", c.arm, "loss", int(tokens), float(mean), (float(low), float(high)), len(c.seeds))
    return table


def draw(sweep: Path, directory: Path) -> dict[str, Path]:
    """Collect, draw and save the page of a sweep. Returns the paths by kind."""
    found = collect(sweep)
    counts = [m.n for row in found for m in row.marks] + [p.n for row in found for p in row.points]
    return style.save(
        plot(found, f"sweep {sweep.name}"),
        directory,
        "overview",
        rows(found),
        title=TITLE,
        runs=sources.run_labels(sources.read_results(sweep)),
        n=max(counts, default=0),
        numbers={"sweep": sweep.name},
    )


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The page of a sweep."""
    return draw(sweep, directory)


def command(sweep: Sweep = None, out: SweepOut = None, root: Root = None) -> None:
    """A sweep on one page: for each ablation its claims, a score against length, and the training loss.

    Example: mmctl plot overview smoke-bec24274
    """
    from mmctl.runs import runs_root

    found = sources.find_sweep(runs_root(root), sweep)
    sources.announce(draw(found, out or found / "figures"), sweep=found)
