"""Harness tasks on a loaded model, as an evaluation like every other; and the paper's groups of tasks by name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mmctl import __version__
from mmctl.errors import MmctlError, UsageError, nearest

GROUPS: dict[str, tuple[str, ...]] = {
    "memory-mosaics-13": (
        "openbookqa", "arc_easy", "winogrande", "arc_challenge", "piqa", "boolq", "hellaswag", "nq_open", "social_iqa",
        "triviaqa", "gsm8k", "mmlu", "humaneval_plus",
    ),
    "memory-mosaics-6": ("squad_completion", "bbh", "hendrycks_math", "mbpp", "race"),
}  # fmt: skip
"""Memory Mosaics v2's benchmarks by their names in the harness: 13 that do not need the long-term memory, 6 that do.
The harness has one `race`, of the high-school part; the paper counts the middle-school part as a sixth task."""


def measure(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[str],
    *,
    limit: int | None = None,
    shots: int | None = None,
    include: Path | None = None,
    batch: int = 16,
    seed: int = 0,
) -> dict[str, Any]:
    """Scores "<task>/<metric>@<shots>shots" with the harness's standard errors as 95% intervals, JSON-ready.

    tasks: names of the harness, or of GROUPS. include: a folder of the user's own task files. UsageError for a task
    that is not there; MmctlError when the harness is not installed or cannot load a task's data.
    """
    from mmctl.harness import register

    register()
    from lm_eval.evaluator import simple_evaluate

    from mmctl.harness.adapter import MmctlLM

    if include is not None and not include.is_dir():
        raise UsageError(f"--data tasks={include}: expected a folder of task files")
    names = [name for given in tasks for name in GROUPS.get(given, (given,))]
    if not names:
        raise UsageError("--tasks: expected names of the harness, or " + " or ".join(GROUPS))
    manager = _manager(include, names)
    for name in names:
        if name not in manager.all_tasks:
            raise UsageError(f"--tasks {name}: no such task{nearest(name, [*GROUPS, *manager.all_tasks], 'tasks')}")
    started = time.perf_counter()
    try:
        found = simple_evaluate(
            model=MmctlLM(model=model, tokenizer=tokenizer, batch_size=batch),
            tasks=list(names),
            task_manager=manager,
            num_fewshot=shots,
            limit=limit,
            log_samples=False,
            bootstrap_iters=1000,
            random_seed=seed,
            numpy_random_seed=seed,
            torch_random_seed=seed,
            fewshot_random_seed=seed,
        )
    except (UsageError, MmctlError):
        raise
    except Exception as error:  # data sets, networks, task files: whatever they raise is one line to the user
        lines = str(error).strip().splitlines()
        raise MmctlError(
            f"lm-eval: {type(error).__name__}: {lines[0][:200] if lines else 'no reason given'}"
        ) from error
    results: dict[str, Any] = found  # type: ignore[assignment]
    scores: dict[str, Any] = {}
    for task, values in results["results"].items():
        count = results.get("n-samples", {}).get(task, {}).get("effective")
        given = results.get("n-shot", {}).get(task, 0)
        for key, value in values.items():
            metric, _, applied = key.partition(",")
            if (
                not isinstance(value, int | float)
                or isinstance(value, bool)
                or metric.endswith("_stderr")
                or not applied
            ):
                continue
            wide = values.get(f"{metric}_stderr,{applied}")
            spread = None if not isinstance(wide, int | float) else [value - 1.96 * wide, value + 1.96 * wide]
            label = metric if applied == "none" else f"{metric}-{applied}"
            scores[f"{task}/{label}@{given}shots"] = {"value": float(value), "n": count, "interval": spread}
    return {
        "suite": "lm-eval",
        "changes": {"remove_long_term": False, "delay": None},
        "settings": {"tasks": list(names), "limit": limit, "shots": shots, "seed": seed, "tokenizer": tokenizer.name},
        "scores": scores,
        "skipped": {},
        "task_versions": results.get("versions", {}),
        "seconds": round(time.perf_counter() - started, 3),
        "versions": {"mmctl": __version__, "lm_eval": str(results.get("lm_eval_version") or _version())},
    }


def _manager(include: Path | None, names: Sequence[str]) -> Any:
    """Index of tasks: the user's folder alone where it has them all, since the harness's own takes seconds to read."""
    from lm_eval.tasks import TaskManager

    if include is not None:
        own = TaskManager(include_path=str(include), include_defaults=False)
        return own if set(names) <= set(own.all_tasks) else TaskManager(include_path=str(include))
    return _all_tasks()


@lru_cache
def _all_tasks() -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager()


def _version() -> str:
    from importlib.metadata import version

    return version("lm-eval")
