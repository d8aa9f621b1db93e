"""What states keep and how they grow: retention and state statistics of trained Mamba-2 models, beyond their training length.

Stuffed Mamba (arXiv 2410.07145): the retention of token i at t, alpha_{i:t} = alpha_{i+1} ... alpha_t, one curve a head, here
of the first token as t grows; and the mean and variance of the numbers of each head's state over time. A head that keeps
its first token beyond the training length, and a variance that goes on rising there, are what the paper calls a stuffed
state. Tokens are held-out sequences of the task that the model was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli.options import Root, RunsOut
from mmctl.errors import UsageError

from . import grid, sources, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mmctl.runs import RunFolder

TITLE = "Retention and state statistics"
MULTIPLE = 16
"""Times the training length that is read."""
SEQUENCES = 32
POINTS = 8
"""Positions within the training length at which a number is taken."""
SHOWN = 4
"""Runs of a sweep that are drawn: a small and a large state, trained on short and on long sequences."""
LONGEST = 18
"""Characters of a run's name beside its row."""
HIDDEN = 1e-4
"""Retention below which a curve ends: nothing is to be seen there."""


@dataclass(frozen=True)
class Curve:
    """A number of one head over time, mean over the sequences; positions in tokens."""

    run: str
    what: str
    """retention, mean or variance."""
    layer: int
    head: int
    training_length: int
    positions: tuple[int, ...]
    values: tuple[float, ...]
    sequences: int


