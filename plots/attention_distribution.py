"""Where the last query looks: attention weight on every earlier position, per layer and memory ("flat, then a peak").

Memory Mosaics (arXiv 2405.06394), the attention-score figure: the weight of the *last* query on every earlier position,
averaged over sequences in evaluation mode, one thin curve per head and their mean, on a log axis, at T = 512. A
transformer with positions depends on them everywhere; a mosaic's curve is flat far from the end and peaks near it.
Memory Mosaics v2 (arXiv 2507.03285) promises the same split into its long- and short-term memories.

Two numbers say the same without eyes, flatness and peak mass: see mmctl/evaluation/attention.py, which measures them.
Runs of one configuration are drawn as one: their mean, with a band of its 95% interval over seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli.options import Root
from mmctl.errors import UsageError
from mmctl.evaluation.suites import ATTENTION

from . import sources, style
from .attention_panels import plot
from .attention_weights import Distribution, Group, collect, grouped, rows, summary

__all__ = ["Distribution", "Group", "collect", "command", "draw", "draw_sweep", "grouped", "plot", "rows", "summary"]

if TYPE_CHECKING:
    from mmctl.runs import RunFolder

TITLE = "Attention of the last query on every earlier position"


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
    """What the figure depends on: the trained runs, and which of them it is about."""
    about = [[arm["identity"], arm["label"]] for arm in _about_attention(results)]
    return [*sources.trained(results), *([about] if about else [])]


def draw_sweep(sweep: Path, directory: Path, **options: Any) -> dict[str, Path]:
    """The figure for a sweep: all seeds of every arm of the ablations that make claims about attention; where there are
    none, of each model as its first arm trained it."""
    arms, names = _about_attention(sources.read_results(sweep)), {}
    if arms:
        names = {arm["identity"]: arm["label"] for arm in arms}
    runs = [run for arm in arms or sources.baseline_arms(sweep) for run in sources.runs_of(arm, sweep)]
    whole = [run for run in runs if run.has_checkpoint(None)]
    for gone in [run.label for run in runs if run not in whole] if whole else []:
        print(f"mmctl: attention-distribution: {gone} has no checkpoint left and is left out", file=sys.stderr)
    if not whole:
        raise UsageError(f"{sweep}: {'no run of it has a checkpoint left' if runs else 'no run of it is finished yet'}")
    return draw(whole, directory, names=names, **options)


def _about_attention(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Arms, each trained configuration once, of the ablations with claims about where the last query looks."""
    found: dict[str, dict[str, Any]] = {}
    for ablation in results["ablations"]:
        if any(claim["metric"].startswith(f"{ATTENTION}/") for claim in ablation["claims"]):
            for arm in ablation["arms"]:
                found.setdefault(arm["identity"], arm)
    return list(found.values())


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Runs, side by side; seeds of one configuration as one (default: each model in the newest sweep).",
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
            "--near",
            min=1,
            help="Last positions that count as the peak (default: as scored, or h).",
            show_default=False,
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
    from mmctl.runs import runs_root

    where = runs_root(root)
    options = {"length": length, "sequences": sequences, "task": task, "near": near, "progress": sources.progress}
    if runs:
        chosen = sources.named_runs(where, runs)
        sources.announce(draw(chosen, out or chosen[0].path / "figures", **options), chosen)
    else:
        sweep = sources.find_sweep(where, None)
        sources.announce(draw_sweep(sweep, out or sweep / "figures", **options), sweep=sweep)
