"""Training loss against tokens and against training FLOPs: one row an ablation, one line an arm, a band over its
seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from mmctl.cli.options import Root, Sweep, SweepOut
from mmctl.errors import UsageError, nearest
from mmctl.evaluation.changes import changed
from mmctl.sweeps.reporting.words import large

from . import grid, sources, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Training loss against tokens and FLOPs"
METRIC = "loss"
AXES = {"tokens": "training tokens", "flops": "training FLOPs (executed, forward and backward)"}
HEADS = ("against tokens", "against FLOPs")


@dataclass(frozen=True)
class Curve:
    """An arm's loss over training. tokens, flops: (points,); values: (n seeds, points), nats a labelled token."""

    ablation: str
    arm: str
    tokens: NDArray[np.float64]
    flops: NDArray[np.float64]
    values: NDArray[np.float64]
    seeds: tuple[int, ...]
    left_out: str = ""
    """Why it is no line of the figure: which arms of its ablation are; "" if it is one."""

    def axis(self, name: str) -> NDArray[np.float64]:
        return self.tokens if name == "tokens" else self.flops


def shows(results: Mapping[str, Any]) -> Any:
    """What the figure depends on: the trained runs, and which of them are lines."""
    return [sources.trained(results), [grid.readable(ablation) for ablation in results["ablations"]]]


def collect(sweep: Path, metric: str = METRIC, ablations: Sequence[str] = ()) -> list[Curve]:
    """Curves of every arm that was trained: an arm that only changes the evaluation has its run's curve already.

    Seeds are compared at the steps that all of them logged. Raises UsageError when no run logged such a metric.
    """
    curves, known = [], set()
    for ablation in grid.ablations(sources.read_results(sweep), ablations):
        for arm in ablation["arms"]:
            if changed(arm["evaluate"]):
                continue
            logged: dict[int, dict[int, dict[str, Any]]] = {}
            for seed in arm["runs"]:
                run = sources.run_of(arm, sweep, seed)
                table = [] if run is None else run.metrics()
                known |= {name for row in table[:1] for name in row if name.partition("/")[0] == "loss"}
                own = {row["step"]: row for row in table if np.isfinite(row.get(metric, np.nan)) and "flops" in row}
                if own:
                    logged[int(seed)] = own
            steps = sorted(set.intersection(*(set(own) for own in logged.values()))) if logged else []
            if steps:
                first = next(iter(logged.values()))
                curves.append(
                    Curve(
                        ablation["name"],
                        arm["name"],
                        np.array([first[s]["tokens"] for s in steps], dtype=np.float64),
                        np.array([first[s]["flops"] for s in steps], dtype=np.float64),
                        np.array([[own[s][metric] for s in steps] for own in logged.values()]),
                        tuple(logged),
                    )
                )
    compared = [c for c in curves if sum(other.ablation == c.ablation for other in curves) > 1]
    curves = compared or curves  # an ablation of the evaluation alone has a single curve, which others have too
    for ablation in grid.ablations(sources.read_results(sweep), ablations):
        trained = [c.arm for c in curves if c.ablation == ablation["name"]]
        shown, which = grid.readable(ablation, trained)
        curves = [
            replace(c, left_out=which) if c.ablation == ablation["name"] and c.arm not in shown else c for c in curves
        ]
    if not curves:
        raise UsageError(f'--metric "{metric}": no run of {sweep.name} logged it{nearest(metric, known, "losses")}')
    return curves


def plot(curves: Sequence[Curve], metric: str = METRIC, note: str = "") -> Figure:
    """One row an ablation: loss (log) against tokens on the left, against FLOPs on the right. Of more arms than can be told
    apart those that claims compare; a note names the others."""
    names = list(dict.fromkeys(c.ablation for c in curves))
    about = f"{metric}, nats a labelled token, mean over seeds ({grid.seeds([len(c.seeds) for c in curves])}); "
    about += "band: lowest to highest seed"
    left_out = grid.left_out(curves)
    curves = [c for c in curves if not c.left_out]
    low, high = min(c.values.min() for c in curves), max(c.values.max() for c in curves)
    with style.house_style():
        drawn, axes = grid.panels(names, HEADS, note, about, *left_out)
        for row, name in enumerate(names):
            own = [c for c in curves if c.ablation == name]
            for panel, axis in zip(axes[row], AXES, strict=True):
                for index, curve in enumerate(own):
                    look, x = style.series(index), curve.axis(axis)
                    mark = max(1, len(x) // 6)
                    panel.fill_between(
                        x, curve.values.min(axis=0), curve.values.max(axis=0), color=look.colour, alpha=0.2, linewidth=0
                    )
                    panel.plot(
                        x, curve.values.mean(axis=0), color=look.colour, linestyle=look.line, marker=look.marker,
                        markevery=(index * mark // max(1, len(own)), mark), markersize=3.5, linewidth=1.1,
                    )  # fmt: skip
                style.log_ticks(panel)
                panel.set_ylim(low / 1.05, high * 1.05)
                panel.xaxis.set_major_formatter(lambda value, _: large(value))
            grid.legend(axes[row][-1], [c.arm for c in own])
        for panel, title in zip(axes[-1], AXES.values(), strict=True):
            panel.set_xlabel(title, fontsize=7.5)
    return drawn


def rows(curves: Sequence[Curve], metric: str) -> list[dict[str, Any]]:
    """Every plotted number: one row an arm, seed and logged step."""
    return [
        {
            "ablation": c.ablation, "arm": c.arm, "seed": seed, "metric": metric, "tokens": int(tokens),
            "flops": float(flops), "value": float(value),
        }
        for c in curves
        for seed, values in zip(c.seeds, c.values, strict=True)
        for tokens, flops, value in zip(c.tokens, c.flops, values, strict=True)
    ]  # fmt: skip


def draw(sweep: Path, directory: Path, metric: str = METRIC, ablations: Sequence[str] = ()) -> dict[str, Path]:
    """Collect, draw and save the figure of a sweep. Returns the paths by kind."""
    curves = collect(sweep, metric, ablations)
    return style.save(
        plot(curves, metric, f"sweep {sweep.name}"),
        directory,
        style.slug("-".join(["loss", *ablations, *([metric] if metric != METRIC else [])])),
        rows(curves, metric),
        title=TITLE,
        runs=sources.run_labels(sources.read_results(sweep)),
        n=max(len(c.seeds) for c in curves),
        numbers={"sweep": sweep.name, "metric": metric},
    )


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The figure for a sweep: the mixture's whole loss."""
    return draw(sweep, directory)


def command(
    sweep: Sweep = None,
    metric: Annotated[
        str, typer.Option("--metric", help="A logged loss: loss, or a task's, such as loss/recall.")
    ] = METRIC,
    ablation: Annotated[
        list[str] | None, typer.Option("--ablation", help="Only this ablation; repeat.", show_default=False)
    ] = None,
    out: SweepOut = None,
    root: Root = None,
) -> None:
    """Training loss against tokens and FLOPs, a band over seeds: one row an ablation, one line an arm.

    Example: mmctl plot loss --ablation transformer-masks --metric loss/recall
    """
    from mmctl.runs import runs_root

    found = sources.find_sweep(runs_root(root), sweep)
    sources.announce(draw(found, out or found / "figures", metric, ablation or ()), sweep=found)