def collect(runs: Sequence[RunFolder], labels: Sequence[str] = (), multiple: int = MULTIPLE) -> list[Curve]:
    """Curves of every head of each run. UsageError for a run of another model, or whose task has no such long sequences."""
    import torch

    from mmctl.data import build_task
    from mmctl.evaluation.scoring import examples
    from mmctl.models.mamba2 import Mamba2
    from mmctl.training.run import load_model

    found = []
    for run, label in zip(runs, labels or [_short(run) for run in runs], strict=True):
        model, config = load_model(run, "cpu")
        if not isinstance(model, Mamba2):
            raise UsageError(f'{run.label}: model "{config.model.name}" keeps no state of fixed size: expected mamba2')
        torch.set_num_threads(config.training.threads)
        trained = config.data.length
        task = build_task(config.data.tasks_in_mixture()[0], config.data)
        reason = task.unavailable(multiple * trained, "held-out")
        if reason:
            raise UsageError(f"{run.label}: {reason}")
        batch = examples(task, multiple * trained, config.evaluation.seed, SEQUENCES)[0]
        tokens = torch.from_numpy(batch.tokens)
        every = max(1, trained // POINTS)
        at = [n for n in range(every, multiple * trained + 1, every) if n > 1]
        at = [n for n in at if n <= trained or n % (POINTS // 2 * every) == 0]  # beyond, every half training length
        for layer, log_alpha in enumerate(model.log_retentions(tokens)):
            since_first = log_alpha[:, :, 1:].cumsum(-1).double().exp().mean(0)  # (H, T - 1), of the first token
            for head, kept in enumerate(since_first[:, [n - 2 for n in at]].tolist()):
                found.append(Curve(label, "retention", layer, head, trained, tuple(at), tuple(kept), len(tokens)))
        for layer, statistics in enumerate(model.state_statistics(tokens, every)):
            for what in ("mean", "variance"):
                for head, values in enumerate(statistics[what].double().mean(1).T.tolist()):
                    own = tuple(values[n // every - 1] for n in at)
                    found.append(Curve(label, what, layer, head, trained, tuple(at), own, len(tokens)))
    return found


def _short(run: RunFolder) -> str:
    """A run's name over its seed, as far as they fit beside a row."""
    name, _, seed = run.label.partition("/")
    return f"{name.rpartition('-')[0][-LONGEST:]}\n{seed}"


def plot(curves: Sequence[Curve], note: str = "") -> Figure:
    """A row a run; retention, mean and variance beside each other; a colour a layer, a line a head."""
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(c.run for c in curves))
    columns = {
        "retention": "retention of the first token",
        "mean": "mean of a state",
        "variance": "variance of a state",
    }
    layers = sorted({c.layer for c in curves})
    about = "a line a head, a colour a layer, dotted: training length; "
    about += f"mean over {curves[0].sequences} held-out sequences of one run; retention below {HIDDEN:g} is not drawn"
    with style.house_style():
        drawn, axes = grid.panels(names, list(columns.values()), note, about)
        for row, name in enumerate(names):
            for column, what in enumerate(columns):
                own = [c for c in curves if (c.run, c.what) == (name, what)]
                _panel(axes[row][column], own, what)
                if row == len(names) - 1:
                    axes[row][column].set_xlabel("tokens read", fontsize=7.5)
        looks = [style.series(layer) for layer in layers]
        lines = [
            Line2D([], [], color=k.colour, linestyle=k.line, label=f"layer {n}")
            for n, k in zip(layers, looks, strict=True)
        ]
        axes[0][-1].legend(handles=lines, loc="center left", bbox_to_anchor=(1.03, 0.5), fontsize=7, handlelength=2.6)
        for column in range(len(columns)):  # one scale a column, so that rows compare
            low = min(panels[column].get_ylim()[0] for panels in axes)
            high = max(panels[column].get_ylim()[1] for panels in axes)
            for panels in axes:
                panels[column].set_ylim(low, high)
    return drawn


def _panel(axes: Axes, curves: Sequence[Curve], what: str) -> None:
    for curve in curves:
        look = style.series(curve.layer)
        pairs = [p for p in zip(curve.positions, curve.values, strict=True) if what != "retention" or p[1] >= HIDDEN]
        if pairs:
            x, y = zip(*pairs, strict=True)
            axes.plot(x, y, color=look.colour, linestyle=look.line, linewidth=0.9)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if what != "mean":
        axes.set_yscale("log")
    for trained in {c.training_length for c in curves}:
        axes.axvline(trained, color=style.INK, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)


def rows(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Every number, those too small to be drawn included."""
    return [
        {
            "run": c.run, "what": c.what, "layer": c.layer, "head": c.head, "training_length": c.training_length,
            "position": position, "value": value, "n": c.sequences,
        }
        for c in curves
        for position, value in zip(c.positions, c.values, strict=True)
    ]  # fmt: skip


def draw(runs: Sequence[RunFolder], directory: Path, labels: Sequence[str] = (), note: str = "") -> dict[str, Path]:
    """Collect, draw and save the figure of these runs. Returns the paths by kind."""
    curves = collect(runs, labels)
    return style.save(
        plot(curves, note),
        directory,
        "forget-state",
        rows(curves),
        title=TITLE,
        runs=[run.label for run in runs],
        n=curves[0].sequences,
    )


def chosen(results: Mapping[str, Any], sweep: Path) -> list[tuple[str, RunFolder]]:
    """(Arm, run of its first finished seed) of the smallest and the largest Mamba-2 state in a sweep, each trained on its
    shortest and its longest sequences."""
    arms = {}
    for ablation in results["ablations"]:
        for arm in ablation["arms"]:
            run = sources.run_of(arm, sweep) if arm["model"] == "mamba2" else None
            if run is not None and arm["identity"] not in arms:
                arms[arm["identity"]] = (run.config().model.state_size, arm["cost"]["context"], arm["name"], run)
    ordered = sorted(arms.values(), key=lambda a: a[:3])
    sizes = sorted({size for size, *_ in ordered})
    picked = []
    for size in dict.fromkeys((sizes[0], sizes[-1])) if sizes else ():
        own = [(name, run) for one, _, name, run in ordered if one == size]
        picked += [own[0]] + ([own[-1]] if len(own) > 1 else [])
    return picked[:SHOWN]


def shows(results: Mapping[str, Any]) -> Any:
    """The figure depends on which runs there are, not on their scores."""
    return sources.trained(results)


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The figure for a sweep."""
    picked = chosen(sources.read_results(sweep), sweep)
    if not picked:
        raise UsageError(f"{sweep}: no run of mamba2 is finished yet")
    return draw([run for _, run in picked], directory, [name for name, _ in picked], f"sweep {sweep.name}, one seed")


def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs of mamba2.", show_default=False)],
    out: RunsOut = None,
    root: Root = None,
) -> None:
    """Retention curves, and mean and variance of the states over time, of trained Mamba-2 models.

    Example: mmctl plot forget-state RUN RUN
    """
    from mmctl.runs import runs_root

    found = sources.named_runs(runs_root(root), runs)
    sources.announce(draw(found, out or found[0].path / "figures"), found)
