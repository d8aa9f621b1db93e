"""`mmctl bench runner`: what the runner costs beyond training: a large dry run, a sweep of trivial runs, logging."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from mmctl.errors import MmctlError

TARGETS = {"dry_run_seconds": 3.0, "overhead_seconds": 0.5, "logging_percent": 2.0}
"""Shown beside what is measured; nothing fails for missing one."""

TRIVIAL = (
    "training.steps=2",
    "training.warmup=0",
    "evaluation.suites=[]",
    "data.mixture={recall: 1, icl: 1, facts: 1}",
)
"""Two steps and no evaluation: nearly all of such a run is the runner's."""


def command(
    cells: Annotated[int, typer.Option("--cells", min=8, help="Cells of the dry run.")] = 1000,
    trivial: Annotated[int, typer.Option("--trivial", min=2, help="Trivial runs of the sweep.")] = 40,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Workers of the sweep.")] = 1,
    steps: Annotated[int, typer.Option("--steps", min=20, help="Training steps that logging is timed over.")] = 60,
    mlflow: Annotated[bool, typer.Option("--mlflow/--no-mlflow", help="Mirror the trivial runs to MLflow.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object on stdout.")] = False,
) -> None:
    """Three numbers, in fresh temporary folders: seconds of `mmctl ablate --dry-run` after imports; seconds a run of a
    sweep beyond the training itself (workers' start included, shared by the runs); logging in percent of a training
    step.
    """
    with tempfile.TemporaryDirectory(prefix="mmctl-bench-") as place:
        folder = Path(place)
        print("dry run ...", file=sys.stderr, flush=True)
        result = dry_run(cells, folder)
        print(f"{trivial} trivial runs ...", file=sys.stderr, flush=True)
        result |= overhead(trivial, jobs, mlflow, folder)
        print("logging ...", file=sys.stderr, flush=True)
        result |= logging(steps, folder)
    if as_json:
        print(json.dumps({**result, "targets": TARGETS}, indent=1))
        return
    print(
        f"dry run of {result['cells']} cells: {result['dry_run_seconds']:.2f} s after imports, {result['dry_run_cpu_seconds']:.2f} s of "
        f"CPU (target {TARGETS['dry_run_seconds']:g})\n"
        f"runner, a run: {result['overhead_seconds']:.3f} s beyond {result['training_seconds'] / trivial:.3f} s of training "
        f"(target {TARGETS['overhead_seconds']:g}; {trivial} runs, {jobs} at once, MLflow {'on' if mlflow else 'off'}, "
        f"{result['workers_ready_seconds']:.1f} s until the first worker ran)\n"
        f"logging: {result['logging_percent']:.2f}% of a step of {result['step_ms']:.0f} ms "
        f"(target {TARGETS['logging_percent']:g}; a row every {result['log_every']} steps)"
    )


def dry_run(cells: int, folder: Path) -> dict[str, Any]:
    """The whole of `mmctl ablate MATRIX --dry-run` but imports: reading, composing and checking every cell, the
    table."""
    from mmctl.sweeps import matrix, plan, profiles, session
    from mmctl.training.run import pick_device

    pick_device("auto")  # torch is loaded
    first = _matrix(folder / "warm.yaml", "warm", 8)
    large = _matrix(folder / "large.yaml", "large", cells)
    with contextlib.redirect_stdout(io.StringIO()):
        # What is imported on first use is imported now; the corpus stays unread.
        warm = plan.make_plan(matrix.find([str(first)]), profiles.profile("smoke"), TRIVIAL, [0])
        session.dry_run(warm, folder / "none", session.Where(), as_json=False)
        began, worked = time.perf_counter(), time.process_time()
        made = plan.make_plan(matrix.find([str(large)]), profiles.profile("smoke"), ["training.threads=1"], [0])
        session.dry_run(made, folder / "none", session.Where(), as_json=False)
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    return {"cells": len(made.cells), "dry_run_seconds": seconds, "dry_run_cpu_seconds": cpu}


