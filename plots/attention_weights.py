"""What the attention-distribution figure shows: weights of the last query, measured on held-out sequences of a run's
data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mmctl.errors import UsageError, nearest

if TYPE_CHECKING:
    from mmctl.config import Config
    from mmctl.runs import RunFolder

BATCH_TOKENS = 8192
"""Tokens measured at once."""
SEED = 512
"""Of the held-out sequences: every run is measured on the same ones."""
DRAWS = 20
"""Times as many windows as wanted are drawn, at most, until enough of them lie inside one document."""


def peak_begin(length: int, near: int) -> int:
    """First of the `near` positions before the last query, which stands at length - 1 (and may see itself too)."""
    return max(length - 1 - near, 0)


@dataclass(frozen=True)
class Panel:
    """Weights of one layer's memory: mean and standard deviation over sequences, each (heads, length)."""

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    def numbers(self, near: int, sequences: int) -> dict[str, Any]:
        """Flatness, its share explained by noise, and peak mass. None where no visible position is far from the end."""
        begin = peak_begin(self.mean.shape[1], near)
        far = self.mean[:, :begin]
        visible = far.max(axis=0, initial=0.0) > 0.0
        flatness: list[float] | None = None
        noise: list[float] | None = None
        if visible.sum() >= 2:
            level = far[:, visible].mean(axis=1)
            flatness = (far[:, visible].std(axis=1) / level).tolist()
            variance = self.deviation[:, :begin][:, visible] ** 2 / sequences
            noise = (np.sqrt(variance.mean(axis=1)) / level).tolist()
        peak = self.mean[:, begin:].sum(axis=1).tolist()
        return {
            "flatness": _average(flatness),
            "flatness_from_noise": _average(noise),
            "peak_mass": _average(peak),
            "per_head": {"flatness": flatness, "flatness_from_noise": noise, "peak_mass": peak},
        }


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


def measure(model: Any, batches: Iterator[Any]) -> tuple[dict[str, Panel], int]:
    """Panels and number of sequences from `batches` of tokens, (b, T) int64 tensors, through the model's own
    operations."""
    import torch

    total: dict[str, NDArray[np.float64]] = {}
    square: dict[str, NDArray[np.float64]] = {}
    count = 0
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for tokens in batches:
                for name, weights in model.last_query_weights(tokens).items():
                    values = weights.double().cpu().numpy()
                    total[name] = total.get(name, 0.0) + values.sum(axis=0)
                    square[name] = square.get(name, 0.0) + (values**2).sum(axis=0)
                count += tokens.shape[0]
    finally:
        model.train(training)
    panels = {}
    for name, summed in total.items():
        mean = summed / count
        variance = np.maximum(square[name] / count - mean**2, 0.0) * (count / max(count - 1, 1))
        panels[name] = Panel(mean, np.sqrt(variance))
    return panels, count


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
    import torch

    from mmctl.evaluation.corpora import check_corpora
    from mmctl.training.run import load_model, pick_device

    configs = [run.config() for run in runs]
    length = length or _shared_length(runs, configs)
    windows = [config.model.window for config in configs if getattr(config.model, "window", None)]
    near = near or min(max(windows, default=length // 4), length)
    distributions = []
    for run, config in zip(runs, configs, strict=True):
        chosen = task or _usual_task(config)
        check_corpora(run, config, [chosen])
        tokens = torch.from_numpy(held_out(config, chosen, sequences, length))
        model, _ = load_model(run, pick_device("auto"))
        device = next(model.parameters()).device
        step = max(1, BATCH_TOKENS // length)
        batches = (tokens[first : first + step].to(device) for first in range(0, sequences, step))
        panels, count = measure(model, batches)
        distributions.append(Distribution(run.label, config.model.name, chosen, length, count, near, panels))
        if progress:
            progress(f"{run.label}: {count} sequences of {length} tokens of {chosen}")
    return distributions


def _average(values: list[float] | None) -> float | None:
    return None if values is None else float(np.mean(values))


def _shared_length(runs: Sequence[RunFolder], configs: Sequence[Config]) -> int:
    lengths = {config.data.length for config in configs}
    if len(lengths) > 1:
        each = ", ".join(f"{run.label} {config.data.length}" for run, config in zip(runs, configs, strict=True))
        raise UsageError(f"the runs' training lengths differ ({each}): give --length")
    return int(lengths.pop())


def _usual_task(config: Config) -> str:
    mixture = config.data.mixture
    return "text" if mixture.get("text", 0) > 0 else max(mixture, key=mixture.__getitem__)


def held_out(config: Config, task: str, sequences: int, length: int) -> NDArray[np.int64]:
    """`sequences` held-out sequences of `length` tokens of the run's own data, the same ones at every call."""
    from mmctl.data import TASKS, build_task

    if task not in TASKS:
        raise UsageError(f'--task "{task}": no such task{nearest(task, TASKS, "tasks")}')
    if sequences < 2:
        raise UsageError(f"--sequences {sequences}: expected at least 2")
    source = build_task(task, config.data)
    reason = source.unavailable(length, "held-out")
    if reason:
        raise UsageError(f"--length {length}: {reason}")
    # A window over two documents would show a query what it never sees in training, so such windows are passed over.
    rng, kept, found = np.random.default_rng([SEED, length]), [], 0
    for _ in range(DRAWS):
        batch = source.sample(rng, sequences, length, "held-out")
        whole = (
            batch.tokens if batch.documents is None else batch.tokens[batch.documents[:, 0] == batch.documents[:, -1]]
        )
        kept.append(whole)
        found += len(whole)
        if found >= sequences:
            return np.concatenate(kept)[:sequences]
    raise UsageError(
        f"--length {length}: only {found} of {DRAWS * sequences} held-out windows of {task} lie inside one document; "
        "expected a smaller --length or --sequences"
    )
