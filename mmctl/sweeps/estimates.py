"""What a plan will cost: a row a run with its state, and time and disk estimated from finished runs where there are any."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmctl.config import Config
from mmctl.sweeps import evaluating, results
from mmctl.sweeps.execute import needs_evaluation
from mmctl.sweeps.matrix import Arm
from mmctl.sweeps.plan import Plan, Run

FLOPS_PER_SECOND = 1.5e10
"""Of one CPU thread, where no finished run says better: the order of magnitude of small models on current CPUs."""
SAMPLED = 40
"""Finished runs the speed is taken from."""
BYTES_A_PARAMETER = 12
"""Weights and AdamW's two moments, float32."""
SMALL_FILES = 2_000_000
"""Metrics, evaluations and logs of a run, bytes; generous."""


def table(plan: Plan, root: Path, jobs: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(rows, totals). Reads run folders; writes nothing."""
    from mmctl.runs import RunFolder
    from mmctl.runs.names import index

    known = index(root)
    finished: dict[tuple[str, int], Any] = {}
    rows: list[dict[str, Any]] = []
    measured: list[float] = []
    costs = {identity: _cost(cell.config) for identity, cell in plan.cells.items()}
    for run in plan.runs():
        folder = RunFolder.locate(root, run.config) if run.key in known else None
        cost = costs[run.cell.identity]
        row = {**_row(run, plan), **cost, "state": "planned" if folder is None else folder.state(), "missing": True}
        if folder is not None and folder.finished:
            changes = run.cell.changes(run.seed, plan.seeds)
            unscored = needs_evaluation(folder, run.config) or any(
                evaluating.missing(folder, run.config, c) for c in changes
            )
            row["missing"] = bool(unscored)
            row["state"] = "finished, to evaluate" if unscored else "finished"
            finished[run.key] = folder
            seconds = folder.result().get("seconds") if len(measured) < SAMPLED else None
            if isinstance(seconds, int | float) and seconds > 0:
                measured.append(cost["training_flops"] / seconds / run.config.training.threads)
        rows.append(row)
    speed = statistics.median(measured) if measured else FLOPS_PER_SECOND
    for row, run in zip(rows, plan.runs(), strict=True):
        flops = row.pop("training_flops")
        flops = row["evaluation_flops"] + (0.0 if run.key in finished else flops)
        row["seconds"] = flops / speed / run.config.training.threads
        del row["evaluation_flops"]
    missing = [row for row in rows if row["missing"]]
    basis = f"speed of {len(measured)} finished runs" if measured else "a guess: nothing has run here yet"
    totals = {
        "sweep": plan.name,
        "runs": len(rows),
        "cells": len(plan.cells),
        "missing": len(missing),
        "jobs": jobs,
        "seconds": sum(row["seconds"] for row in missing) / jobs,
        "bytes": sum(row["bytes"] for row in missing),
        "basis": basis,
    }
    return rows, totals


def _row(run: Run, plan: Plan) -> dict[str, Any]:
    return {
        "cell": run.cell.name,
        "identity": run.cell.identity,
        "seed": run.seed,
        "ablations": [f"{u.ablation}/{u.arm}" for u in run.cell.uses if run.seed in plan.seeds[u.ablation]],
    }


def _cost(config: Config) -> dict[str, Any]:
    from mmctl.models import flops

    cost: Mapping[str, Any] = results.cost_of(config, Arm("", ""))
    tokens = cost["training_tokens"]
    data, evaluation = config.data, config.evaluation
    tasks = len(data.tasks_in_mixture())
    scored = 0.0
    for multiple in evaluation.lengths:
        length = multiple * data.length
        each = flops.flops_per_token(config.model, data.vocabulary, length, "executed")
        scored += each * length * evaluation.examples_at(multiple) * tasks
    return {
        **cost,
        "training_flops": 3.0 * cost["flops_per_token"]["executed"] * tokens,
        "evaluation_flops": scored,
        "bytes": BYTES_A_PARAMETER * cost["parameters"] * config.operation.keep + SMALL_FILES,
    }
