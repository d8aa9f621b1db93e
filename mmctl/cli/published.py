"""The published evaluations behind `mmctl eval --suite`: ruler, classification, lm-eval."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmctl.errors import UsageError

SUITES = ("ruler", "classification", "lm-eval")
NAMES = "--suite " + ", ".join(SUITES)
SAMPLES = 500
"""Samples a task in the published evaluations."""
BATCH = 8
"""Prompts decoded at once; changes no score."""
MOST_SAID = 4
"""Lines on what could not be measured."""
RULER_SOURCES = ("essay", "qa_1", "qa_2")

Told = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Asked:
    """What the command line says beside the suite's name."""

    tasks: list[str]
    length: str | None
    shots: str | None
    samples: int | None
    data: list[str]
    classes: int | None
    position: str

    def check(self, suites: Sequence[str]) -> None:
        """UsageError for what does not go together, before a model is loaded."""
        if len(suites) != 1:
            raise UsageError(f"--suite {suites[0]} and --suite {suites[1]}: a published suite is measured alone")
        if self.samples is not None and self.samples < 1:
            raise UsageError(f"--samples {self.samples}: expected a whole number of at least 1")
        mine = {
            "ruler": {"--length", "--samples", "--data", "--position", "--tasks"},
            "classification": {"--shots", "--samples", "--data", "--classes"},
            "lm-eval": {"--shots", "--samples", "--data", "--tasks"},
        }[suites[0]]
        given = {
            "--tasks": self.tasks,
            "--length": self.length,
            "--shots": self.shots,
            "--samples": self.samples,
            "--data": self.data,
            "--classes": self.classes,
            "--position": self.position != "ruler",
        }
        for option, value in given.items():
            if value and option not in mine:
                raise UsageError(
                    f"{option}: --suite {suites[0]} has no such option; it takes {', '.join(sorted(mine))}"
                )


def measure(suite: str, folder: Any, model: Any, asked: Asked, config: Any, told: Told) -> dict[str, Any]:
    """One published suite on a loaded model, with the tokenizer of its run."""
    from mmctl.data.tokenizers import run_tokenizer

    tokenizer = run_tokenizer(folder)
    number, seed = asked.samples or SAMPLES, config.evaluation.seed
    if suite == "ruler":
        from mmctl import ruler
        from mmctl.ruler.measure import measure as run

        lengths = numbers("--length", asked.length) or [k * config.data.length for k in config.evaluation.lengths]
        chosen = ruler.wanted(asked.tasks)
        return run(
            model,
            tokenizer,
            chosen,
            lengths,
            number=number,
            seed=seed,
            sources=_sources(asked),
            batch=BATCH,
            progress=told,
        )
    if suite == "classification":
        from mmctl import classification

        if len(asked.data) != 1:
            raise UsageError("--data: --suite classification expects one data set, such as --data banking77=FOLDER")
        examples = classification.read(asked.data[0])
        counts = numbers("--shots", asked.shots) or [1, 2, 5]
        return classification.measure(
            model,
            tokenizer,
            examples,
            counts,
            classes=asked.classes,
            number=number,
            seed=seed,
            batch=BATCH,
            progress=told,
        )
    from mmctl.harness.measuring import measure as harness

    include = [word.partition("=")[2] for word in asked.data if word.startswith("tasks=")]
    if len(include) != len(asked.data) or len(include) > 1:
        raise UsageError("--data: --suite lm-eval expects tasks=FOLDER, a folder of task files")
    given = numbers("--shots", asked.shots)
    if len(given) > 1:
        raise UsageError(f"--shots {asked.shots}: --suite lm-eval takes one number")
    return harness(
        model,
        tokenizer,
        asked.tasks,
        limit=asked.samples,
        shots=given[0] if given else None,
        include=Path(include[0]) if include else None,
        batch=BATCH,
        seed=seed,
    )


def _sources(asked: Asked) -> Any:
    from mmctl.data.docs_qa import POSITIONS
    from mmctl.errors import nearest
    from mmctl.ruler.haystack import Haystack
    from mmctl.ruler.questions import read
    from mmctl.ruler.registry import Sources

    if asked.position not in POSITIONS:
        raise UsageError(
            f'--position "{asked.position}": expected one of {", ".join(POSITIONS)}{nearest(asked.position, POSITIONS)}'
        )
    sources = Sources(position=asked.position)
    for word in asked.data:
        name, equals, path = word.partition("=")
        if name not in RULER_SOURCES or not equals or not path:
            raise UsageError(
                f'--data "{word}": expected NAME=PATH with one of {", ".join(RULER_SOURCES)}{nearest(name, RULER_SOURCES)}'
            )
        if name == "essay":
            sources.essay = Haystack(path)
            sources.essay.words(1)
        else:
            sources.questions[name] = read(path)
    return sources


def listed(option: str, words: Sequence[str] | None) -> list[str]:
    """Names given with commas, or by repeating the option. UsageError for an empty one."""
    found = [name.strip() for word in words or [] for name in word.split(",")]
    if "" in found:
        raise UsageError(f"{option}: a name is empty; expected names with commas between")
    return list(dict.fromkeys(found))


def numbers(option: str, text: str | None) -> list[int]:
    """`1,2,5`. UsageError for anything but whole numbers."""
    if text is None:
        return []
    if not re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text):
        raise UsageError(f'{option} "{text}": expected whole numbers with commas between')
    return sorted({int(word) for word in text.split(",")})


def show(evaluations: Iterable[dict[str, Any]], details: bool) -> None:
    """A table of scores: a row a score, a column a length or number of shots."""
    from mmctl.cli.options import console, plain, table
    from mmctl.errors import printable
    from mmctl.evaluation.report import cell, title

    for evaluation in evaluations:
        columns = list(dict.fromkeys(name.rpartition("@")[2] for name in evaluation["scores"]))
        drawn = table("score", *columns, title=title(evaluation), right=tuple(range(1, len(columns) + 1)))
        drawn.caption = "95% intervals"
        rows: dict[str, dict[str, Any]] = {}
        for name, score in evaluation["scores"].items():
            row, _, column = name.rpartition("@")
            if details or not re.search(r"-(depth\d|(return|space)-(fixed|shuffled))$", row):
                rows.setdefault(row, {})[column] = score
        for row, cells in rows.items():
            drawn.add_row(plain(row), *(cell(cells.get(column)) for column in columns))
        if rows:
            console().print(drawn)
        left_out = list(evaluation["skipped"].items())
        for what, reason in left_out[:MOST_SAID]:
            print(printable(f"{evaluation['suite']}: {what} not measured: {reason}"), file=sys.stderr)
        if (more := len(left_out) - MOST_SAID) > 0:
            print(f"{evaluation['suite']}: {more} more not measured; --json prints every reason", file=sys.stderr)
