"""In-context classification of a model: accuracy by shots, mean and best prompt apart."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mmctl import __version__
from mmctl.classification.datasets import Examples
from mmctl.classification.prompts import LABELS, PROMPTS, answer, decided, demonstrations, label_names, prompt
from mmctl.data.tokenizers import Tokenizer
from mmctl.errors import UsageError
from mmctl.evaluation.bootstrap import interval, resample_counts

TESTS = 500
"""Test examples in the published evaluation."""
MAX_TOKENS = 100
RESAMPLES = 2000
TOGETHER = 8
"""Batches of prompts sorted by length together, and between two signs of progress."""

Progress = Callable[[str, int, int], None]


def measure(
    model: Any,
    tokenizer: Tokenizer,
    examples: Examples,
    shots: list[int],
    *,
    classes: int | None = None,
    number: int = TESTS,
    seed: int = 0,
    batch: int = 8,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Scores "<set>-<labels>/accuracy-mean@<shots>", "-best" and each prompt's own, JSON-ready like every evaluation.

    "-mean" is over the four prompts (delimiter x order); "-best" is the best of them chosen on these very examples, as
    published: biased upwards, so it has no interval. `classes`: only that many, drawn by `seed`. The same
    demonstrations stand in every prompt. For tacred also "f1-mean", micro-averaged over valid answers. UsageError for
    impossible numbers.
    """
    chosen = _classes(examples, classes, seed)
    tests = [(text, label) for text, label in examples.test if label in set(chosen)]
    order = np.random.default_rng([seed, zlib.crc32(examples.name.encode())]).permutation(len(tests))
    tests = [tests[i] for i in order[:number]]
    if not tests:
        raise UsageError(f"{examples.name}: no test example of the {len(chosen)} classes chosen")
    if not shots or min(shots) < 0:
        raise UsageError(f"--shots {','.join(map(str, shots))}: expected whole numbers of at least 0")
    started = time.perf_counter()
    total, done = len(shots) * len(PROMPTS) * len(tests), 0
    scores: dict[str, Any] = {}
    rng = np.random.default_rng([seed, zlib.crc32(b"bootstrap")])
    draws = resample_counts(len(tests), RESAMPLES, rng)
    longest = 0
    for count in sorted(set(shots)):
        rounds = demonstrations(examples, chosen, count, seed)
        for kind in LABELS:
            names = label_names(examples, chosen, kind, seed)
            rows, f1 = [], []
            for style in (p for p in PROMPTS if p.labels == kind):
                texts = [prompt(examples, rounds, names, style, text, seed) for text, _ in tests]

                def told(number: int, what: str = f"{examples.name}, {count} shots") -> None:
                    nonlocal done
                    done += number
                    if progress is not None:
                        progress(what, done, total)

                answers, most = _answers(model, tokenizer, examples.name, texts, list(names.values()), batch, told)
                longest = max(longest, most)
                wanted = [names[label].lower() for _, label in tests]
                hit = np.array([a == w for a, w in zip(answers, wanted, strict=True)], dtype=np.float64)
                rows.append(hit)
                f1.append(_f1(answers, wanted, {name.lower() for name in names.values()}))
                scores[f"{examples.name}-{kind}/accuracy-{style.delimiter}-{style.order}@{count}"] = _score(hit, draws)
            key = f"{examples.name}-{kind}"
            scores[f"{key}/accuracy-mean@{count}"] = _score(np.mean(rows, axis=0), draws)
            best = {"value": float(max(row.mean() for row in rows)), "n": len(tests), "interval": None}
            scores[f"{key}/accuracy-best@{count}"] = best
            if examples.name == "tacred":
                scores[f"{key}/f1-mean@{count}"] = {"value": float(np.mean(f1)), "n": len(tests), "interval": None}
    return {
        "suite": "classification",
        "changes": {"remove_long_term": False, "delay": None},
        "settings": {
            "data": examples.name,
            "sha256": examples.sha256,
            "classes": len(chosen),
            "shots": sorted(set(shots)),
            "tests": len(tests),
            "seed": seed,
            "tokenizer": tokenizer.name,
            "longest_prompt": longest,
        },
        "scores": scores,
        "tasks": {examples.name: {"chance": 1 / len(chosen)}},
        "skipped": {},
        "seconds": round(time.perf_counter() - started, 3),
        "versions": {"mmctl": __version__, "numpy": np.__version__},
    }


def _answers(
    model: Any,
    tokenizer: Tokenizer,
    name: str,
    texts: Sequence[str],
    valid: Sequence[str],
    batch: int,
    told: Callable[[int], object],
) -> tuple[list[str], int]:
    """The model's answer to each prompt, and the tokens of the longest. The demonstrations, which all prompts share,
    are read once; an answer that can no longer become a valid one is not finished, for it is wrong either way."""
    from mmctl.generation import common_beginning, generate, read_beginning

    lengths: list[int] = []

    def encoded(some: Sequence[str]) -> Iterator[list[int]]:
        for text in some:
            tokens = tokenizer.encode(text)
            lengths.append(len(tokens))
            yield tokens

    shared = common_beginning(encoded(texts))
    longest = max(lengths)
    beginning = read_beginning(model, shared, longest - len(shared) + MAX_TOKENS) if shared else None
    answers: list[str] = []
    for first in range(0, len(texts), TOGETHER * batch):
        made = generate(
            model,
            tokenizer,
            list(encoded(texts[first : first + TOGETHER * batch])),
            max_tokens=MAX_TOKENS,
            stop=["\n"],
            batch=batch,
            allowed=tokenizer.size,
            beginning=beginning,
            enough=decided(name, valid),
        )
        answers += [answer(name, each.text) for each in made]
        told(len(made))
    return answers, longest


def _classes(examples: Examples, count: int | None, seed: int) -> list[str]:
    there = examples.classes
    if count is None:
        return there
    if not 2 <= count <= len(there):
        raise UsageError(f"--classes {count}: expected 2 to {len(there)}, the classes of {examples.name}")
    order = np.random.default_rng([seed, zlib.crc32(b"classes")]).permutation(len(there))
    return sorted(there[i] for i in order[:count])


def _score(hit: np.ndarray, draws: np.ndarray) -> dict[str, Any]:
    bounds = interval(hit, np.ones(len(hit)), draws, accuracy=True)
    return {"value": float(hit.mean()), "n": len(hit), "interval": None if bounds is None else list(bounds)}


def _f1(answers: list[str], wanted: list[str], valid: set[str]) -> float:
    """Micro F1 in which an answer counts as given only if it is a valid class (LongICLBench's TACRED score)."""
    given = sum(a in valid for a in answers)
    right = sum(a == w for a, w in zip(answers, wanted, strict=True))
    if not given or not right:
        return 0.0
    precision, recall = right / given, right / len(wanted)
    return 2 * precision * recall / (precision + recall)
