"""From finished runs to results: every arm's scores over seeds, its costs, and every claim with its verdict.

The result is one plain dictionary (results.json): the report, the terminal's table, figures and other programs read
that and nothing else. Missing numbers are absent or null, never 0.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mmctl.sweeps import across, comparing, costs, scores
from mmctl.sweeps import manifest as manifests
from mmctl.sweeps.claims import Claim
from mmctl.sweeps.comparing import Scored
from mmctl.sweeps.matrix import Arm, Matrix
from mmctl.sweeps.plan import Plan
from mmctl.sweeps.statistics import Difference, summarise
from mmctl.sweeps.units import unit_of
from mmctl.sweeps.verdicts import ANALYSIS, Judged, judge_all

SCHEMA = 2


def collect(
    plan: Plan, root: Path, manifest: Mapping[str, Any], failures: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Read the runs of `plan` under `root` and judge its claims. Reads only; what is not finished is missing."""
    states: dict[tuple[str, int], dict[str, Any]] = {}
    scored: dict[tuple[str, str], Scored] = {}
    _read_runs(plan, root, states, scored)
    starts = comparing.starts(plan, scored)
    for matrix in plan.matrices:
        across.derive(matrix, scored, {a.name: plan.cell(matrix.name, a.name).config for a in matrix.arms})
    claims = [(matrix, claim) for matrix in plan.matrices for claim in matrix.claims]
    differences = [comparing.difference_of(claim, claim.metric, matrix, scored) for matrix, claim in claims]
    chance = [_at_chance(plan, matrix, claim, scored) for matrix, claim in claims]
    judged = judge_all([claim for _, claim in claims], differences, chance)
    tested: dict[str, list[dict[str, Any]]] = {matrix.name: [] for matrix in plan.matrices}
    for (matrix, claim), difference, verdict in zip(claims, differences, judged, strict=True):
        parts: list[dict[str, Any]] = []
        if claim.expected == "range":
            verdict, parts = comparing.judge_range(claim, matrix, scored, starts, difference)
        entry = _claim(plan, matrix, claim, scored, difference, verdict) | {"parts": parts}
        entry["start"] = starts.get((matrix.name, claim.treatment), {}).get(claim.metric)
        entry["registered"] = manifests.registered(dict(manifest), matrix, claim)
        tested[matrix.name].append(entry)
    return {
        "schema": SCHEMA,
        "sweep": plan.name,
        "profile": plan.profile.name,
        "preset": plan.profile.preset,
        "command": plan.command(),
        "registered": manifest["created"],
        "analysis": ANALYSIS,
        "analysis_registered": manifest.get("analysis"),
        "family": sum(claim.directional for _, claim in claims),
        "finished_before": manifest["finished_before"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        **({} if plan.tuned is None else {"tuning": plan.tuned.record()}),
        "passed_over": plan.passed_over,
        "failures": list(failures),
        "runs": [{"label": r.label, "identity": r.cell.identity, "seed": r.seed, **states[r.key]} for r in plan.runs()],
        "ablations": [
            {
                "name": matrix.name,
                "question": matrix.question,
                "file": matrix.file.name,
                "sha256": matrix.digest,
                "sha256_registered": manifests.digest_of(dict(manifest), matrix),
                "seeds": list(plan.seeds[matrix.name]),
                "command": plan.command(matrix.name),
                "arms": [
                    _arm(plan, matrix, arm, states, scored) | {"start": starts.get((matrix.name, arm.name), {})}
                    for arm in matrix.arms
                ],
                "excluded": [{"arm": a.name, "reason": reason} for a, reason in matrix.excluded],
                **({"across": _across(matrix, scored)} if matrix.across else {}),
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
        "evaluate": arm.evaluate.record(),
        "identity": cell.identity,
        "model": cell.config.model.name,
        "cell": cell.name,
        "runs": {str(s): dict(states[cell.identity, s]) for s in plan.seeds[matrix.name]},
        "cost": costs.cost(cell, arm),
        "compared_to": against,
        "same_run": against is not None and plan.arms[matrix.name, against] == cell.identity,
        "unmatched": costs.unmatched(plan, matrix, arm.name, against, scored) if against else [],
        "delay": costs.delays(cell.config, arm),
        "train_command": cell.train_command(plan.profile, plan.seeds[matrix.name][0]),
        "scores": {metric: _scores(own, metric) for metric in metrics},
    }


def _against(matrix: Matrix, arm: Arm) -> str | None:
    names = [a.name for a in matrix.arms]
    if arm.compare_to is not None:
        return arm.compare_to if arm.compare_to in names else None
    return names[0] if arm.name != names[0] else None


def _scores(own: Scored, metric: str) -> dict[str, Any]:
    values = comparing.by_seed(own, metric)
    summary = summarise(list(values.values()), comparing.sampling_of(own, None, metric))
    assert summary is not None
    any_number = next(numbers[metric] for numbers in own.values() if metric in numbers)
    seeds = {}
    for seed, value in values.items():
        number = own[seed][metric]
        seeds[str(seed)] = {"value": value, "examples": number.n, "interval": number.interval}
    about = {"unit": unit_of(metric), "source": any_number.source, "chance": any_number.chance}
    if summary.n == 1:  # of one run its own interval is all there is: a bootstrap over its examples
        summary = replace(summary, interval=any_number.interval)
    return {**asdict(summary), **about, "at_chance": comparing.at_chance([own], metric), "seeds": seeds}


def _across(matrix: Matrix, scored: Mapping[tuple[str, str], Scored]) -> list[dict[str, Any]]:
    """What is made across arms: each entry's record, with the scores of its derived arms."""
    made = []
    for entry in matrix.across:
        arms = {}
        for name, members in entry.derived().items():
            own = scored.get((matrix.name, name), {})
            metrics = dict.fromkeys(metric for numbers in own.values() for metric in numbers)
            arms[name] = {"of": list(members), "scores": {metric: _scores(own, metric) for metric in metrics}}
        made.append(entry.record() | {"arms": arms})
    return made


def _at_chance(plan: Plan, matrix: Matrix, claim: Claim, scored: dict[tuple[str, str], Scored]) -> int:
    """How many of the claim's arms have not learned the task. What an evaluation-time change takes away was learned, so two
    readings of one training count only where both are at chance."""
    found = len(comparing.arms_at_chance(claim, matrix, scored))
    trained = plan.arms.get((matrix.name, claim.treatment))  # None: made across arms
    one_training = claim.control and trained is not None and trained == plan.arms.get((matrix.name, claim.control))
    return 0 if found == 1 and one_training else found


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
        found = scored.get((matrix.name, name or ""), {})
        summary = summarise(
            list(comparing.by_seed(found, claim.metric).values()), comparing.sampling_of(found, None, claim.metric)
        )
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
        "unmatched": costs.unmatched(plan, matrix, claim.treatment, claim.control, scored, claim.metric)
        if both and claim.control
        else [],
        "at_chance": comparing.arms_at_chance(claim, matrix, scored),
    }


def machine() -> dict[str, Any]:
    """What the sweep ran on, as far as it bears on its numbers and times. No names of hosts or people."""
    from mmctl.runs.provenance import processor
    from mmctl.sweeps.resources import cores

    device = "cpu"
    try:
        import torch

        if torch.cuda.is_available():
            device = torch.cuda.get_device_name(0)
    except ImportError:
        pass
    return {"system": platform.system(), "processor": processor(), "cores": cores(), "device": device}


def versions() -> dict[str, str]:
    from mmctl.training.run import versions as of_a_run

    return of_a_run()
