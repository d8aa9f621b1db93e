"""What a claim compares: scores of arms over seeds become differences, judged against chance, start values and
layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mmctl.sweeps.claims import Claim
from mmctl.sweeps.examples import bootstrap_difference, sampling
from mmctl.sweeps.matrix import Matrix
from mmctl.sweeps.metrics import start_values
from mmctl.sweeps.plan import Plan
from mmctl.sweeps.scores import Number
from mmctl.sweeps.statistics import Difference, Sampling, one_sample, paired
from mmctl.sweeps.verdicts import Judged, judge, judge_layers

CHANCE_MARGIN = 0.02
"""Accuracy above chance up to which an arm counts as not having learned the task."""
Scored = dict[int, dict[str, Number]]
"""seed -> metric -> number, of one arm."""
ByArm = Mapping[tuple[str, str], Scored]
"""(ablation, arm) -> its scores."""


def by_seed(scored: Scored, metric: str) -> dict[int, float]:
    return {seed: numbers[metric].value for seed, numbers in scored.items() if metric in numbers}


def sampling_of(treatment: Scored, control: Scored | None, metric: str) -> Sampling | None:
    """Sampling error of the examples in the mean over the shared seeds; None where none are counted."""
    arms = [treatment] if control is None else [treatment, control]
    seeds = sorted(set.intersection(*({s for s, n in arm.items() if metric in n} for arm in arms)))
    return sampling(*([arm[s][metric].examples or {} for s in seeds] for arm in arms)) if seeds else None


def difference_of(claim: Claim, metric: str, matrix: Matrix, scored: ByArm) -> Difference | None:
    treatment = scored.get((matrix.name, claim.treatment), {})
    if claim.control is None:
        return one_sample(by_seed(treatment, metric), sampling_of(treatment, None, metric))
    control = scored.get((matrix.name, claim.control), {})
    difference = paired(by_seed(treatment, metric), by_seed(control, metric), sampling_of(treatment, control, metric))
    if difference is None or difference.n > 1:
        return difference
    # One seed has no spread over seeds: show the spread over the examples of that one pair of runs.
    (seed,) = difference.seeds
    examples = treatment[seed][metric].examples, control[seed][metric].examples
    if examples[0] is None or examples[1] is None:
        return difference
    found = bootstrap_difference(examples[0], examples[1], seed=seed)
    if found is None:
        return difference
    interval, together = found
    over = "examples" if together else "examples (unpaired)"
    return Difference(1, difference.mean, None, interval, None, over=over, seeds=difference.seeds)


def starts(plan: Plan, scored: ByArm) -> dict[tuple[str, str], dict[str, float]]:
    """{(ablation, arm): values before training} of the diagnostics that its runs have."""
    by_cell: dict[str, dict[str, float]] = {}
    found = {}
    for key, own in scored.items():
        cell = plan.cell(*key)
        if any(metric.startswith("diagnostics:") for numbers in own.values() for metric in numbers):
            if cell.identity not in by_cell:
                by_cell[cell.identity] = start_values(cell.config)
            found[key] = by_cell[cell.identity]
    return found


def judge_range(
    claim: Claim,
    matrix: Matrix,
    scored: ByArm,
    before: Mapping[tuple[str, str], Mapping[str, float]],
    whole: Difference | None,
) -> tuple[Judged, list[dict[str, Any]]]:
    """(Verdict, its parts) of a range claim: layer by layer where it asks for that, else of the one value."""
    start = before.get((matrix.name, claim.treatment), {})
    if claim.each is None:
        return judge(claim, whole, start=start.get(claim.metric)), []
    own = scored.get((matrix.name, claim.treatment), {})
    metrics = {m for numbers in own.values() for m in numbers if m.startswith(f"{claim.metric}/layer")}
    judged, parts = {}, []
    for metric in sorted(metrics, key=lambda m: int(m.rpartition("layer")[2])):
        difference = difference_of(claim, metric, matrix, scored)
        layer = f"layer {metric.rpartition('layer')[2]}"
        judged[layer] = verdict = judge(claim, difference, start=start.get(metric))
        parts.append(
            {
                "part": layer,
                "metric": metric,
                "start": start.get(metric),
                "difference": None if difference is None else asdict(difference),
                "verdict": verdict.verdict,
                "reason": verdict.reason,
            }
        )
    return (judge_layers(judged), parts) if judged else (judge(claim, None), [])


def at_chance(arms: Sequence[Scored], metric: str) -> bool:
    """Whether every arm's mean is at chance or below (within `CHANCE_MARGIN`): then the arms cannot differ, and a claim
    of no effect holds for no reason but that neither has learned the task. A gain in accuracy is judged by the accuracy
    itself: who guesses gains nothing."""
    metric = metric.replace("/gain-per-doubling@", "/accuracy@")
    for scored in arms:
        numbers = [n[metric] for n in scored.values() if metric in n]
        if not numbers or numbers[0].chance is None:
            return False
        if sum(n.value for n in numbers) / len(numbers) > numbers[0].chance + CHANCE_MARGIN:
            return False
    return bool(arms)


def arms_at_chance(claim: Claim, matrix: Matrix, scored: ByArm) -> list[str]:
    """Those of the two arms a claim compares that have not learned the task."""
    arms = [a for a in (claim.treatment, claim.control) if claim.control is not None and a is not None]
    return [a for a in arms if at_chance([scored.get((matrix.name, a), {})], claim.metric)]
