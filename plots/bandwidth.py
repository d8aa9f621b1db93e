"""The learned bandwidth beta_t = beta_1 n^alpha + beta_0: alpha by layer, and beta against n for every head.

Memory Mosaics v2 (arXiv 2507.03285) reports learned alphas of 0.2 to 0.4; they start at 1/3. n is the number of pairs a
read sees. Beyond the largest n of training (dotted) beta is extrapolated: that is what an adaptive bandwidth is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from mmctl.cli.options import Root, Sweep, SweepOut
from mmctl.errors import UsageError, nearest

from . import grid, sources, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mmctl.runs import RunFolder

TITLE = "Learned bandwidth"
PUBLISHED = (0.2, 0.4)
"""Learned alpha in Memory Mosaics v2 (arXiv 2507.03285)."""
FURTHER = 8
"""beta is drawn up to this many times the largest n of training."""
KINDS = ("beta_0", "beta_1", "alpha")


@dataclass(frozen=True)
class Memory:
    """One memory's learned bandwidth over the runs of an arm: tables of (seeds, layers, heads)."""

    name: str
    tables: dict[str, NDArray[np.float64]]
    before: dict[str, float]
    """The same before training; all heads and layers start alike."""
    largest_n: int
    """Pairs the last read of a training sequence sees."""

    def beta(self, n: NDArray[np.float64]) -> NDArray[np.float64]:
        """(seeds, layers, heads, len(n))."""
        zero, one, alpha = (self.tables[k][..., None] for k in KINDS)
        return np.asarray(one * n**alpha + zero)

    def beta_before(self, n: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(self.before["beta_1"] * n ** self.before["alpha"] + self.before["beta_0"])


@dataclass(frozen=True)
class Learned:
    arm: str
    runs: list[str]
    memories: list[Memory]


def shows(results: Mapping[str, Any]) -> Any:
    """What the figure depends on: the trained runs, not what is claimed of them."""
    return sources.trained(results)


def collect(sweep: Path, arm: str | None = None) -> Learned:
    """The bandwidths that the runs of `arm` learned (default: the sweep's first arm with an alpha that is learned).

    Raises UsageError where no such arm has a finished run.
    """
    known: dict[str, Any] = {}
    for ablation in sources.read_results(sweep)["ablations"]:
        for one in ablation["arms"]:
            if any(m.startswith("diagnostics:bandwidth/alpha/") and s["mean"] for m, s in one["scores"].items()):
                known.setdefault(one["name"], one)
    if not known:
        raise UsageError(f"{sweep}: no finished run of it learns an alpha (model.bandwidth=adaptive)")
    if arm is not None and arm not in known:
        raise UsageError(f'--arm "{arm}": no arm of {sweep.name} that learns an alpha{nearest(arm, known, "arms")}')
    chosen = known[arm] if arm else next(iter(known.values()))
    found = [sources.run_of(chosen, sweep, seed) for seed in chosen["runs"]]
    runs = [run for run in found if run is not None]
    if not runs:
        raise UsageError(f"{sweep}: no run of arm {chosen['name']} is finished")
    return Learned(chosen["label"], [run.label for run in runs], _memories(runs))


def _memories(runs: Sequence[RunFolder]) -> list[Memory]:
    from mmctl.sweeps.metrics import start_values
    from mmctl.training.run import load_model

    each = [_tables(load_model(run)[0]) for run in runs]
    config = runs[0].config()
    before = start_values(config)
    reach: Any = config.model
    memories = []
    for name in each[0]:
        tables = {kind: np.stack([run[name][i] for run in each]) for i, kind in enumerate(KINDS)}
        start = {kind: before[f"diagnostics:bandwidth/{kind}/{name}"] for kind in KINDS}
        most = config.data.length - reach.inference_delay if name == "long-term" else reach.window
        memories.append(Memory(name, tables, start, int(most)))
    return memories


def _tables(model: Any) -> dict[str, NDArray[np.float64]]:
    """{memory: (3, layers, heads)}: beta_0, beta_1, alpha as the model uses them."""
    import torch

    with torch.no_grad():
        layers = [torch.stack(block.memories.bandwidth()) for block in model.blocks]  # each (3, memories, heads)
    names = model.blocks[0].memories.names
    table = torch.stack(layers).double().numpy()  # (layers, 3, memories, heads)
    return {name: table[:, :, i].swapaxes(0, 1) for i, name in enumerate(names)}


def plot(learned: Learned, note: str = "") -> Figure:
    """One column a memory: alpha by layer above, beta against n below (one line a head, one colour a layer)."""
    seeds = len(learned.runs)
    about = f"{learned.arm}: {seeds} seed{'s' * (seeds != 1)}; dots and thin lines: one head of one seed; "
    about += "above: mean over heads, 95% interval over seeds; beta = beta_1 n^alpha + beta_0"
    with style.house_style():
        drawn = style.figure(grid.WIDTH, 5.2)
        axes = drawn.subplots(2, len(learned.memories), squeeze=False, sharey="row")
        for column, memory in enumerate(learned.memories):
            axes[0][column].set_title(f"{memory.name} memory")
            _alphas(axes[0][column], memory)
            _betas(axes[1][column], memory)
        highest = max(PUBLISHED[1], *(float(m.tables["alpha"].max()) for m in learned.memories))
        axes[0][0].set_ylim(-0.03, 1.08 * highest)  # alpha is never negative; an interval over seeds may be
        axes[0][0].set_ylabel("learned alpha")
        axes[1][0].set_ylabel("beta (log)")
        handles = [*axes[0][0].get_legend_handles_labels()[0], *axes[1][0].get_legend_handles_labels()[0]]
        drawn.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=7.5)
        style.note(drawn, note, about)
    return drawn


