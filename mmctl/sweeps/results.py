"""From finished runs to results: every arm's scores over seeds, its costs, and every claim with its verdict.

The result is one plain dictionary (results.json): the report, the terminal's table, figures and other programs read that
and nothing else. Missing numbers are absent or null, never 0.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mmctl.config import Config
from mmctl.sweeps import manifest as manifests
from mmctl.sweeps import scores
from mmctl.sweeps.cells import Cell, parameters
from mmctl.sweeps.claims import Claim, unit_of
from mmctl.sweeps.matrix import Arm, Matrix
from mmctl.sweeps.plan import Plan
from mmctl.sweeps.scores import Number
from mmctl.sweeps.statistics import Difference, bootstrap_difference, one_sample, paired, summarise
from mmctl.sweeps.verdicts import Judged, judge_all

SCHEMA = 1
TOLERANCE = 0.01
"""Relative difference in parameters, FLOPs or tokens from which a comparison is called unmatched."""

CHANCE_MARGIN = 0.02
"""Accuracy above chance up to which an arm counts as not having learned the task."""
Scored = dict[int, dict[str, Number]]
"""seed -> metric -> number, of one arm."""


def collect(
    plan: Plan, root: Path, manifest: Mapping[str, Any], failures: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Read the runs of `plan` under `root` and judge its claims. Reads only; what is not finished is missing."""
    states: dict[tuple[str, int], dict[str, Any]] = {}
    scored: dict[tuple[str, str], Scored] = {}
    _read_runs(plan, root, states, scored)
    claims = [(matrix, claim) for matrix in plan.matrices for claim in matrix.claims]
    differences = [_difference(claim, matrix, scored) for matrix, claim in claims]
    judged = judge_all([claim for _, claim in claims], differences)
    tested: dict[str, list[dict[str, Any]]] = {matrix.name: [] for matrix in plan.matrices}
    for (matrix, claim), difference, verdict in zip(claims, differences, judged, strict=True):
        entry = _claim(plan, matrix, claim, scored, difference, verdict)
        entry["registered"] = manifests.registered(dict(manifest), matrix, claim)
        tested[matrix.name].append(entry)
    return {
        "schema": SCHEMA,
        "sweep": plan.name,
        "profile": plan.profile.name,
        "preset": plan.profile.preset,
        "command": plan.command(),
        "registered": manifest["created"],
        "finished_before": manifest["finished_before"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "passed_over": plan.passed_over,
        "failures": list(failures),
        "runs": [{"label": r.label, "identity": r.cell.identity, "seed": r.seed, **states[r.key]} for r in plan.runs()],
        "ablations": [
            {
                "name": matrix.name,
                "question": matrix.question,
                "file": matrix.file.name,
                "sha256": matrix.digest,
                "seeds": list(plan.seeds[matrix.name]),
                "command": plan.command(matrix.name),
                "arms": [_arm(plan, matrix, arm, states, scored) for arm in matrix.arms],
                "excluded": [{"arm": a.name, "reason": reason} for a, reason in matrix.excluded],
                "claims": tested[matrix.name],
                "figures": list(matrix.figures),
            }
            for matrix in plan.matrices
        ],
    }


def _read_runs(
    plan: Plan, root: Path, states: dict[tuple[str, int], dict[str, Any]], scored: dict[tuple[str, str], Scored]
) -> None:
    from mmctl.runs import RunFolder

    for run in plan.runs():
        folder = RunFolder.locate(root, run.config)
        states[run.key] = {"state": "planned", "path": None}
        if folder is None:
            continue
        states[run.key] = {"state": folder.state(), "path": str(folder.path.relative_to(root))}
        for use in run.cell.uses:
            if run.seed in plan.seeds[use.ablation]:
                numbers = scores.read(folder, run.config, use.changes)
                if numbers:
                    scored.setdefault((use.ablation, use.arm), {})[run.seed] = numbers


def by_seed(scored: Scored, metric: str) -> dict[int, float]:
    return {seed: numbers[metric].value for seed, numbers in scored.items() if metric in numbers}


def _difference(claim: Claim, matrix: Matrix, scored: Mapping[tuple[str, str], Scored]) -> Difference | None:
    treatment = scored.get((matrix.name, claim.treatment), {})
    if claim.control is None:
        return one_sample(by_seed(treatment, claim.metric))
    control = scored.get((matrix.name, claim.control), {})
    difference = paired(by_seed(treatment, claim.metric), by_seed(control, claim.metric))
    if difference is None or difference.n > 1:
        return difference
    # One seed has no spread over seeds: show the spread over the examples of that one pair of runs.
    (seed,) = difference.seeds
    examples = treatment[seed][claim.metric].examples, control[seed][claim.metric].examples
    if examples[0] is None or examples[1] is None:
        return difference
    found = bootstrap_difference(examples[0], examples[1], seed=seed)
    if found is None:
        return difference
    interval, together = found
    over = "examples" if together else "examples (unpaired)"
    return Difference(1, difference.mean, None, interval, None, over=over, seeds=difference.seeds)


def _arm(
    plan: Plan,
    matrix: Matrix,
    arm: Arm,
    states: Mapping[tuple[str, int], Mapping[str, Any]],
    scored: Mapping[tuple[str, str], Scored],
) -> dict[str, Any]:
    cell = plan.cell(matrix.name, arm.name)
    own = scored.get((matrix.name, arm.name), {})
    metrics = list(dict.fromkeys(metric for numbers in own.values() for metric in numbers))
    against = _against(matrix, arm)
    return {
        "name": arm.name,
        "label": arm.label,
        "set": dict(arm.set),
        "evaluate": asdict(arm.evaluate),
        "identity": cell.identity,
        "model": cell.config.model.name,
        "cell": cell.name,
        "runs": {str(s): dict(states[cell.identity, s]) for s in plan.seeds[matrix.name]},
        "cost": cost(cell, arm),
        "compared_to": against,
        "unmatched": unmatched(plan, matrix, arm.name, against) if against else [],
        "train_command": cell.train_command(plan.profile, plan.seeds[matrix.name][0]),
        "scores": {metric: _scores(own, metric) for metric in metrics},
    }


def _against(matrix: Matrix, arm: Arm) -> str | None:
    names = [a.name for a in matrix.arms]
    if arm.compare_to is not None:
        return arm.compare_to if arm.compare_to in names else None
    return names[0] if arm.name != names[0] else None


def _scores(own: Scored, metric: str) -> dict[str, Any]:
    values = by_seed(own, metric)
    summary = summarise(list(values.values()))
    assert summary is not None
    any_number = next(numbers[metric] for numbers in own.values() if metric in numbers)
    seeds = {}
    for seed, value in values.items():
        number = own[seed][metric]
        seeds[str(seed)] = {"value": value, "examples": number.n, "interval": number.interval}
    return {**asdict(summary), "unit": unit_of(metric), "source": any_number.source, "seeds": seeds}


def cost(cell: Cell, arm: Arm) -> dict[str, Any]:
    """Parameters, forward FLOPs per token by both conventions at the training length, and training tokens of an arm."""
    return cost_of(cell.config, arm)


def cost_of(config: Config, arm: Arm) -> dict[str, Any]:
    from mmctl.models import flops

    removed = arm.evaluate.remove_long_term
    return {
        "parameters": parameters(config, removed),
        "context": config.data.length,
        "flops_per_token": {
            convention: flops.flops_per_token(
                config.model, config.data.vocabulary, config.data.length, convention, removed
            )
            for convention in ("published", "executed")
        },
        "training_tokens": config.training.steps * config.data.batch * config.data.length,
    }


def unmatched(plan: Plan, matrix: Matrix, one: str, other: str) -> list[str]:
    """In what two arms differ by more than `TOLERANCE`, in words: ["parameters +12.4%", ...]."""
    a = cost(plan.cell(matrix.name, one), matrix.arm(one))
    b = cost(plan.cell(matrix.name, other), matrix.arm(other))
    pairs = {
        "parameters": (a["parameters"], b["parameters"]),
        "FLOPs per token (executed)": (a["flops_per_token"]["executed"], b["flops_per_token"]["executed"]),
        "training tokens": (a["training_tokens"], b["training_tokens"]),
    }
    changes = {what: x / y - 1.0 for what, (x, y) in pairs.items()}
    return [f"{what} {100 * change:+.1f}%" for what, change in changes.items() if abs(change) > TOLERANCE]


def at_chance(arms: Sequence[Scored], metric: str) -> bool:
    """Whether every arm's mean is at chance or below (within `CHANCE_MARGIN`): then the arms cannot differ, and a claim
    of no effect holds for no reason but that neither has learned the task."""
    for scored in arms:
        numbers = [n[metric] for n in scored.values() if metric in n]
        if not numbers or numbers[0].chance is None:
            return False
        if sum(n.value for n in numbers) / len(numbers) > numbers[0].chance + CHANCE_MARGIN:
            return False
    return bool(arms)


def _claim(
    plan: Plan,
    matrix: Matrix,
    claim: Claim,
    scored: Mapping[tuple[str, str], Scored],
    difference: Difference | None,
    verdict: Judged,
) -> dict[str, Any]:
    present = {a.name for a in matrix.arms}

    def own(name: str | None) -> dict[str, Any] | None:
        summary = summarise(list(by_seed(scored.get((matrix.name, name or ""), {}), claim.metric).values()))
        return None if summary is None else asdict(summary)

    both = claim.control is not None and {claim.treatment, claim.control} <= present
    return {
        **asdict(claim),
        "unit": unit_of(claim.metric),
        "published_effect": claim.published_effect,
        "treatment_score": own(claim.treatment),
        "control_score": own(claim.control),
        "difference": None if difference is None else asdict(difference),
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "corrected_interval": verdict.corrected,
        "corrected_level": verdict.corrected_level,
        "p_holm": verdict.p_holm,
        "unmatched": unmatched(plan, matrix, claim.treatment, claim.control) if both and claim.control else [],
        "at_chance": claim.control is not None
        and at_chance([scored.get((matrix.name, a), {}) for a in (claim.treatment, claim.control)], claim.metric),
    }


def machine() -> dict[str, Any]:
    """What the sweep ran on, as far as it bears on its numbers and times. No names of hosts or people."""
    from mmctl.sweeps.resources import cores

    device = "cpu"
    try:
        import torch

        if torch.cuda.is_available():
            device = torch.cuda.get_device_name(0)
    except ImportError:
        pass
    return {"system": platform.system(), "processor": _processor(), "cores": cores(), "device": device}


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    from mmctl.training.run import versions as of_a_run

    return of_a_run()
