"""What a sweep has left to do: read from the run folders, at its start and again before each run is started.

| a run that is                     | by the same command again                                        |
|-----------------------------------|------------------------------------------------------------------|
| planned, interrupted, lost        | is run; what it saved is resumed                                 |
| failed, diverged                  | is reported, and run again with --retry-failed                   |
| finished                          | is kept; evaluations that are missing are made (--force: anew)   |
| running, in another process       | is waited for, and taken over if that process dies               |
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.errors import MmctlError
from mmctl.evaluation.changes import AS_TRAINED, Changes
from mmctl.runs import making
from mmctl.sweeps import evaluating
from mmctl.sweeps.plan import Plan, Run

if TYPE_CHECKING:
    from mmctl.runs import RunFolder

UNSUCCESSFUL = ("failed", "diverged")
"""States of a run that came to an end of its own, and is not run again unless asked."""


@dataclass(frozen=True)
class Options:
    """What to do about failures and finished runs. `max_failures`: stop starting new work at that many (None:
    never)."""

    force: bool = False
    retry_failed: bool = False
    max_failures: int | None = None


@dataclass
class Task:
    """One run's way through the sweep: training, then evaluations with changes."""

    run: Run
    state: str
    changes: list[Changes] = field(default_factory=list)
    kind: str = "train"
    not_before: float = 0.0
    tries: int = 0
    """Times it was given up and tried again in this sweep."""
    reason: str | None = None
    attempt: int = 0
    """Attempts its folder had counted when this sweep began."""


def todo(plan: Plan, root: Path, options: Options) -> list[Task]:
    """One task a run: state "waiting" for what is missing, "finished", or the state it ended in and stays in."""
    from mmctl.runs import RunFolder
    from mmctl.runs.names import index

    known = index(root)
    tasks = []
    for run in plan.runs():
        config = run.config
        folder = RunFolder.among(known.get(run.key, []))
        changes = run.cell.changes(run.seed, plan.seeds)
        finished = folder is not None and folder.finished
        if folder is not None and finished and options.force:
            making.set_aside(folder, root)  # an old outcome is never rewritten
            folder, finished = None, False
        if folder is not None and finished and not needs_evaluation(folder, config):
            missing = [c for c in changes if evaluating.missing(folder, config, c)]
            tasks.append(Task(run, "waiting" if missing else "finished", missing, "evaluate"))
            continue
        record = {} if folder is None else folder.status
        attempt = record.get("attempt", 0)
        task = Task(run, "waiting", changes, attempt=attempt if isinstance(attempt, int) else 0)
        if folder is not None and not finished and not options.retry_failed and folder.state() in UNSUCCESSFUL:
            task.state, task.reason = (
                folder.state(),
                f"{_said(record)} (in an earlier run; --retry-failed runs it again)",
            )
        tasks.append(task)
    return tasks


def idle(plan: Plan, root: Path, options: Options) -> bool:
    """Whether a sweep would start nothing: all is finished, or ended in a state that it is left in."""
    return not options.force and all(task.state != "waiting" for task in todo(plan, root, options))


def look(task: Task, root: Path, options: Options) -> tuple[str, str | None]:
    """What another process has made of a waiting task meanwhile: ("waiting" or "busy" or the state it ended in,
    reason)."""
    from mmctl.runs import RunFolder
    from mmctl.runs.names import places

    found = [p for p in places(root, task.run.cell.identity) if p.seed == task.run.seed]
    folder = RunFolder.among(found)
    if folder is None:
        return "waiting", None
    if folder.busy:
        return "busy", None
    record = folder.status
    attempt = record.get("attempt", 0)
    elsewhere = task.kind == "train" and isinstance(attempt, int) and attempt > task.attempt + task.tries
    if elsewhere and not options.retry_failed and folder.state() in UNSUCCESSFUL:
        return folder.state(), f"{_said(record)} (in another process)"
    return "waiting", None


def record(task: Task, root: Path, state: str, reason: str | None) -> None:
    """Write down how a run ended whose own process could not."""
    from mmctl.runs import RunFolder
    from mmctl.runs.names import places

    folder = RunFolder.among(p for p in places(root, task.run.cell.identity) if p.seed == task.run.seed)
    if folder is not None and not folder.finished:
        with contextlib.suppress(MmctlError), folder.lock(notify=lambda text: None):
            folder.set_state(state, reason)


def needs_evaluation(folder: RunFolder, config: Any) -> bool:
    return bool(evaluating.missing(folder, config, AS_TRAINED))


def summary(failures: Sequence[Mapping[str, Any]], missing: int, total: int) -> list[str]:
    """Lines for the end of a sweep that is not complete: how many, and which command goes on with which."""
    states = [f["state"] for f in failures]
    ended = sum(state in UNSUCCESSFUL for state in states)
    lines = [f"{missing} of {total} runs not finished"]
    if ended:
        lines.append(f"{ended} failed or diverged: not run again unless the same command has --retry-failed")
    if missing > ended:
        lines.append(f"{missing - ended} not started, interrupted or lost: the same command goes on with them")
    return lines


def _said(record: Mapping[str, Any]) -> str:
    return str(record.get("reason") or "no reason given")
