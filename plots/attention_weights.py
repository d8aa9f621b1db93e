"""What the attention-distribution figure shows: weights of the last query of runs, measured as their scores are
(mmctl/evaluation/attention.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mmctl.errors import UsageError, nearest
from mmctl.evaluation.attention import Panel, held_out, measure_on, usual_task

if TYPE_CHECKING:
    from mmctl.config import Config
    from mmctl.runs import RunFolder


@dataclass(frozen=True)
class Distribution:
    """One run's weights: `panels["layer0/long-term"]`, over `sequences` sequences of `length` tokens of `task`."""

    run: str
    model: str
    task: str
    length: int
    sequences: int
    near: int
    panels: dict[str, Panel] = field(default_factory=dict)

    def layers(self) -> list[int]:
        return sorted({int(name.partition("/")[0].removeprefix("layer")) for name in self.panels})

    def memories(self) -> list[str]:
        return list(dict.fromkeys(name.partition("/")[2] for name in self.panels))


def collect(
    runs: Sequence[RunFolder],
    *,
    length: int | None = None,
    sequences: int = 128,
    task: str | None = None,
    near: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Distribution]:
    """Measure each run on the same held-out sequences of `task`.

    length: tokens a sequence (default: the training length the runs share); task: default `text` where the run trained
    on it, else its heaviest task; near: how many last positions count as the peak (default: the widest short-term
    window among the runs, a quarter of the length where none has one). Raises UsageError for a length or task that
    cannot be.
    """
    from mmctl.data import TASKS
    from mmctl.evaluation.corpora import check_corpora
    from mmctl.training.run import load_model, pick_device

    configs = [run.config() for run in runs]
    length = length or _shared_length(runs, configs)
    windows = [config.model.window for config in configs if getattr(config.model, "window", None)]
    near = near or min(max(windows, default=length // 4), length)
    if task is not None and task not in TASKS:
        raise UsageError(f'--task "{task}": no such task{nearest(task, TASKS, "tasks")}')
    if sequences < 2:
        raise UsageError(f"--sequences {sequences}: expected at least 2")
    distributions = []
    for run, config in zip(runs, configs, strict=True):
        chosen = task or usual_task(config)
        check_corpora(run, config, [chosen])
        try:
            tokens = held_out(config, chosen, sequences, length)
        except UsageError as error:
            raise UsageError(f"--length {length}: {error}; expected a smaller --length or --sequences") from None
        model, _ = load_model(run, pick_device("auto"))
        panels, count = measure_on(model, tokens, next(model.parameters()).device)
        distributions.append(Distribution(run.label, config.model.name, chosen, length, count, near, panels))
        if progress:
            progress(f"{run.label}: {count} sequences of {length} tokens of {chosen}")
    return distributions


def _shared_length(runs: Sequence[RunFolder], configs: Sequence[Config]) -> int:
    lengths = {config.data.length for config in configs}
    if len(lengths) > 1:
        each = ", ".join(f"{run.label} {config.data.length}" for run, config in zip(runs, configs, strict=True))
        raise UsageError(f"the runs' training lengths differ ({each}): give --length")
    return int(lengths.pop())
