"""Heat map of depth against length: where in the context does what is asked for still get found?

From the evaluations of runs that score by depth: RULER's tasks, passkey, docs_qa. Depth 0 is the beginning of the
context, in fifths; one panel a run and task.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli.options import Root, RunsOut
from mmctl.data.answers import DEPTHS
from mmctl.errors import UsageError, nearest
from mmctl.evaluation.changes import changed

from . import sources, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mmctl.runs import RunFolder

TITLE = "Accuracy by depth and length"
SCORE = re.compile(r"(?P<task>[^/]+)/accuracy-depth(?P<depth>\d)@(?P<length>\d+)(?P<times>x?)")
COLUMNS = 4
"""Panels side by side."""


@dataclass(frozen=True)
class Cell:
    """Accuracy of one run and task at one length and depth; n examples, 95% interval over them."""

    run: str
    task: str
    length: int
    depth: int
    value: float
    interval: tuple[float, float] | None
    n: int


def collect(runs: Sequence[RunFolder], tasks: Sequence[str] = ()) -> list[Cell]:
    """Every cell of the runs' evaluations. UsageError when there is none, or none of a task asked for."""
    found: dict[tuple[str, str, int, int], Cell] = {}
    for run in runs:
        for evaluation in run.evaluations().values():
            if changed(evaluation.get("changes")):
                continue
            training = evaluation["settings"].get("training_length", 1)
            for name, score in evaluation["scores"].items():
                if match := SCORE.fullmatch(name):
                    length = int(match["length"]) * (training if match["times"] else 1)
                    key = (run.label, match["task"], length, int(match["depth"]))
                    interval = score["interval"] and (score["interval"][0], score["interval"][1])
                    if (
                        key not in found or score["n"] > found[key].n
                    ):  # of several evaluations, the one with most examples
                        found[key] = Cell(*key, score["value"], interval, score["n"])
    if not found:
        raise UsageError(
            f"{', '.join(run.label for run in runs)}: no scores by depth (suite ruler, task passkey); "
            + sources.to_score(runs[0], "passkey")
        )
    known = sorted({cell.task for cell in found.values()})
    for task in tasks:
        if task not in known:
            raise UsageError(f'--task "{task}": no run has scores of it by depth{nearest(task, known, "tasks")}')
    return [cell for cell in found.values() if not tasks or cell.task in tasks]


def plot(cells: Sequence[Cell]) -> Figure:
    """One panel a run and task; the number in each field is its accuracy in percent, an empty field was not
    measured."""
    panels = list(dict.fromkeys((cell.run, cell.task) for cell in cells))
    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    with style.house_style():
        drawn = style.figure(max(3.4, 1.9 * columns + 0.6), 1.9 * lines + 0.9)
        axes = drawn.subplots(lines, columns, squeeze=False)
        image = None
        for place, (run, task) in enumerate(panels):
            own = {(c.length, c.depth): c for c in cells if (c.run, c.task) == (run, task)}
            lengths = sorted({length for length, _ in own})
            table = [[own[n, d].value if (n, d) in own else float("nan") for n in lengths] for d in range(DEPTHS)]
            panel = axes[place // columns][place % columns]
            image = panel.imshow(table, vmin=0, vmax=1, cmap="cividis", aspect="auto")
            panel.grid(visible=False)
            panel.set_title(f"{task}\n{run}" if len({r for r, _ in panels}) > 1 else task, fontsize=7.5)
            panel.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths], fontsize=6.5)
            panel.set_yticks(range(DEPTHS), ["start", "", "middle", "", "end"], fontsize=6.5)
            for column, length in enumerate(lengths):
                for depth in range(DEPTHS):
                    if (length, depth) in own:
                        value = own[length, depth].value
                        panel.text(
                            column, depth, f"{100 * value:.0f}", ha="center", va="center", fontsize=6.5,
                            color="white" if value < 0.5 else style.INK,
                        )  # fmt: skip
        for place in range(len(panels), lines * columns):
            axes[place // columns][place % columns].set_axis_off()
        for panel in axes[-1]:
            panel.set_xlabel("tokens", fontsize=7.5)
        assert image is not None
        drawn.colorbar(image, ax=axes, shrink=0.8, label="accuracy", ticks=[0, 0.5, 1])
        fewest, most = min(c.n for c in cells), max(c.n for c in cells)
        style.note(
            drawn,
            f"percent right by where the answer stands; n = {fewest} to {most} examples a field; 95% intervals in the CSV",
        )
    return drawn


def rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Every plotted number."""
    return [
        {
            "run": c.run, "task": c.task, "length": c.length, "depth": c.depth, "accuracy": c.value,
            "low": c.interval and c.interval[0], "high": c.interval and c.interval[1], "n": c.n,
        }
        for c in cells
    ]  # fmt: skip


def draw(runs: Sequence[RunFolder], directory: Path, tasks: Sequence[str] = ()) -> dict[str, Path]:
    """Collect, draw and save the figure of these runs. Returns the paths by kind."""
    cells = collect(runs, tasks)
    return style.save(
        plot(cells),
        directory,
        style.slug("-".join(["depth", *tasks])),
        rows(cells),
        title=TITLE,
        runs=[run.label for run in runs],
        n=max(c.n for c in cells),
    )


def draw_sweep(sweep: Path, directory: Path) -> dict[str, Path]:
    """The figure of one run of each model in a sweep."""
    return draw(sources.baseline_runs(sweep), directory)


def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs evaluated by depth.", show_default=False)],
    task: Annotated[
        list[str] | None, typer.Option("--task", help="Only this task; repeat.", show_default=False)
    ] = None,
    out: RunsOut = None,
    root: Root = None,
) -> None:
    """Depth against length as a heat map, from evaluations by depth (RULER, passkey, docs_qa).

    Example: mmctl plot depth RUN RUN --task passkey
    """
    from mmctl.runs import runs_root

    found = sources.named_runs(runs_root(root), runs)
    sources.announce(draw(found, out or found[0].path / "figures", task or ()), found)
