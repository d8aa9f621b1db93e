"""What the attention-distribution figure shows: weights of the last query of runs, measured as their scores are
(mmctl/evaluation/attention.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
    configuration: str = ""
    """What runs that differ in their seed alone have in common; "" for a run by itself."""
    name: str = ""
    """What such runs are called together."""

    def layers(self) -> list[int]:
        return sorted({int(name.partition("/")[0].removeprefix("layer")) for name in self.panels})

    def memories(self) -> list[str]:
        return list(dict.fromkeys(name.partition("/")[2] for name in self.panels))


@dataclass(frozen=True)
class Group:
    """Runs of one configuration, a seed each: drawn as one. Panels are named as a Distribution's are."""

    name: str
    seeds: tuple[Distribution, ...]

    @property
    def first(self) -> Distribution:
        return self.seeds[0]

    @property
    def alone(self) -> bool:
        return len(self.seeds) == 1

    def of(self, name: str) -> list[Panel]:
        """One panel a seed; [] where the model has no such layer or memory."""
        return [one.panels[name] for one in self.seeds if name in one.panels]

    def curves(self, name: str) -> NDArray[np.float64]:
        """(seeds, T) means over heads."""
        return np.stack([panel.mean.mean(axis=0) for panel in self.of(name)])

    def mean(self, name: str) -> NDArray[np.float64]:
        """(T,) mean of `curves`: of one seed itself; of several the mean of their logarithms, as they are drawn; NaN where
        one has no weight."""
        curves = self.curves(name)
        return curves[0] if len(curves) == 1 else np.exp(_logarithms(curves).mean(axis=0))

    def visible(self, name: str) -> NDArray[np.bool_]:
        """(T,) where some head of some seed has any weight."""
        return np.max([panel.mean.max(axis=0) for panel in self.of(name)], axis=0) > 0.0

    def band(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """The 95% interval of `mean` over seeds (Student's t, of logarithms) at every position; None for one seed."""
        from mmctl.sweeps.statistics import LEVEL, quantile

        curves = self.curves(name)
        if (n := len(curves)) < 2:
            return None
        logarithms = _logarithms(curves)
        half = quantile(LEVEL, n - 1) * logarithms.std(axis=0, ddof=1) / np.sqrt(n)
        return np.exp(logarithms.mean(axis=0) - half), np.exp(logarithms.mean(axis=0) + half)

    def numbers(self, name: str) -> dict[str, Any]:
        """Flatness and peak mass over seeds, each {"mean", "interval" (95%; null for one seed), "n"} or null; "runs" has
        every run's own, by head."""
        from mmctl.sweeps.statistics import summarise

        runs = {one.run: one.panels[name].numbers(one.near, one.sequences) for one in self.seeds if name in one.panels}
        found: dict[str, Any] = {}
        for what in ("flatness", "peak_mass"):
            summary = summarise([n[what] for n in runs.values() if n[what] is not None])
            interval = None if summary is None or summary.interval is None else list(summary.interval)
            found[what] = None if summary is None else {"mean": summary.mean, "interval": interval, "n": summary.n}
        return {**found, "runs": runs}


def _logarithms(curves: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.where(curves > 0.0, curves, np.nan))


def grouped(distributions: Sequence[Distribution]) -> list[Group]:
    """One group a configuration, in the order in which each comes first."""
    found: dict[str, list[Distribution]] = {}
    for one in distributions:
        found.setdefault(one.configuration or one.run, []).append(one)
    called = [own[0].run if len(own) == 1 else own[0].name for own in found.values()]
    return [
        Group(name if called.count(name) == 1 else f"{name} ({key})", tuple(own))
        for name, (key, own) in zip(called, found.items(), strict=True)
    ]


def collect(
    runs: Sequence[RunFolder],
    *,
    length: int | None = None,
    sequences: int = 128,
    task: str | None = None,
    near: int | None = None,
    progress: Callable[[str], None] | None = None,
    names: Mapping[str, str] | None = None,
) -> list[Distribution]:
    """Measure each run on the same held-out sequences of `task`.

    length: tokens a sequence (default: the training length the runs share); task: default `text` where the run trained
    on it, else its heaviest task; near: how many last positions count as the peak (default: what the runs were scored
    with, else the widest short-term window among them, a quarter of the length where none has one); names: {identity:
    what the runs of a configuration are called together} (default: model and run's name). Raises UsageError for a length or
    task that cannot be.
    """
    from mmctl.data import TASKS
    from mmctl.evaluation.corpora import check_corpora
    from mmctl.training.run import load_model, pick_device

    configs = [run.config() for run in runs]
    length = length or _shared_length(runs, configs)
    windows = [config.model.window for config in configs if getattr(config.model, "window", None)]
    scored = {config.evaluation.attention for config in configs}
    asked = scored.pop() if len(scored) == 1 else 0
    near = near or asked or min(max(windows, default=length // 4), length)
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
        own = config.model.name if config.model.name in run.name else f"{config.model.name}, {run.name}"
        name = (names or {}).get(run.identity, own)
        distributions.append(
            Distribution(run.label, config.model.name, chosen, length, count, near, panels, run.identity, name)
        )
        if progress:
            progress(f"{run.label}: {count} sequences of {length} tokens of {chosen}")
    return distributions


def _shared_length(runs: Sequence[RunFolder], configs: Sequence[Config]) -> int:
    lengths = {config.data.length for config in configs}
    if len(lengths) > 1:
        each = ", ".join(f"{run.label} {config.data.length}" for run, config in zip(runs, configs, strict=True))
        raise UsageError(f"the runs' training lengths differ ({each}): give --length")
    return int(lengths.pop())


def rows(distributions: Sequence[Distribution]) -> list[dict[str, Any]]:
    """Every plotted number: one row per configuration, layer, memory, curve (a head of a single run, or the mean) and
    position; `low` and `high` end the mean's 95% interval over seeds, where there are several."""
    table = []
    for group in grouped(distributions):
        for name in group.first.panels:
            layer, _, memory = name.partition("/")
            curves = [("mean", group.mean(name))]
            if group.alone:
                curves = [*((str(h), curve) for h, curve in enumerate(group.of(name)[0].mean)), *curves]
            band = group.band(name)
            for head, curve in curves:
                for position, weight in enumerate(curve):
                    table.append(
                        {
                            "run": group.name,
                            "model": group.first.model,
                            "layer": int(layer.removeprefix("layer")),
                            "memory": memory,
                            "head": head,
                            "position": position,
                            "weight": _number(weight),
                            "low": None if band is None else _number(band[0][position]),
                            "high": None if band is None else _number(band[1][position]),
                            "seeds": len(group.seeds),
                        }
                    )
    return table


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(f"{value:.6g}")


def summary(distributions: Sequence[Distribution]) -> dict[str, Any]:
    """Flatness and peak mass of every configuration, layer and memory: what the figure's JSON holds beside its origin."""
    first = distributions[0]
    return {
        "length": first.length,
        "near": first.near,
        "panels": {
            group.name: {
                "model": group.first.model,
                "task": group.first.task,
                "seeds": len(group.seeds),
                **{name: group.numbers(name) for name in group.first.panels},
            }
            for group in grouped(distributions)
        },
    }
