"""Evaluation-time arms: score a trained run again with something changed (evaluation/changes.py)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.config import Config
from mmctl.errors import MmctlError
from mmctl.evaluation.changes import AS_TRAINED, Changes
from mmctl.runs import RunFolder
from mmctl.training.progress import Listener, Progress, silent

if TYPE_CHECKING:
    from mmctl.sweeps.plan import Plan


def missing(run: RunFolder, config: Config, changed: Changes) -> list[str]:
    """Suites of config.evaluation that have not been scored with these changes and settings, or whose file is
    damaged."""
    from mmctl.evaluation import lacks_evaluation, reported, scored_at_end

    asked = reported(config, changed) if changed else scored_at_end(config)
    return [suite for suite in asked if lacks_evaluation(run, config, suite, changed)]


def evaluate_changed(
    config: Config, root: Path, *, changes: Sequence[Mapping[str, Any]], listener: Listener = silent
) -> Any:
    """Score the finished run of `config` with each of `changes` (records of Changes); write what is missing."""
    from mmctl.evaluation import evaluate, stem_in
    from mmctl.training.run import Outcome, load_model, pick_device

    run = RunFolder.locate(root, config)
    if run is None or not run.finished:
        raise MmctlError("not trained yet: nothing to evaluate")
    with run.lock():
        asked = [Changes.of(c) for c in changes]
        todo = [(changed, suite) for changed in asked for suite in missing(run, config, changed)]
        if not todo:
            return Outcome("finished", run.path, skipped=True)
        import torch

        torch.set_num_threads(config.training.threads)
        device = pick_device(config.operation.device)
        model, _ = load_model(run, device)
        for number, (changed, suite) in enumerate(todo, 1):
            listener(Progress(run.label, f"evaluating {suite} {changed.options()}", number, len(todo)))
            scores = evaluate(model, config, suite, changes=changed, device=device)
            run.write_evaluation(stem_in(run, config, suite, changed), scores)
        if config.operation.mlflow:
            from mmctl.runs import Mirror

            Mirror.start(run).finish(run.state())  # reads what is new in the folder
    return Outcome("finished", run.path)


def outdated(plan: Plan, root: Path) -> list[str]:
    """A line for each score that evaluations of the plan's finished runs are older than, by whether they are made again
    (evaluation/versions.py)."""
    from mmctl.evaluation import find_evaluation, reported, versions
    from mmctl.runs.names import index

    known, runs = index(root), defaultdict[tuple[str, bool], set[str]](set)
    for run in plan.runs():
        if all(versions.version(task) == 1 for task in run.config.data.tasks_in_mixture()):
            continue  # nothing can be older, and it spares reading the files
        folder = RunFolder.among(known.get(run.key, []))
        if folder is None or not folder.finished:
            continue
        for changed in (AS_TRAINED, *run.cell.changes(run.seed, plan.seeds)):
            for suite in reported(run.config, changed):
                try:
                    found = find_evaluation(folder, run.config, suite, changed)
                except MmctlError:  # damaged: made again whatever its age
                    continue
                for score in versions.outdated(found[1]) if found is not None else ():
                    runs[score, versions.can_be_made_again(folder)].add(folder.label)
    lines = []
    for (score, again), labels in sorted(runs.items()):
        first = min(labels)
        lines.append(versions.older(score, again, first if len(labels) == 1 else f"{len(labels)} runs ({first}, ...)"))
    return lines
