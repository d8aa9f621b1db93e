"""Where the last query looks, in numbers: how flat its weights are far from it, and how much lies near it.

Memory Mosaics (arXiv 2405.06394), the attention-score figure: the weight of the *last* query on every earlier position,
averaged over held-out sequences in evaluation mode. A mosaic's curve is flat far from the query and peaks near it.

*Flatness* is taken over the visible positions further than `near` before the query: 1 / (1 + CV^2), CV the standard
deviation over the mean of their weights. It is the effective share of those positions (their participation ratio): 1
where all weigh the same, 1/n where one of n has everything. Of a curve averaged over few sequences part of CV^2 is
sampling noise, which is subtracted. *Peak mass* is the weight on the last `near` positions. Both are taken per head of
one layer's memory, then averaged. Figures (plots/attention_distribution.py) and scores of runs are measured here alike.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mmctl.errors import UsageError
from mmctl.evaluation.changes import AS_TRAINED
from mmctl.evaluation.suites import ATTENTION, settings_dict

if TYPE_CHECKING:
    from mmctl.config import Config

BATCH_TOKENS = 8192
"""Tokens measured at once."""
SEED = 512
"""Marks the generators of these sequences: every run is measured on the same ones."""
DRAWS = 20
"""Times as many windows as wanted are drawn, at most, until enough of them lie inside one document."""
FAR = ("long-term", "contextual", "attention-long", "attention")
"""Memories that reach far, by what they are called: the first that a model has is the one compared between models."""
SHORT = ("short-term", "attention-short")
"""Those that see `model.window` positions only."""


def peak_begin(length: int, near: int) -> int:
    """First of the `near` positions before the last query, which stands at length - 1 (and may see itself too)."""
    return max(length - 1 - near, 0)


@dataclass(frozen=True)
class Panel:
    """Weights of one layer's memory: mean and standard deviation over sequences, each (heads, length)."""

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    def numbers(self, near: int, sequences: int) -> dict[str, Any]:
        """Flatness, what it is made of, and peak mass, averaged over heads and per head.

        `variation` is CV^2 as measured, `noise` the CV^2 that sampling `sequences` sequences alone would give. None
        where fewer than two visible positions are far from the end, and for a head that gives those no weight at all.
        """
        begin = peak_begin(self.mean.shape[1], near)
        visible = self.mean[:, :begin].max(axis=0, initial=0.0) > 0.0
        heads: dict[str, list[float | None]] = {"flatness": [], "variation": [], "noise": [], "peak_mass": []}
        for mean, deviation in zip(self.mean, self.deviation, strict=True):
            far, level = mean[:begin][visible], mean[:begin][visible].sum() / max(visible.sum(), 1)
            shares: tuple[float | None, ...] = (None, None, None)
            if visible.sum() >= 2 and level > 0.0:
                variation = float(far.var() / level**2)
                noise = float((deviation[:begin][visible] ** 2).mean() / sequences / level**2)
                shares = flatness(variation, noise), variation, noise
            for values, value in zip(heads.values(), (*shares, float(mean[begin:].sum())), strict=True):
                values.append(value)
        return {**{name: average(values) for name, values in heads.items()}, "per_head": heads}


def flatness(variation: float, noise: float) -> float:
    """Effective share of positions, of the CV^2 of their weights and the part of it that is sampling noise."""
    return 1.0 / (1.0 + max(variation - noise, 0.0))


