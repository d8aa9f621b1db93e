"""What a plan will cost: a row a run with its state, and time and disk estimated from finished runs where there are
any."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.config import Config
from mmctl.errors import MmctlError
from mmctl.runs import memory
from mmctl.runs.preflight import BYTES_PER_PARAMETER
from mmctl.sweeps import costs, evaluating
from mmctl.sweeps.matrix import Arm
from mmctl.sweeps.plan import Plan, Run
from mmctl.sweeps.todo import needs_evaluation

if TYPE_CHECKING:
    from mmctl.runs import RunFolder

FLOPS_PER_SECOND = 1.5e10
"""Of one CPU thread, where no finished run says better: the order of magnitude of small models on current CPUs."""
SAMPLED = 40
"""Finished runs the speed is taken from."""
SMALL_FILES = 2_000_000
"""Metrics, evaluations and logs of a run, bytes; generous."""
COUNTED = ("training_flops", "evaluation_flops")


def table(plan: Plan, root: Path, jobs: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(rows, totals). Reads run folders; writes nothing. A finished run's seconds are those its training took."""
    from mmctl.runs import RunFolder
    from mmctl.runs.names import index

    known = index(root)
    rows: list[dict[str, Any]] = []
    speeds: list[float] = []
    known_costs: dict[str, dict[str, Any]] = {}  # cells that differ in a rate or a seed cost the same
    costs = {}
    for identity, cell in plan.cells.items():
        key = _sizes(cell.config)
        if key not in known_costs:
            known_costs[key] = _cost(cell.config)
        costs[identity] = known_costs[key]
    for run in plan.runs():
        folder = RunFolder.among(known[run.key]) if run.key in known else None
        row = {**_row(run, plan), **costs[run.cell.identity], "missing": True}
        row |= {"state": "planned", "trained": None}
        if folder is not None:
            row["state"] = folder.state()
        if folder is not None and row["state"] == "finished":
            changes = run.cell.changes(run.seed, plan.seeds)
            row["missing"] = needs_evaluation(folder, run.config) or any(
                evaluating.missing(folder, run.config, c) for c in changes
            )
            row["state"] = "finished, to evaluate" if row["missing"] else "finished"
            row["trained"] = _seconds(folder)
            if row["trained"] and len(speeds) < SAMPLED:
                share = _share(folder, costs[run.cell.identity])
                speeds.append(share * row["training_flops"] / row["trained"] / run.config.training.threads)
        rows.append(row)
    basis = f"speed of {_finished(speeds)}"
    if not speeds:
        speeds = _elsewhere(known)
        basis = f"speed of {_finished(speeds)} of other sweeps"
    if not speeds:
        speeds, basis = [FLOPS_PER_SECOND], "a guess: nothing has run here yet"
    speed = statistics.median(speeds)
    for row, run in zip(rows, plan.runs(), strict=True):
        training, scoring = (row.pop(key) / speed / run.config.training.threads for key in COUNTED)
        trained = row.pop("trained")
        done = row["state"].startswith("finished")
        row["seconds_left"] = (0.0 if done else training) + scoring if row["missing"] else 0.0
        row["seconds"] = row["seconds_left"] if trained is None or row["missing"] else trained
        row["bytes_left"] = 0 if done else row["bytes"]
    missing = [row for row in rows if row["missing"]]
    totals = {
        "sweep": plan.name,
        "runs": len(rows),
        "cells": len(plan.cells),
        "missing": len(missing),
        "jobs": jobs,
        "seconds": sum(row["seconds_left"] for row in missing) / jobs,
        "bytes": sum(row["bytes_left"] for row in missing),
        "basis": basis,
    }
    return rows, totals


def _finished(speeds: list[float]) -> str:
    return f"{len(speeds)} finished run{'s' * (len(speeds) != 1)}"


def _seconds(folder: RunFolder) -> float | None:
    seconds = folder.result().get("seconds")
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def _share(folder: RunFolder, cost: Mapping[str, Any]) -> float:
    """Share of the planned training that a finished run took: less than 1 where it ended at a target."""
    taken = folder.result().get("tokens") if cost.get("ends_early") else None
    return float(taken) / cost["training_tokens"] if isinstance(taken, int | float) else 1.0


def _elsewhere(known: Mapping[tuple[str, int], list[Any]]) -> list[float]:
    """FLOPs a second and thread of runs that are not of this plan."""
    from mmctl.runs import RunFolder

    speeds: list[float] = []
    for places in known.values():
        if len(speeds) == SAMPLED:
            break
        folder = RunFolder.among(places)
        if folder is None or not folder.finished:
            continue
        result = folder.result()
        try:
            threads = int(folder.config_dict()["training"]["threads"])
            speed = 3.0 * result["flops_per_token/executed"] * result["tokens"] / result["seconds"] / threads
        except (MmctlError, KeyError, TypeError, ValueError, ZeroDivisionError):  # made by hand, or by another version
            continue
        if 0 < speed < float("inf"):
            speeds.append(speed)
    return speeds


def _row(run: Run, plan: Plan) -> dict[str, Any]:
    return {
        "cell": run.cell.name,
        "identity": run.cell.identity,
        "seed": run.seed,
        "ablations": [f"{u.ablation}/{u.arm}" for u in run.cell.uses if run.seed in plan.seeds[u.ablation]],
    }


def _sizes(config: Config) -> str:
    """All that a cost depends on."""
    return f"{memory.sizes(config)} {config.training.steps} {config.operation.keep} {config.data.mixture}"


def _cost(config: Config) -> dict[str, Any]:
    from mmctl.models import flops

    cost: Mapping[str, Any] = costs.cost_of(config, Arm("", ""))
    tokens = cost["training_tokens"]
    data, evaluation = config.data, config.evaluation
    tasks = len(data.tasks_in_mixture())
    scored = 0.0
    for multiple in evaluation.lengths:
        length = multiple * data.length
        each = flops.flops_per_token(config.model, data.vocabulary, length, "executed")
        looked = evaluation.examples if evaluation.attention else 0
        scored += each * length * (evaluation.examples_at(multiple) * tasks + looked)
    return {
        **cost,
        "training_flops": 3.0 * cost["flops_per_token"]["executed"] * tokens,
        "evaluation_flops": scored,
        "memory": memory.estimate(config).total,
        "bytes": BYTES_PER_PARAMETER * cost["parameters"] * config.operation.keep + SMALL_FILES,
    }
