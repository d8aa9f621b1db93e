"""Stands in for training in tests: `fake_runs:execute` writes in milliseconds what a run leaves behind, with known
numbers.

What a run does is read from the file MMCTL_FAKE names: {"<cell>/seed<k>": action}; actions: fail, fail-once, raise,
memory, diverge, kill (once), kill-again, hang, save. Every call is appended to `calls` beside that file.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from mmctl.evaluation.changes import Changes
from mmctl.training.progress import Progress

SMALL = [
    "training.steps=2",
    "training.warmup=0",
    "evaluation.examples=2",
    "evaluation.minimum_examples=2",
    "data.mixture={recall: 1, icl: 1, facts: 1}",  # no corpus to read
    "operation.mlflow=false",
]
"""Overrides that make a run small, with no corpus to read and nothing tracked."""


class Outcome:
    def __init__(self, state: str, path: Path, reason: str | None = None, skipped: bool = False) -> None:
        self.state, self.path, self.reason, self.skipped = state, path, reason, skipped


def number(config: Any, metric: str, removed: bool = False) -> float:
    """A score that tells arms and seeds apart: a known base by arm, plus a known part by seed."""
    model = config.model
    base = {"mosaic-v2": 0.8, "transformer": 0.3, "transformer-masks": 0.31}[model.name]
    if getattr(model, "bandwidth", "adaptive") != "adaptive":
        base -= 0.1
    if removed and not metric.startswith(("facts", "text")):
        base -= 0.5
    return (
        base + 0.01 * config.seed + (0.001 * (config.seed == 2) if getattr(model, "bandwidth", "") == "constant" else 0)
    )


def result(config: Any) -> dict[str, Any]:
    adaptive = getattr(config.model, "bandwidth", "") == "adaptive"
    alpha = {"bandwidth/alpha/long-term": 0.3 + 0.01 * config.seed, "bandwidth/alpha/short-term": 0.5}
    for layer in range(config.model.layers):
        alpha[f"bandwidth/alpha/long-term/layer{layer}"] = 0.3 - 0.05 * layer + 0.01 * config.seed
        alpha[f"bandwidth/alpha/short-term/layer{layer}"] = 0.5 - 0.2 * layer + 0.001 * config.seed
    return {
        "train_loss": 3.0 - number(config, "train_loss"),
        "held_out_loss": float("nan"),
        "tokens": 1000,
        "seconds": 12.5,
        "steps": config.training.steps,
        "diagnostics": alpha if adaptive else {},
        "identity": "unused",
        "seed": config.seed,
        "versions": {},
    }


def evaluation(config: Any, suite: str, changes: dict[str, Any]) -> dict[str, Any]:
    from mmctl.evaluation.suites import settings_dict, suite_tasks

    scores: dict[str, Any] = {}
    for task in suite_tasks(suite):
        for multiple in config.evaluation.lengths:
            names = {"text": ["loss"], "icl": ["accuracy", "accuracy-last-quarter"]}.get(task, ["accuracy"])
            for name in names:
                value = number(config, task, bool(changes.get("remove_long_term")))
                scores[f"{task}/{name}@{multiple}x"] = {
                    "value": value,
                    "n": 4,
                    "interval": [value - 0.05, value + 0.05],
                    "correct": [value * 10_000] * 4,  # saturated per example: known to 2 / 40,000
                    "total": [10_000] * 4,
                }
    return {"suite": suite, "changes": changes, "settings": settings_dict(config), "scores": scores}


def validation(config: Any) -> dict[str, Any]:
    """Lowest at learning rate 4e-3, for a transformer at 1e-2."""
    import math

    from mmctl.evaluation.suites import settings_dict

    best = 1e-2 if config.model.name == "transformer" else 4e-3
    loss = abs(math.log10(config.training.learning_rate / best)) + 0.01 * config.seed
    return {
        "settings": settings_dict(config),
        "scores": {"validation/loss@1x": {"value": loss, "n": 2, "interval": None}},
    }


def called(kind: str, label: str) -> None:
    with open(Path(os.environ["MMCTL_FAKE"]).with_name("calls"), "a") as file:
        file.write(f"{kind} {label} {os.getpid()}\n")


def execute(
    config: Any, root: Path, *, overrides: Any = (), parent_run_id: str | None = None, tags: Any = None,
    listener: Any = lambda progress: None,
) -> Outcome:  # fmt: skip
    from mmctl.evaluation import file_stem
    from mmctl.runs import RunFolder

    run = RunFolder.locate(root, config) or RunFolder.create(root, config, overrides)
    label = f"{config.name}/seed{config.seed}"
    if run.finished and config.evaluation.validation and not run.evaluation("validation"):
        called("validate", label)
        run.write_evaluation("validation", validation(config))
    if run.finished and run.evaluation("persistent"):
        return Outcome("finished", run.path, skipped=True)
    plan = Path(os.environ["MMCTL_FAKE"])
    action = json.loads(plan.read_text()).get(label) if plan.exists() else None
    with run.lock():
        if run.finished:
            return Outcome("finished", run.path, skipped=True)
        called("train", label)
        run.set_state("running")
        listener(Progress(run.label, "training", 1, 2, loss=1.5))
        print(f"{label} says hello")
        if action == "raise":
            raise RuntimeError("broken on purpose\nwith a second line")
        if action == "memory":
            from mmctl.runs import memory

            run.set_state("failed", memory.reason(config))
            return Outcome("failed", run.path, memory.reason(config))
        if action in ("fail", "diverge"):
            state = {"fail": "failed", "diverge": "diverged"}[action]
            run.set_state(state, "told to")
            return Outcome(state, run.path, "told to")
        if action == "fail-once" and not (run.path / "killed").exists():
            (run.path / "killed").touch()
            run.set_state("failed", "told to")
            return Outcome("failed", run.path, "told to")
        if action == "kill-again" or (action == "kill" and not (run.path / "killed").exists()):
            (run.path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "hang":
            try:
                (run.path / "hanging").touch()
                time.sleep(120)
            except KeyboardInterrupt:
                run.set_state("interrupted", "asked to")
                return Outcome("interrupted", run.path, "asked to")
        if action == "save":
            from mmctl.training.loop import signals

            with signals() as received:
                (run.path / "hanging").touch()
                while not received:
                    time.sleep(0.01)
                time.sleep(2)  # a checkpoint takes its time; a second signal would end it
            run.set_state("interrupted", "saved")
            return Outcome("interrupted", run.path, "saved")
        for suite in config.evaluation.suites:
            run.write_evaluation(
                file_stem(suite), evaluation(config, suite, {"remove_long_term": False, "delay": None})
            )
        if config.evaluation.validation:
            run.write_evaluation("validation", validation(config))
        run.set_state("finished")
        run.write_result(result(config))
    return Outcome("finished", run.path)


def evaluate(config: Any, root: Path, *, changes: Any, listener: Any = lambda progress: None) -> Outcome:
    from mmctl.evaluation import file_stem
    from mmctl.runs import RunFolder

    run = RunFolder.locate(root, config)
    assert run is not None
    called("evaluate", f"{config.name}/seed{config.seed}")
    for change in changes:
        for suite in config.evaluation.suites:
            stem = file_stem(suite, Changes.of(change))
            run.write_evaluation(stem, evaluation(config, suite, change))
    return Outcome("finished", run.path)