def _alphas(axes: Axes, memory: Memory) -> None:
    from mmctl.sweeps.statistics import summarise

    alpha = memory.tables["alpha"]
    seeds, layers, heads = alpha.shape
    axes.axhspan(*PUBLISHED, color="#e4e4e4", linewidth=0, zorder=0, label="published range")
    axes.axhline(memory.before["alpha"], color=style.INK, linewidth=0.9, linestyle=(0, (4, 2)), label="before training")
    for layer in range(layers):
        look = style.series(layer)
        spread = np.linspace(-0.22, 0.22, seeds * heads)
        axes.plot(layer + spread, alpha[:, layer].ravel(), ".", color=look.colour, markersize=3.5, alpha=0.6)
        summary = summarise([float(v) for v in alpha[:, layer].mean(axis=1)])
        assert summary is not None
        low, high = summary.interval or (summary.mean, summary.mean)
        axes.errorbar(
            layer, summary.mean, [[summary.mean - low], [high - summary.mean]], fmt=look.marker, color=look.colour,
            markeredgecolor=style.INK, markeredgewidth=0.6, capsize=2.5, elinewidth=1.2, zorder=3,
        )  # fmt: skip
    axes.set_xticks(range(layers))
    axes.set_xlim(-0.5, layers - 0.5)
    axes.set_xlabel("layer")
    axes.grid(axis="x", visible=False)


def _betas(axes: Axes, memory: Memory) -> None:
    n = _counts(memory)
    curves = memory.beta(n)
    for layer in range(curves.shape[1]):
        look = style.series(layer)
        for number, curve in enumerate(curves[:, layer].reshape(-1, len(n))):
            label = f"layer {layer}" if number == 0 else None
            axes.plot(n, curve, color=look.colour, linestyle=look.line, linewidth=0.7, alpha=0.75, label=label)
    axes.plot(n, memory.beta_before(n), color=style.INK, linewidth=1.1, linestyle=(0, (4, 2)))
    axes.axvline(
        memory.largest_n, color=style.INK, linewidth=0.9, linestyle=(0, (1, 1.5)), label="largest n in training"
    )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    style.log_ticks(axes)
    axes.set_xlabel("n, pairs the read sees (log)")


def _counts(memory: Memory) -> NDArray[np.float64]:
    further = 1 if memory.name == "short-term" else FURTHER
    return np.unique(np.geomspace(1, further * memory.largest_n, 64).round())


def rows(learned: Learned) -> list[dict[str, Any]]:
    """Every learned number: one row a memory, seed (as its run's name), layer and head; the curves follow from them."""
    return [
        {
            "run": run, "memory": m.name, "layer": layer, "head": head,
            **{k: float(m.tables[k][seed, layer, head]) for k in KINDS},
            **{f"{k}_before": m.before[k] for k in KINDS}, "largest_n_in_training": m.largest_n,
        }
        for m in learned.memories
        for seed, run in enumerate(learned.runs)
        for layer in range(m.tables["alpha"].shape[1])
        for head in range(m.tables["alpha"].shape[2])
    ]  # fmt: skip


def draw(sweep: Path, directory: Path, arm: str | None = None) -> dict[str, Path]:
    """Collect, draw and save the figure of a sweep. Returns the paths by kind."""
    learned = collect(sweep, arm)
    return style.save(
        plot(learned, f"sweep {sweep.name}"),
        directory,
        style.slug(f"bandwidth-{arm}" if arm else "bandwidth"),
        rows(learned),
        title=TITLE,
        runs=learned.runs,
        n=len(learned.runs),
        numbers={"sweep": sweep.name, "arm": learned.arm},
    )


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The figure for a sweep: its first arm with a learned alpha."""
    return draw(sweep, directory)


def command(
    sweep: Sweep = None,
    arm: Annotated[
        str | None,
        typer.Option("--arm", help="Whose bandwidth (default: the first arm that learns one).", show_default=False),
    ] = None,
    out: SweepOut = None,
    root: Root = None,
) -> None:
    """The learned bandwidth: alpha by layer beside the published range, and beta against n for every head.

    Example: mmctl plot bandwidth --arm gated
    """
    from mmctl.runs import runs_root

    found = sources.find_sweep(runs_root(root), sweep)
    sources.announce(draw(found, out or found / "figures", arm), sweep=found)
