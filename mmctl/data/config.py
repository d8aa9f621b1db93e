"""The `data` section: what a run is trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, make_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mmctl.data import BUILT_IN, MIXTURE, TASKS, build_task, task_class
from mmctl.errors import UsageError, nearest


def tasks_config(names: tuple[str, ...]) -> type[Any]:
    """One field a task, holding that task's own Config: registering a task is what gives it its keys."""
    return make_dataclass(
        "TasksConfig",
        [(name, task_class(name).Config, field(default_factory=task_class(name).Config)) for name in names],
        namespace={"__module__": __name__, "__doc__": "Every registered task's own keys, data.tasks.<task>.<key>."},
    )


if TYPE_CHECKING:
    TasksConfig = Any
else:
    TasksConfig = tasks_config(BUILT_IN)


@dataclass
class DataConfig:
    """Sequences, tasks and corpora."""

    length: int = 256
    """T, tokens in a training sequence."""
    batch: int = 16
    """Sequences in a step, over all tasks."""
    vocabulary: int = 512
    """V, tokens the model knows: bytes 0-255, then symbols that the synthetic tasks share."""
    mixture: dict[str, float] = field(default_factory=lambda: dict.fromkeys(MIXTURE, 1.0))
    """Task -> sampling proportion. A weight of 0 leaves a task out."""
    loss_weights: dict[str, float] = field(default_factory=dict)
    """Task -> weight of its mean loss in the step's loss (1 where not given)."""
    text: str | None = None
    """Corpus of `text`: a file, a folder, .jsonl with a "text" field, any of them gzipped. null: the Python standard
    library. Identity takes its content, not its path."""
    tokenizer: str = "bytes"
    """Tokens of `text`: bytes; bpe (of data.vocabulary tokens, trained on the training split); a tokenizer.json, a
    folder with one, or a Hugging Face name. Identity takes its content, not its name."""
    tasks: TasksConfig = field(default_factory=lambda: TasksConfig())
    """Each task's own keys."""

    def tasks_in_mixture(self) -> list[str]:
        """Names of the tasks trained on, in the registry's order (so the order they are typed in changes nothing)."""
        return [name for name in TASKS if self.mixture.get(name, 0) > 0]

    def validate(self) -> None:
        """Raise UsageError, one line naming the key. Reads no corpus."""
        for key in ("length", "batch", "vocabulary"):
            if getattr(self, key) < 1:
                raise UsageError(f"data.{key}={getattr(self, key)}: expected a whole number of at least 1")
        for section in ("mixture", "loss_weights"):
            for name, weight in getattr(self, section).items():
                if name not in TASKS:
                    raise UsageError(f"data.{section}.{name}: no such task{nearest(name, TASKS, 'tasks')}")
                if not (math.isfinite(weight) and weight >= 0):
                    raise UsageError(f"data.{section}.{name}={weight}: expected a finite number of at least 0")
        names = self.tasks_in_mixture()
        if not names:
            raise UsageError(f"data.mixture={self.mixture}: expected at least one task with a weight above 0")
        if not any(self.loss_weights.get(name, 1.0) > 0 for name in names):
            raise UsageError(f"data.loss_weights={self.loss_weights}: no task of the mixture would be trained")
        for task in fields(self.tasks):
            getattr(self.tasks, task.name).validate(f"data.tasks.{task.name}.")
        for name in names:
            build_task(name, self).check_length(self.length)


@lru_cache
def with_tasks(names: tuple[str, ...]) -> type[DataConfig]:
    """DataConfig with the keys of these tasks: plugins may bring some after this module was imported."""
    if names == BUILT_IN:
        return DataConfig
    tasks = tasks_config(names)
    made: Any = make_dataclass(
        "DataConfig",
        [("tasks", tasks, field(default_factory=tasks))],
        bases=(DataConfig,),
        namespace={"__module__": __name__},
    )
    return made
