"""Tasks, corpora and mixtures. Everything here is numpy: no torch, so a batch is made without touching the model.

A new task is one generator file and one line in TASKS: its configuration, its suite and its command-line keys
(`data.tasks.<name>.<key>`) follow from the class.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mmctl.errors import UsageError, nearest

if TYPE_CHECKING:
    from mmctl.data.task import Task

TASKS: dict[str, str | type] = {
    "facts": "mmctl.data.facts:Facts",
    "recall": "mmctl.data.recall:Recall",
    "icl": "mmctl.data.icl:InContext",
    "text": "mmctl.data.text:Text",
    "docs_qa": "mmctl.data.docs_qa:DocsQA",
    "passkey": "mmctl.data.passkey:Passkey",
    "regbench": "mmctl.data.regbench:RegBench",
    "induction": "mmctl.data.induction:Induction",
    "intents": "mmctl.data.intents:Intents",
    "stream": "mmctl.data.stream:Stream",
}
"""Name -> "module:Class"; plugins add their classes themselves (mmctl/plugins.py). The class carries `dimension` (its
suite) and `Config` (its keys)."""

BUILT_IN = tuple(TASKS)
"""Tasks that come with mmctl, whatever plugins are loaded."""

MIXTURE = ("facts", "recall", "icl", "text")
"""What a mixture holds by default: the four tasks of the five main ablations."""


def task_class(name: str) -> type[Task]:
    """Class of a registered task. UsageError with the nearest name when there is none."""
    if name not in TASKS:
        raise UsageError(f'task "{name}": no such task{nearest(name, TASKS, "tasks")}')
    entry = TASKS[name]
    if isinstance(entry, type):
        return entry
    module, _, attribute = entry.partition(":")
    found: type[Task] = getattr(importlib.import_module(module), attribute)
    return found


def config_class() -> type[Any]:
    """The dataclass of the `data` section, with the keys of every task registered by now."""
    from mmctl.data.config import with_tasks

    return with_tasks(tuple(TASKS))


def build_task(name: str, data: Any) -> Task:
    """One task as `data` (a DataConfig) configures it. UsageError when it does not fit the vocabulary or length."""
    return task_class(name)(getattr(data.tasks, name), data)


def fingerprint(data: Any) -> dict[str, Any]:
    """Content fingerprint of every corpus the mixture reads, {} when it reads none.

    Content only: the same files under another path give the same fingerprint. Raises UsageError for a corpus that
    cannot be read or is too short for data.length.
    """
    prints = {name: build_task(name, data).fingerprint() for name in data.tasks_in_mixture()}
    return {name: p for name, p in prints.items() if p}