def average(values: Iterable[float | None]) -> float | None:
    """Mean of the numbers there are; None of none."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


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


def measure_on(model: Any, tokens: NDArray[np.int64], device: Any) -> tuple[dict[str, Panel], int]:
    """`measure` of a model on `device` over tokens (sequences, T), some at a time."""
    import torch

    step = max(1, BATCH_TOKENS // tokens.shape[1])
    parts = (torch.from_numpy(tokens[i : i + step]).to(device) for i in range(0, len(tokens), step))
    return measure(model, parts)


def usual_task(config: Config) -> str:
    """What the sequences are of: `text` where the run trained on it, else its heaviest task."""
    mixture = config.data.mixture
    return "text" if mixture.get("text", 0) > 0 else max(mixture, key=mixture.__getitem__)


def held_out(config: Config, task: str, sequences: int, length: int, seed: int = 0) -> NDArray[np.int64]:
    """`sequences` held-out sequences of `length` tokens of the run's own data, the same ones at every call. UsageError
    where there are not so many."""
    from mmctl.data import build_task

    source = build_task(task, config.data)
    if reason := source.unavailable(length, "held-out"):
        raise UsageError(reason)
    # A window over two documents would show a query what it never sees in training, so such windows are passed over.
    rng, kept, found = np.random.default_rng([SEED, length, seed]), [], 0
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
        f"only {found} of {DRAWS * sequences} held-out windows of {length} tokens of {task} lie inside one document"
    )


def attend(model: Any, config: Config, device: Any = "cpu", settings: Any = None) -> dict[str, Any]:
    """Scores of `model` (on `device`) at every length of `settings` (default: config.evaluation), in an evaluation's form.

    `near` is settings.attention, at every length; at each, settings.examples sequences are read, since a curve's noise
    does not shrink with the length. "panels" holds every layer and head. What cannot be measured is "skipped".
    """
    from mmctl.data import build_task

    settings, started = settings or config.evaluation, time.perf_counter()
    scores: dict[str, Any] = {}
    panels: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    task = usual_task(config)
    content = build_task(task, config.data).fingerprint()
    for multiple in settings.lengths:
        length = multiple * config.data.length
        if why := nothing_far(length, settings.attention):
            skipped[f"{ATTENTION}@{multiple}x"] = why
            continue
        try:
            tokens = held_out(config, task, settings.examples, length, settings.seed)
            found, count = measure_on(model, tokens, device)
        except UsageError as error:  # too long for the corpus, or a model without weights to look at
            skipped[f"{ATTENTION}@{multiple}x"] = str(error)
            continue
        numbers = {name: panel.numbers(settings.attention, count) for name, panel in found.items()}
        panels[f"{multiple}x"] = numbers
        for name, value in summed_up(numbers).items():
            scores[f"{ATTENTION}/{name}@{multiple}x"] = {"value": value, "n": count, "interval": None}
    return {
        "suite": ATTENTION,
        "changes": AS_TRAINED.record(),
        "settings": settings_dict(config, settings, ATTENTION),
        "scores": scores,
        "tasks": {},
        "of": task,
        "panels": panels,
        "untrained": [],
        "skipped": skipped,
        "corpora": {task: content} if content else {},
        "seconds": round(time.perf_counter() - started, 3),
    }


def summed_up(panels: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """{score: value} of one length's panels ("layer0/long-term"): means over layers of each memory's flatness and peak
    mass, flatness of the memory that reaches far, and peak mass over all heads of all memories. Missing where there is
    none."""
    by_memory: dict[str, list[Mapping[str, Any]]] = {}
    for name, numbers in panels.items():
        by_memory.setdefault(name.partition("/")[2], []).append(numbers)
    far = far_memory(list(by_memory))
    found = {
        **{f"flatness-{memory}": average(n["flatness"] for n in own) for memory, own in by_memory.items()},
        **{f"peak-mass-{memory}": average(n["peak_mass"] for n in own) for memory, own in by_memory.items()},
        "flatness-far": None if far is None else average(n["flatness"] for n in by_memory[far]),
        "peak-mass": average(head for n in panels.values() for head in n["per_head"]["peak_mass"]),
    }
    return {name: value for name, value in found.items() if value is not None}


def far_memory(memories: Sequence[str]) -> str | None:
    """Which of a model's memories reaches far."""
    return next((name for name in FAR if name in memories), None)


def nothing_far(length: int, near: int) -> str | None:
    """Why nothing is a score at `length` tokens, whatever the model: all positions lie near. None where some are far."""
    return (
        f"evaluation.attention={near} leaves nothing far in {length} tokens" if peak_begin(length, near) < 2 else None
    )


def score_names(memories: Sequence[str], window: int | None, near: int, length: int) -> list[str]:
    """Names of the scores at `length` tokens of a model with these memories; none where all of them lie near. Neither
    does a window that ends within `near` leave anything far; attention's holds the query itself, a mosaic's does not."""
    if nothing_far(length, near):
        return []
    seen = {name: (window or 0) - name.startswith("attention") for name in SHORT}
    far = [name for name in memories if name not in SHORT or seen[name] > near + 1]
    names = [*(f"flatness-{name}" for name in far), *(f"peak-mass-{name}" for name in memories), "peak-mass"]
    return [*names, "flatness-far"] if far_memory(memories) else names
