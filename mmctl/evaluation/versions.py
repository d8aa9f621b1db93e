"""Evaluations made before a score was what it is now.

A task says in `since` which scores came later, or changed their meaning, and with which version of its scores; an
evaluation records the versions it was made with (none recorded: 1). An outdated one is made again where the run's
checkpoint is still there. Where it is not, it counts without the scores that it lacks.
"""

from __future__ import annotations

from typing import Any

from mmctl.data import TASKS, task_class
from mmctl.errors import MmctlError

RECORDED = "scored"
"""Key of an evaluation's file: {task: version of its scores}."""


def version(task: str) -> int:
    """Of a task's scores as they are now."""
    return max(task_class(task).since.values(), default=1)


def outdated(evaluation: dict[str, Any]) -> list[str]:
    """Scores ("<task>/<name>") that came or changed since the evaluation was made; [] where it is up to date."""
    recorded = evaluation.get(RECORDED) or {}
    measured = dict.fromkeys(key.partition("@")[0] for key in evaluation.get("tasks") or ())
    return [
        f"{task}/{score}"
        for task in measured
        if task in TASKS and task_class(task).dimension == evaluation.get("suite")
        for score, since in task_class(task).since.items()
        if since > recorded.get(task, 1)
    ]


def as_it_counts(evaluation: dict[str, Any]) -> dict[str, Any]:
    """The evaluation without scores that meant something else when it was made."""
    if not (changed := set(outdated(evaluation))):
        return evaluation
    kept = {name: score for name, score in evaluation["scores"].items() if name.rpartition("@")[0] not in changed}
    return {**evaluation, "scores": kept}


def can_be_made_again(run: Any) -> bool:
    """Whether `run` (a RunFolder) still has the checkpoint that its scores are of, as far as names and sizes tell."""
    if not run.finished:
        return True  # it will have one when it is
    try:
        return run.has_checkpoint(run.result().get("steps"))
    except MmctlError:
        return False


def older(score: str, again: bool, whose: str) -> str:
    """A line on outdated evaluations of `whose` runs."""
    then = "made again" if again else f"kept without {score}, because no checkpoint is left to make them again"
    return f"evaluations of {whose} are older than the score {score}: {then}"
