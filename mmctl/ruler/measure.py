"""RULER on a model: generate an answer to every prompt, score it, with intervals by task, length and depth."""

from __future__ import annotations

import platform
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from mmctl import __version__
from mmctl.data.answers import DEPTHS
from mmctl.data.tokenizers import Tokenizer
from mmctl.errors import UsageError
from mmctl.evaluation.bootstrap import interval, resample_counts
from mmctl.ruler.registry import Ruler, Sources, samples
from mmctl.ruler.scoring import score

SAMPLES = 500
"""Samples a task and length in the published evaluation."""
RESAMPLES = 2000
QUESTIONS = ("qa_1", "qa_2")
"""Their mean is what Memory Mosaics v2 reports."""

Progress = Callable[[str, int, int], None]


def measure(
    model: Any,
    tokenizer: Tokenizer,
    tasks: list[Ruler],
    lengths: list[int],
    *,
    number: int = SAMPLES,
    seed: int = 42,
    sources: Sources | None = None,
    batch: int = 8,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Scores "<task>/accuracy@<length>" in [0, 1], greedy decoding, JSON-ready like every evaluation.

    Also "-depth0" (the beginning) to "-depth4" of each task, and the means "qa/accuracy" and "ruler/accuracy" where all
    their tasks were measured. A length too short for a task stands under "skipped". Every answer stands under
    "samples". UsageError for a wrong number of samples or length.
    """
    from mmctl.generation import generate

    sources = sources or Sources()
    if number < 1:
        raise UsageError(f"--samples {number}: expected a whole number of at least 1")
    for length in lengths:
        if length < 1:
            raise UsageError(f"--length {length}: expected a whole number of tokens, at least 1")
    started, skipped, rows = time.perf_counter(), {}, []
    scores: dict[str, Any] = {}
    resampled: dict[str, np.ndarray] = {}
    total, done = len(tasks) * len(lengths) * number, 0
    for length in lengths:
        for task in tasks:
            name = f"{task.name}@{length}"
            try:
                drawn = list(samples(task, length, lambda text: len(tokenizer.encode(text)), number, seed, sources))
            except UsageError as error:
                skipped[name] = str(error)
                done += number
                continue
            values, depths = np.zeros(number), np.array([sample.depth for sample in drawn])
            for first in range(0, number, batch):
                some = drawn[first : first + batch]
                made = generate(
                    model,
                    tokenizer,
                    [tokenizer.encode(sample.prompt) for sample in some],
                    max_tokens=task.generate,
                    batch=batch,
                    allowed=tokenizer.size,
                )
                for sample, answer in zip(some, made, strict=True):
                    values[sample.index] = score(answer.text, sample.references, task.any_match)
                    rows.append(
                        {
                            "task": task.name,
                            "length": length,
                            "index": sample.index,
                            "tokens": sample.tokens,
                            "size": sample.size,
                            "depth": round(sample.depth, 4),
                            "score": float(values[sample.index]),
                            "references": sample.references,
                            "answer": answer.text[:500],
                        }
                    )
                done += len(some)
                if progress is not None:
                    progress(name, done, total)
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            draws = resample_counts(number, RESAMPLES, rng)
            resampled[name] = draws @ values / number
            scores[f"{task.name}/accuracy@{length}"] = _score(values, np.ones(number), draws)
            parts = np.minimum(DEPTHS - 1, (depths * DEPTHS).astype(int))
            for depth in range(DEPTHS):
                there = (parts == depth).astype(np.float64)
                if there.any():
                    scores[f"{task.name}/accuracy-depth{depth}@{length}"] = _score(values * there, there, draws)
    for length in lengths:
        scores |= _means(scores, resampled, [task.name for task in tasks], length, number)
    return {
        "suite": "ruler",
        "changes": {"remove_long_term": False, "delay": None},
        "settings": {
            "lengths": lengths,
            "samples": number,
            "seed": seed,
            "position": sources.position,
            "tokenizer": tokenizer.name,
            "questions": {task.name: sources.of(task.name).name for task in tasks if task.name in QUESTIONS},
            **sources.essay.describe(),
        },
        "scores": scores,
        "skipped": skipped,
        "samples": rows,
        "seconds": round(time.perf_counter() - started, 3),
        "versions": {"mmctl": __version__, "numpy": np.__version__, "python": platform.python_version()},
    }


def _score(total: np.ndarray, count: np.ndarray, draws: np.ndarray) -> dict[str, Any]:
    bounds = interval(total, count, draws, accuracy=True)
    return {
        "value": float(total.sum() / count.sum()),
        "n": int(count.sum()),
        "interval": None if bounds is None else list(bounds),
    }


def _means(
    scores: dict[str, Any], resampled: dict[str, np.ndarray], tasks: list[str], length: int, number: int
) -> dict[str, Any]:
    """Means over tasks at one length; intervals from the tasks' own resamples, which are independent."""
    from mmctl.ruler.registry import RULER

    found = {}
    for name, members in (("qa", QUESTIONS), ("ruler", tuple(RULER))):
        keys = [f"{member}/accuracy@{length}" for member in members]
        if all(key in scores for key in keys) and set(members) <= set(tasks):
            value = float(np.mean([scores[key]["value"] for key in keys]))
            spread = np.mean([resampled[f"{member}@{length}"] for member in members], axis=0)
            low, high = (float(q) for q in np.quantile(spread, [0.025, 0.975]))
            bounds = None if low == high else [low, high]
            found[f"{name}/accuracy@{length}"] = {"value": value, "n": number * len(members), "interval": bounds}
    return found
