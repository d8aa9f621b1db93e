"""Suites: a dimension of memory and the tasks that measure it. A task says itself which dimension it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmctl.data import TASKS, task_class
from mmctl.errors import UsageError, nearest

DIMENSIONS = ("persistent", "new-knowledge", "in-context")


class _Suites(Mapping[str, list[str]]):
    """Read from the registry each time, since a plugin may have brought a task."""

    def __getitem__(self, dimension: str) -> list[str]:
        if dimension not in DIMENSIONS:
            raise KeyError(dimension)
        return [name for name in TASKS if task_class(name).dimension == dimension]

    def __iter__(self) -> Iterator[str]:
        return iter(DIMENSIONS)

    def __len__(self) -> int:
        return len(DIMENSIONS)


SUITES: Mapping[str, list[str]] = _Suites()
"""Suite -> tasks."""


def suite_tasks(suite: str) -> list[str]:
    """Tasks of a suite. UsageError with the nearest name when there is no such suite."""
    if suite not in SUITES:
        raise UsageError(f'suite "{suite}": no such suite{nearest(suite, SUITES, "suites")}')
    return SUITES[suite]


def wanted_suites(config: Any) -> list[str]:
    """Suites of config.evaluation.suites that have at least one task the run is trained on."""
    trained = set(config.data.tasks_in_mixture())
    return [suite for suite in config.evaluation.suites if trained & set(suite_tasks(suite))]


def file_stem(suite: str, remove_long_term: bool = False, delay: int | None = None) -> str:
    """Name of an evaluation's file in a run folder, without ".json": suite, then what was changed."""
    return suite + ("+remove-long-term" if remove_long_term else "") + ("" if delay is None else f"+m={delay}")


def settings_dict(config: Any, settings: Any = None) -> dict[str, Any]:
    """What decides which examples are drawn and how intervals are made; recorded with every evaluation."""
    s = settings or config.evaluation
    return {
        "training_length": config.data.length,
        "lengths": list(s.lengths),
        "examples": s.examples,
        "minimum_examples": s.minimum_examples,
        "seed": s.seed,
        "resamples": s.resamples,
        "precision": "float32",
    }


def same_settings(evaluation: dict[str, Any] | None, config: Any) -> bool:
    """Whether a recorded evaluation (None: there is none) is what config.evaluation asks for."""
    return evaluation is not None and evaluation.get("settings") == settings_dict(config)
