"""Which metrics an arm will have: asked before anything runs, so that a claim with a wrong name is an error, not "not
run"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mmctl.errors import UsageError, nearest
from mmctl.evaluation.suites import ATTENTION

if TYPE_CHECKING:
    from mmctl.config import Config
    from mmctl.sweeps.claims import Claim
    from mmctl.sweeps.matrix import Matrix
    from mmctl.sweeps.plan import Plan

RESULT_METRICS = ("train_loss", "held_out_loss", "parameters", "tokens", "seconds")
"""Metrics of a run's own result; others are `diagnostics:<name>` or a suite's `<task>/<score>@<length>x`."""

SCORE = re.compile(r"(?P<task>[^/@]+)/(?P<score>[a-z0-9-]+)@(?P<multiple>[1-9][0-9]*)x")
"""A suite's score."""

LAYER = re.compile(r"/layer(\d+)$")


def start_values(config: Config) -> dict[str, float]:
    """{diagnostics:<name>: value before training} of a configuration's model: asked of a narrow one of as many
    layers."""
    from mmctl import models
    from mmctl.sweeps.cells import dwarf

    return {f"diagnostics:{k}": v for k, v in models.build(dwarf(config, config.model.layers)).diagnostics().items()}


def check_claims(plan: Plan, matrix: Matrix, typed: Iterable[str]) -> None:
    """UsageError naming every claim of a matrix about a metric that its arms will not have."""
    from mmctl.sweeps.reading import together

    arms = {arm.name: plan.cell(matrix.name, arm.name).config for arm in matrix.arms}
    members = {name: arms for entry in matrix.across for name, arms in entry.derived().items()}
    problems = []
    for i, entry in enumerate(matrix.across):
        try:
            entry.check(arms)
        except UsageError as error:
            problems.append(f"across[{i}].{error}")
    for i, claim in enumerate(matrix.claims):
        try:
            if claim.metric.startswith("across:"):
                _check_across(claim, arms, matrix, f"claims[{i}]")
            else:
                check(claim, arms, typed, f"claims[{i}]", members)
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError(together(matrix.file, problems))


def check(
    claim: Claim,
    arms: Mapping[str, Config],
    typed: Iterable[str],
    where: str,
    members: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> None:
    """UsageError, with the nearest metric there is, for a claim about a metric that one of `arms` will not have.

    members: {derived arm: the arms it is made from}, which must have the metric.
    typed: keys the user overrides. One that changes what is measured (data.mixture, evaluation.*) may leave a claim
    unmeasured, which is then reported as not run; a name that no task has is an error all the same.
    """
    from mmctl.evaluation.attention import nothing_far

    dropped = any(key == "data.mixture" or key.startswith(("data.mixture.", "evaluation.")) for key in typed)
    compared = [a for a in (claim.treatment, claim.control) if a is not None]
    for arm in dict.fromkeys(m for a in compared for m in (a, *members.get(a, ())) if m in arms):
        config = arms[arm]
        valid = _valid(config, claim.metric)
        wanted = [claim.metric]
        if claim.each == "layer":
            wanted = [m for m in valid if LAYER.sub("", m) == claim.metric and LAYER.search(m)]
        if wanted and all(m in valid for m in wanted):
            continue
        score = SCORE.fullmatch(claim.metric)
        asked = (ATTENTION, *config.data.tasks_in_mixture())
        left_out = score is not None and score["task"] not in asked  # a profile of text alone
        if (dropped or left_out) and _could_be(claim.metric, config):
            continue
        if (
            score is not None
            and score["task"] == ATTENTION
            and (why := nothing_far(int(score["multiple"]) * config.data.length, config.evaluation.attention))
        ):
            raise UsageError(f'{where}.metric: "{claim.metric}": no such metric of arm {arm}: {why}')
        layers = "no such metric by layer" if claim.each and claim.metric in valid else "no such metric"
        raise UsageError(
            f'{where}.metric: "{claim.metric}": {layers} of arm {arm}{nearest(claim.metric, valid, "such as")}'
        )


def _check_across(claim: Claim, arms: Mapping[str, Config], matrix: Matrix, where: str) -> None:
    """The same for a number that an `across` entry makes itself. Where a selection leaves out its arms, it is not run."""
    if matrix.siblings:
        return
    for name in (claim.treatment, claim.control):
        if name is not None:
            entry = next((e for e in matrix.across if name in e.derived()), None)
            valid = list(entry.metrics(name, arms)) if entry else []
            if claim.metric not in valid:
                raise UsageError(
                    f'{where}.metric: "{claim.metric}": no such number of {name}{nearest(claim.metric, valid, "such as")}'
                )


def _valid(config: Config, metric: str) -> list[str]:
    tasks = config.data.tasks_in_mixture()
    names = [*RESULT_METRICS, *(f"{loss}/{task}" for loss in ("train_loss", "held_out_loss") for task in tasks)]
    if metric.startswith("diagnostics:"):
        chosen = ("selected-step", "validation-score") if config.training.select is not None else ()
        reached = ("steps-to-target",) if config.training.select_target is not None else ()
        return [*names, *start_values(config), *(f"diagnostics:{name}" for name in (*chosen, *reached))]
    from mmctl.evaluation.suites import suite_tasks

    if config.evaluation.attention:
        names += attention_scores(config)
    measured = {task for suite in config.evaluation.suites for task in suite_tasks(suite)}
    for task in tasks:
        if task in measured:
            scores = _scores(task, config)
            names += [f"{task}/{score}@{k}x" for k in config.evaluation.lengths for score in scores]
    return names


def _could_be(metric: str, config: Config) -> bool:
    """Whether the metric's task, scored as this configuration would score it, has a score of that name."""
    parts = SCORE.fullmatch(metric)
    if parts is not None and parts["task"] == ATTENTION:
        return metric in attention_scores(config, [int(parts["multiple"])])
    try:
        return parts is not None and parts["score"] in _scores(parts["task"], config)
    except UsageError:  # the task does not fit this configuration, which does not train on it either
        return True


def _scores(task: str, config: Config) -> list[str]:
    """Names of a task's scores: they depend on the task and the length alone, so one held-out sequence tells them."""
    return list(_asked(task, _Key(config.data)))


def attention_scores(config: Config, multiples: Iterable[int] | None = None) -> list[str]:
    """Names of the scores of ATTENTION at these multiples of the training length (default: those that are evaluated).
    They depend on the model's memories, which a narrow one of a layer has too, and on what a length leaves far."""
    import torch

    from mmctl import models
    from mmctl.evaluation.attention import score_names
    from mmctl.sweeps.cells import dwarf

    try:
        weights = models.build(dwarf(config)).last_query_weights(torch.zeros(1, 2, dtype=torch.int64))
    except UsageError:  # it has none
        return []
    memories = [name.partition("/")[2] for name in weights]
    window, near = getattr(config.model, "window", None), config.evaluation.attention
    return [
        f"{ATTENTION}/{score}@{k}x"
        for k in (config.evaluation.lengths if multiples is None else multiples)
        for score in score_names(memories, window, near, k * config.data.length)
    ]


class _Key:
    """Data by its content, as key of a cache: many arms share it."""

    def __init__(self, data: Any) -> None:
        self.data, self.content = data, repr(data)

    def __hash__(self) -> int:
        return hash(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.content == self.content


@lru_cache(maxsize=64)
def _asked(task: str, key: _Key) -> tuple[str, ...]:
    from mmctl.data import build_task

    return build_task(task, key.data).score_names(key.data.length)
