"""Evaluation-time arms: score a trained run again with its long-term memory removed, or read with another m."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmctl.config import Config
from mmctl.errors import MmctlError
from mmctl.runs import RunFolder
from mmctl.sweeps.matrix import Changes
from mmctl.training.progress import Listener, Progress, silent


def missing(run: RunFolder, config: Config, changed: Changes) -> list[str]:
    """Suites of config.evaluation that have not been scored with these changes and settings, or whose file is
    damaged."""
    from mmctl.evaluation import lacks_evaluation, wanted_suites

    changes = changed.remove_long_term, changed.delay
    return [suite for suite in wanted_suites(config) if lacks_evaluation(run, config, suite, *changes)]


def evaluate_changed(
    config: Config, root: Path, *, changes: Sequence[Mapping[str, Any]], listener: Listener = silent
) -> Any:
    """Score the finished run of `config` with each of `changes` ({remove_long_term, delay}); write what is missing."""
    from mmctl.evaluation import evaluate, stem_in
    from mmctl.training.run import Outcome, load_model, pick_device

    run = RunFolder.locate(root, config)
    if run is None or not run.finished:
        raise MmctlError("not trained yet: nothing to evaluate")
    with run.lock():
        asked = [Changes(**c) for c in changes]
        todo = [(changed, suite) for changed in asked for suite in missing(run, config, changed)]
        if not todo:
            return Outcome("finished", run.path, skipped=True)
        import torch

        torch.set_num_threads(config.training.threads)
        device = pick_device(config.operation.device)
        model, _ = load_model(run, device)
        for number, (changed, suite) in enumerate(todo, 1):
            listener(Progress(run.label, f"evaluating {suite} {changed.options()}", number, len(todo)))
            options: dict[str, Any] = {"remove_long_term": changed.remove_long_term, "delay": changed.delay}
            scores = evaluate(model, config, suite, **options, device=device)
            run.write_evaluation(stem_in(run, config, suite, **options), scores)
        if config.operation.mlflow:
            from mmctl.runs import Mirror

            Mirror.start(run).finish(run.state())  # reads what is new in the folder
    return Outcome("finished", run.path)
