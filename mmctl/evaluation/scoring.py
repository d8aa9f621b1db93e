"""Measuring one model on one suite: draw the held-out examples, run the model, score, resample.

Examples depend on (evaluation.seed, task, length) only, so every model, arm and seed is measured on the same ones and
differences are paired. Everything runs in float32, so that a score cannot depend on how examples are batched.
"""

from __future__ import annotations

import platform
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from mmctl import __version__
from mmctl.data import build_task
from mmctl.data.task import Batch, Ratio, Task
from mmctl.errors import UsageError
from mmctl.evaluation.bootstrap import interval, resample_counts
from mmctl.evaluation.changes import AS_TRAINED, Changes
from mmctl.evaluation.config import EvaluationConfig
from mmctl.evaluation.suites import ATTENTION, VALIDATION, settings_dict, suite_tasks
from mmctl.evaluation.versions import RECORDED, version

CHUNK = 32
"""Examples drawn from one generator: asking for more examples never changes the first ones."""
STREAM = 2
"""Marks evaluation's generators, beside the mixture's training (0) and held-out (1) streams."""

ProgressCallback = Callable[[str, int, int], None]
"""(what, examples done, examples in all)."""


def evaluate(
    model: Any,
    config: Any,
    suite: str,
    *,
    changes: Changes = AS_TRAINED,
    settings: EvaluationConfig | None = None,
    device: str | torch.device = "cpu",
    progress: ProgressCallback | None = None,
    untrained: bool = False,
    tasks: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Scores of `model` (on `device`, as the run's `config` built it) on every task of `suite` and every length.

    Tasks that are not in the mixture are measured only if `untrained`, or named in `tasks`, which leaves out all
    others; what is left out stands under "skipped" with its reason and has no score. `changes` are undone afterwards.
    The result is JSON-ready. Raises UsageError for an unknown suite or a change the model does
    not know.
    """
    if suite == VALIDATION:
        from mmctl.evaluation.validation import validate

        return validate(model, config, device)
    if suite == ATTENTION:
        from mmctl.evaluation.attention import attend

        return attend(model, config, device, settings)
    settings = settings or config.evaluation
    started, was_training = time.perf_counter(), getattr(model, "training", False)
    trained = config.data.tasks_in_mixture()
    skipped: dict[str, str] = {}
    scores: dict[str, dict[str, Any]] = {}
    notes: dict[str, dict[str, Any]] = {}
    corpora: dict[str, Any] = {}
    plan: list[tuple[Task, int]] = []
    members = [name for name in suite_tasks(suite) if tasks is None or name in tasks]
    for name in members:
        if name not in trained and not untrained and tasks is None:
            skipped[name] = "not in the mixture this run was trained on"
            continue
        try:
            task = build_task(name, config.data)
        except UsageError as error:
            skipped[name] = str(error)
            continue
        for multiple in settings.lengths:
            length = multiple * config.data.length
            reason = task.unavailable(length, "held-out")
            if reason is None and (delay := changes.delay) is not None and delay >= length:
                reason = (
                    f"m={delay} leaves the long-term memory nothing to read in {length} tokens (that is its removal)"
                )
            if reason:
                skipped[f"{name}@{multiple}x"] = reason
            else:
                plan.append((task, multiple))
        if any(planned is task for planned, _ in plan) and (content := task.fingerprint()):
            corpora[name] = content

    total, done = sum(settings.examples_at(multiple) for _, multiple in plan), 0
    if hasattr(model, "eval"):
        model.eval()
    try:
        with changes.applied(model, config) as change_notes, torch.inference_mode():
            for task, multiple in plan:
                ratios = _measure(model, task, multiple, config.data.length, settings, torch.device(device))
                scores |= _summarise(task.name, multiple, ratios, settings)
                length = multiple * config.data.length
                notes[f"{task.name}@{multiple}x"] = {"chance": task.chance(length), **task.notes(length)}
                done += settings.examples_at(multiple)
                if progress is not None:
                    progress(f"{task.name}@{multiple}x", done, total)
            about_changes = change_notes()
    finally:
        if was_training:
            model.train()
    return {
        "suite": suite,
        "changes": changes.record(),
        **({"change_notes": about_changes} if about_changes else {}),
        "settings": settings_dict(config, settings),
        "scores": scores,
        "tasks": notes,
        "untrained": [name for name in members if name not in trained and name not in skipped],
        "skipped": skipped,
        "corpora": corpora,
        RECORDED: {name: version(name) for name in dict.fromkeys(task.name for task, _ in plan)},
        "seconds": round(time.perf_counter() - started, 3),
        "versions": {
            "mmctl": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def examples(task: Task, length: int, seed: int, number: int) -> list[Batch]:
    """The first `number` held-out examples of a task at a length, in chunks: the same whoever asks."""
    chunks = []
    for chunk in range(-(-number // CHUNK)):
        rng = np.random.default_rng([seed, STREAM, zlib.crc32(task.name.encode()), length, chunk])
        chunks.append(_rows(task.sample(rng, CHUNK, length, "held-out"), slice(0, number - chunk * CHUNK)))
    return chunks


def _measure(
    model: Any, task: Task, multiple: int, training_length: int, settings: EvaluationConfig, device: torch.device
) -> dict[str, Ratio]:
    length = multiple * training_length
    drawn = examples(task, length, settings.seed, settings.examples_at(multiple))
    return score(model, task, drawn, device, settings.batch_tokens)


def score(
    model: Any, task: Task, batches: Sequence[Batch], device: torch.device, batch_tokens: int
) -> dict[str, Ratio]:
    """The task's scores over `batches`, summed by sequence. At most `batch_tokens` tokens, or one sequence, go through
    the model at once, which cannot change a score."""
    parts: dict[str, list[Ratio]] = {}
    for batch in batches:
        rows = max(1, batch_tokens // batch.tokens.shape[1])
        losses, correct = np.zeros(batch.tokens.shape), np.zeros(batch.tokens.shape, dtype=bool)
        for first in range(0, len(batch.tokens), rows):
            some = slice(first, first + rows)
            losses[some], correct[some], read = _run(model, _rows(batch, some), device, task)
            for key, values in read.items():
                batch.extras.setdefault(key, np.zeros(batch.tokens.shape, values.dtype))[some] = values
        for name, ratio in task.scores(batch, losses, correct).items():
            parts.setdefault(name, []).append(ratio)
    return {
        name: Ratio(np.concatenate([r.total for r in rs]), np.concatenate([r.count for r in rs]), rs[0].accuracy)
        for name, rs in parts.items()
    }


def _run(
    model: Any, batch: Batch, device: torch.device, task: Task
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """(B, T) losses in nats, hits, and what the task reads of the logits; meaningful at labelled positions. Logits are
    computed there only."""
    labelled = torch.from_numpy(batch.labelled).to(device)
    tokens = torch.from_numpy(batch.tokens).to(device)
    documents = None if batch.documents is None else torch.from_numpy(batch.documents).to(device)
    logits = model(tokens, documents=documents, labelled=labelled)
    wanted = torch.from_numpy(batch.targets).to(device)[labelled]
    losses, correct = np.zeros(batch.tokens.shape), np.zeros(batch.tokens.shape, dtype=bool)
    losses[batch.labelled] = F.cross_entropy(logits.float(), wanted, reduction="none").cpu().numpy()
    correct[batch.labelled] = (logits.argmax(dim=-1) == wanted).cpu().numpy()
    read = task.read(batch, logits.float().cpu().numpy()) if task.reads_distributions else {}
    return losses, correct, read


def _summarise(name: str, multiple: int, ratios: dict[str, Ratio], settings: EvaluationConfig) -> dict[str, Any]:
    """Values, intervals and per-example sums under "<task>/<score>@<multiple>x"; a score without labels is absent."""
    number = settings.examples_at(multiple)
    rng = np.random.default_rng([settings.seed, STREAM, zlib.crc32(b"bootstrap"), number])
    draws = resample_counts(number, settings.resamples, rng)
    summary = {}
    for key, ratio in ratios.items():
        if not ratio.count.sum():
            continue
        bounds = interval(ratio.total.astype(np.float64), ratio.count.astype(np.float64), draws, ratio.accuracy)
        sums = ("correct", "total") if ratio.accuracy else ("sum", "count")
        summary[f"{name}/{key}@{multiple}x"] = {
            "value": ratio.value,
            "n": int(np.count_nonzero(ratio.count)),
            "interval": None if bounds is None else list(bounds),
            sums[0]: ratio.total.tolist(),
            sums[1]: ratio.count.tolist(),
        }
    return summary


def _rows(batch: Batch, rows: slice) -> Batch:
    documents = None if batch.documents is None else batch.documents[rows]
    extras = {key: values[rows] for key, values in batch.extras.items()}
    return Batch(batch.tokens[rows], batch.targets[rows], documents, extras)
