"""What a configuration's data is: the mixture, the tasks' sequences as a person reads them, the corpus and its
division."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from mmctl.data import build_task, fingerprint, task_class
from mmctl.data.mixture import STREAMS
from mmctl.data.task import IGNORE, Split, Task

COUNTED = 64
"""Sequences that shares of labelled tokens are counted on."""


def inspect(config: Any, split: Split = "train") -> dict[str, Any]:
    """JSON-ready description of `config.data`: sizes, the mixture, each task with one example, the corpora.

    Examples are the first sequences of the task that step 0 of this seed would take (of the held-out batches, for split
    "held-out"). Raises UsageError for a corpus that cannot be read or is too short.
    """
    data = config.data
    names = data.tasks_in_mixture()
    weights = {name: data.mixture[name] for name in names}
    return {
        "length": data.length,
        "batch": data.batch,
        "vocabulary": data.vocabulary,
        "tokenizer": data.tokenizer,
        "steps": config.training.steps,
        "tokens": config.training.steps * data.batch * data.length,
        "seed": config.seed,
        "split": split,
        "tasks": {
            name: {
                "proportion": weights[name] / sum(weights.values()),
                "sequences_per_step": data.batch * weights[name] / sum(weights.values()),
                "loss_weight": data.loss_weights.get(name, 1.0),
                **_task(build_task(name, data), config, split),
            }
            for name in names
        },
        "fingerprint": fingerprint(data),
    }


def _task(task: Task, config: Any, split: Split) -> dict[str, Any]:
    length = config.data.length
    task.check_length(length)
    rng = np.random.default_rng([config.seed, STREAMS[split], zlib.crc32(task.name.encode()), 0])
    batch = task.sample(rng, COUNTED, length, split)
    found: dict[str, Any] = {
        "dimension": task_class(task.name).dimension,
        "labelled_share": float(batch.labelled.mean()),
        "chance": task.chance(length),
        "notes": task.notes(length),
        "example": {
            "tokens": batch.tokens[0].tolist(),
            "targets": [None if t == IGNORE else int(t) for t in batch.targets[0]],
            "documents": None if batch.documents is None else batch.documents[0].tolist(),
            "words": [task.word(int(t)) for t in batch.tokens[0]],
            "target_words": [None if t == IGNORE else task.word(int(t)) for t in batch.targets[0]],
        },
    }
    corpus = getattr(task, "corpus", None)
    if corpus is not None:
        found["corpus"] = {
            "label": corpus.label,
            "sha256": corpus.sha256,
            **{part: _documents(corpus.part(part)) for part in STREAMS},
        }
    return found


def _documents(part: Any) -> dict[str, Any]:
    """Bytes and documents of a part of a corpus, and how long its documents are."""
    sizes = np.diff(np.append(part.starts, len(part.stream)))
    quartiles = [int(q) for q in np.quantile(sizes, [0, 0.25, 0.5, 0.75, 1])] if len(sizes) else None
    return {
        "bytes": len(part.stream),
        "documents": len(sizes),
        "mean_bytes": float(sizes.mean()) if len(sizes) else None,
        "quartiles_bytes": quartiles,
    }