def overhead(trivial: int, jobs: int, mlflow: bool, folder: Path) -> dict[str, Any]:
    """Wall time of a sweep of `trivial` runs, less the seconds its runs trained (divided by `jobs`), a run."""
    from mmctl.runs import RunFolder
    from mmctl.sweeps import manifest, matrix, plan, profiles, tracking
    from mmctl.sweeps.execute import Sweep
    from mmctl.sweeps.launchers import Event, Resources, launcher
    from mmctl.sweeps.results import versions

    root = folder / "runs"
    path = _matrix(folder / "trivial.yaml", "trivial", 2)
    seeds = range((trivial + 1) // 2)
    words = [*TRIVIAL, f"operation.mlflow={str(mlflow).lower()}"]
    made = plan.make_plan(matrix.find([str(path)]), profiles.profile("smoke"), words, list(seeds))
    began = time.perf_counter()
    first: list[float] = []

    class Quiet:
        """A board that only notes when the first worker said something."""

        def begin(self, tasks: Any, done: int) -> None: ...
        def event(self, event: Event) -> None:
            first.append(time.perf_counter() - began)

        def note(self, text: str) -> None: ...
        def tick(self) -> None: ...
        def end(self) -> None: ...

    sweep = manifest.folder(made, root)
    with launcher("local", Resources(jobs), sweep) as place:
        manifest.write(made, root, versions())
        with tracking.start(made, root, sweep, False) as tracked:
            outcome = Sweep(made, root, place, Quiet(), parent_run_id=tracked.parent_run_id).run()
            tracked.finish("finished" if not outcome.failures else "failed", [])
    wall = time.perf_counter() - began
    if outcome.failures:
        raise MmctlError(f"a trivial run failed: {outcome.failures[0]['reason']}")
    runs = list(RunFolder.all(root))
    training = sum(float(run.result()["seconds"]) for run in runs)
    return {
        "runs": len(runs),
        "jobs": jobs,
        "mlflow": mlflow,
        "sweep_seconds": wall,
        "training_seconds": training,
        "overhead_seconds": (wall - training / jobs) / len(runs),
        "workers_ready_seconds": first[0] if first else wall,
    }


def logging(steps: int, folder: Path) -> dict[str, Any]:
    """Time spent in a run's own hooks (metrics, heartbeat, progress line) over that of the steps they stand between."""
    import torch

    from mmctl import models
    from mmctl.config import load
    from mmctl.runs import RunFolder
    from mmctl.training import loop
    from mmctl.training.progress import Progress

    config = load("smoke", [f"training.steps={steps}", "training.warmup=0", f"operation.checkpoint_every={10 * steps}"])
    run = RunFolder.create(folder / "logging", config)
    spent = [0.0]

    def timed(work: Any) -> Any:
        def call(*arguments: Any) -> None:
            began = time.perf_counter()
            work(*arguments)
            spent[0] += time.perf_counter() - began

        return call

    def metrics(step: int, values: dict[str, float]) -> None:
        run.append_metrics(step, values)
        run.heartbeat(step)

    def listener(progress: Progress) -> None:
        progress.line()

    torch.set_num_threads(config.training.threads)
    hooks = loop.Hooks(metrics=timed(metrics), listener=timed(listener), run=run.label)
    outcome = loop.train(models.build(config), config, torch.device("cpu"), hooks)
    seconds = outcome["seconds"] - spent[0]
    return {
        "logging_percent": 100 * spent[0] / seconds,
        "step_ms": 1e3 * seconds / steps,
        "log_every": config.operation.log_every,
    }


def _matrix(path: Path, name: str, cells: int) -> Path:
    """A product of learning rates, weight decays and clips with at least `cells` cells, as a user would write it."""
    if cells <= 2:
        axes = {"training.learning_rate": [0.001, 0.002]}
    else:
        side = next(n for n in range(2, cells + 1) if n**3 >= cells)
        rates, decays = [round(1e-4 * (i + 1), 6) for i in range(side)], [round(0.01 * (i + 1), 4) for i in range(side)]
        clips = [round(0.5 + 0.1 * i, 3) for i in range(-(-cells // side**2))]
        axes = {"training.learning_rate": rates, "training.weight_decay": decays, "training.clip": clips}
        axes = {key: values for key, values in axes.items() if len(values) > 1}
    lines = [f"name: {name}", "question: q", "baseline: {set: {model.name: mosaic-v2}}", "combine: product", "axes:"]
    path.write_text("\n".join([*lines, *(f"  {key}: {values}" for key, values in axes.items())]) + "\n")
    return path
