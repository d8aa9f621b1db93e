"""Forest plot: every claim's paired difference with its 95% interval, the published difference beside it.

Differences in one unit share a panel: accuracies in percentage points, losses in nats. A published effect is drawn
where it can be put on our metric's scale; it is another model on another task, so that sides and order of magnitude are
what can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli.options import Root, Sweep, SweepOut
from mmctl.errors import UsageError
from mmctl.sweeps import verdicts
from mmctl.sweeps.units import scale_of

from . import grid, sources, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Paired differences beside the published ones"
ROW = 0.26
"""Inches."""
LINEAR, WIDE = 5.0, 6.0
"""Points within which an axis is linear; one that reaches WIDE times as far is logarithmic beyond."""
PUBLISHED = "published (other model and task)"
TICKS = (0, 2, 5, 20, 100)
SETTLED = (
    verdicts.REPRODUCED, verdicts.SUPPORTED, verdicts.REPRODUCED + verdicts.AGAINST_CHANCE,
    verdicts.SUPPORTED + verdicts.AGAINST_CHANCE, verdicts.OPPOSITE, verdicts.NO_EFFECT, verdicts.POSITIVE, verdicts.NEGATIVE
)  # fmt: skip
"""Verdicts of a filled mark: what the interval settles."""


@dataclass(frozen=True)
class Effect:
    """A claim's mean difference, treatment minus control, in the metric's own unit; `published` on the same scale."""

    ablation: str
    claim: str
    metric: str
    arms: str
    mean: float
    interval: tuple[float, float] | None
    n: int
    margin: float | None
    published: float | None
    verdict: str
    expected: str
    at_chance: bool

    @property
    def unit(self) -> str:
        return scale_of(self.metric).of_difference


def shows(results: Mapping[str, Any]) -> Any:
    """What the figure depends on: the claims as judged."""
    return [[a["name"], a["claims"]] for a in results["ablations"]]


def collect(sweep: Path, ablations: Sequence[str] = ()) -> list[Effect]:
    """Every claim of a difference that has been measured. UsageError when there is none."""
    found = []
    for ablation in grid.ablations(sources.read_results(sweep), ablations):
        for claim in ablation["claims"]:
            difference = claim["difference"]
            if claim["control"] is None or difference is None:
                continue
            pair = difference["interval"]
            found.append(
                Effect(
                    ablation["name"],
                    claim["id"],
                    claim["metric"],
                    f"{claim['treatment']} − {claim['control']}",
                    difference["mean"],
                    None if pair is None else (pair[0], pair[1]),
                    difference["n"],
                    claim["margin"],
                    claim["published_effect"],
                    claim["verdict"],
                    claim["expected"],
                    len(claim["at_chance"]) == 2,
                )
            )
    if not found:
        raise UsageError(f"{sweep}: no claim of a difference has been measured")
    return found


def left_out(sweep: Path, ablations: Sequence[str] = ()) -> str:
    """How many claims have no row in the figure, why, and where they are read; empty where all have one."""
    claims = [c for ablation in grid.ablations(sources.read_results(sweep), ablations) for c in ablation["claims"]]
    of_range = sum(claim["control"] is None for claim in claims)
    unmeasured = sum(claim["control"] is not None and claim["difference"] is None for claim in claims)
    parts = [
        *([f"{of_range} of one arm's value or range, not of a difference"] if of_range else []),
        *([f"{unmeasured} not measured"] if unmeasured else []),
    ]
    if not parts:
        return ""
    return f"{of_range + unmeasured} of {len(claims)} claims not drawn ({'; '.join(parts)}): the report has them"


def plot(found: Sequence[Effect], *notes: str) -> Figure:
    """A panel a unit, a row a claim: ours with its interval, the margin as a grey bar, the published effect hollow."""
    units = list(dict.fromkeys(e.unit for e in found))
    groups = [[e for e in found if e.unit == unit] for unit in units]
    about = f"mean over seeds ({grid.seeds([e.n for e in found])}) with its 95% interval, uncorrected; "
    about += "filled: significant after Holm's correction, or settled against the margin"
    with style.house_style():
        drawn = style.figure(grid.WIDTH, 1.1 + sum(0.55 + ROW * len(g) for g in groups))
        axes = drawn.subplots(len(groups), 1, squeeze=False, height_ratios=[1.5 + len(g) for g in groups])[:, 0]
        for panel, unit, group in zip(axes, units, groups, strict=True):
            _panel(panel, group)
            stretched = f", logarithmic beyond ±{LINEAR:g}" if panel.get_xscale() == "symlog" else ""
            panel.set_xlabel(f"difference, treatment − control ({unit or 'no unit'}{stretched})", fontsize=7.5)
        _legend(drawn, published=any(e.published is not None for e in found))
        style.note(drawn, *notes, about)
    return drawn


def _panel(axes: Axes, group: Sequence[Effect]) -> None:
    axes.axvline(0.0, color=style.INK, linewidth=0.8, zorder=1)
    for row, effect in enumerate(group):
        factor = scale_of(effect.metric).factor
        if effect.margin is not None:
            axes.barh(
                row, 2 * factor * effect.margin, left=-factor * effect.margin, height=0.62, color="#e4e4e4", zorder=0
            )
        error = None
        if effect.interval is not None:
            error = [[factor * (effect.mean - effect.interval[0])], [factor * (effect.interval[1] - effect.mean)]]
        settled = effect.verdict in SETTLED
        colour = style.MUTED if effect.at_chance else style.COLOURS[0]
        axes.errorbar(
            factor * effect.mean, row, xerr=error, fmt="o", color=colour, markersize=4.5, elinewidth=1.2, capsize=2.2,
            markerfacecolor=colour if settled else "white", zorder=3,
        )  # fmt: skip
        if effect.published is not None:
            axes.plot(
                factor * effect.published, row, "D", color="white", markeredgecolor=style.COLOURS[4], markersize=5,
                markeredgewidth=1.2, zorder=4,
            )  # fmt: skip
        axes.annotate(
            effect.verdict, (1.01, row), xycoords=("axes fraction", "data"), fontsize=6.5, va="center",
            color=style.INK, annotation_clip=False,
        )  # fmt: skip
    ends = [abs(scale_of(e.metric).factor * end) for e in group for end in (e.interval or (e.mean, e.mean))]
    if max(ends) > WIDE * LINEAR:
        axes.set_xscale("symlog", linthresh=LINEAR, linscale=0.9)
        axes.set_xticks(sorted({s * v for v in TICKS if v < 1.6 * max(ends) for s in (-1, 1)}), minor=False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
    labels = [f"{e.ablation}/{e.claim}: {e.arms}" for e in group]
    axes.set_yticks(range(len(group)), labels, fontsize=6.5)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(group) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def _legend(drawn: Figure, *, published: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    blue = style.COLOURS[0]
    handles = [
        Line2D([], [], color=blue, marker="o", markersize=4.5, linewidth=1.2, label="ours, settled"),
        Line2D([], [], color=blue, marker="o", markersize=4.5, linewidth=1.2, markerfacecolor="white", label="ours, open"),
        Line2D(
            [], [], color="white", marker="D", markersize=5, linestyle="none", markeredgecolor=style.COLOURS[4],
            markeredgewidth=1.2, label=PUBLISHED,
        ),
        Patch(color="#e4e4e4", label="counts as no effect"),
    ]  # fmt: skip
    shown = handles if published else [handle for handle in handles if handle.get_label() != PUBLISHED]
    drawn.legend(handles=shown, loc="outside lower center", ncols=4, fontsize=7.5)


def rows(found: Sequence[Effect]) -> list[dict[str, Any]]:
    """Every plotted number, in the metric's own unit."""
    return [
        {
            "ablation": e.ablation, "claim": e.claim, "metric": e.metric, "arms": e.arms, "mean": e.mean,
            "low": e.interval and e.interval[0], "high": e.interval and e.interval[1], "n": e.n, "margin": e.margin,
            "published": e.published, "expected": e.expected, "verdict": e.verdict, "both_at_chance": e.at_chance,
        }
        for e in found
    ]  # fmt: skip


def draw(sweep: Path, directory: Path, ablations: Sequence[str] = ()) -> dict[str, Path]:
    """Collect, draw and save the figure of a sweep. Returns the paths by kind."""
    found = collect(sweep, ablations)
    return style.save(
        plot(found, f"sweep {sweep.name}", left_out(sweep, ablations)),
        directory,
        style.slug("-".join(["effects", *ablations])),
        rows(found),
        title=TITLE,
        runs=sources.run_labels(sources.read_results(sweep)),
        n=max(e.n for e in found),
        numbers={"sweep": sweep.name},
    )


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The figure for a sweep: all its claims of a difference."""
    return draw(sweep, directory)


def command(
    sweep: Sweep = None,
    ablation: Annotated[
        list[str] | None, typer.Option("--ablation", help="Only this ablation; repeat.", show_default=False)
    ] = None,
    out: SweepOut = None,
    root: Root = None,
) -> None:
    """Every claim's paired difference with its 95% interval, the published difference beside it (a forest plot).

    Example: mmctl plot effects --ablation transformer-masks
    """
    from mmctl.runs import runs_root

    found = sources.find_sweep(runs_root(root), sweep)
    sources.announce(draw(found, out or found / "figures", ablation or ()), sweep=found)
