"""The 13 tasks with their published settings, and how a sample is made to fit a length."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mmctl.errors import UsageError, nearest
from mmctl.ruler import needles, questions, variables, wordlists
from mmctl.ruler.haystack import Haystack
from mmctl.ruler.questions import Questions

Count = Callable[[str], int]
"""Tokens of a text."""


@dataclass(frozen=True)
class Draft:
    """A prompt as a builder makes it."""

    prompt: str
    references: list[str]
    position: int
    """Character at which the (first) answer stands in the prompt."""


@dataclass(frozen=True)
class Sample:
    """One prompt of a task, with what counts as an answer."""

    task: str
    index: int
    prompt: str
    """Ends in the answer prefix."""
    references: list[str]
    tokens: int
    """Of the prompt; with the tokens to generate at most the length asked for."""
    size: int
    """Haystack: words of an essay, lines, documents or list words, as the task counts."""
    depth: float
    """Where the (first) answer stands, as a share of the prompt's characters."""


@dataclass
class Sources:
    """What the tasks are made from; each has a default that needs no download."""

    essay: Haystack = field(default_factory=Haystack)
    questions: dict[str, Questions] = field(default_factory=dict)
    """qa_1 and qa_2 by name; missing: made-up documents."""
    position: str = "ruler"
    """Of the document asked about: ruler (the published shuffle: the same place in every prompt of a size), uniform,
    sweep."""

    def of(self, task: str) -> Questions:
        if task not in self.questions:
            self.questions[task] = questions.made_up(two_hops=task == "qa_2")
        return self.questions[task]


Build = Callable[[random.Random, int, int, int, Sources], Draft]
"""(generator, haystack size, length, sample's index, sources) to a draft."""


@dataclass(frozen=True)
class Ruler:
    """One task: how a prompt of a given haystack size is built, and what its answer may cost."""

    name: str
    build: Build
    generate: int
    """Tokens to generate."""
    step: int
    """By how much a haystack shrinks when a sample does not fit: below 4,096 tokens at most 5, as published."""
    smallest: int
    any_match: bool = False
    """Question answering: one reference is enough (string_match_part); else the share of references found."""

    def shrink(self, length: int) -> int:
        return self.step if self.step > 100 else self.step if length >= 4096 else min(5, self.step)


def _needle(
    name: str, hay: str, keys: str = "words", values: str = "numbers", k: int = 1, v: int = 1, q: int = 1
) -> Ruler:
    def build(rng: random.Random, size: int, length: int, index: int, sources: Sources) -> Draft:
        spec = needles.Needles(hay, keys, values, max(k, q), v, q)
        return Draft(*needles.build(rng, size, spec, sources.essay))

    count = max(k, q) * v
    return Ruler(name, build, 128, 500 if hay == "essay" else 25, max(count, 1) if hay != "essay" else 8 * count)


def _variables(rng: random.Random, size: int, length: int, index: int, sources: Sources) -> Draft:
    return Draft(*variables.build(rng, size, example=length >= variables.EXAMPLE_FROM))


def _common(rng: random.Random, size: int, length: int, index: int, sources: Sources) -> Draft:
    return Draft(*wordlists.common_words(rng, size, length))


def _frequent(rng: random.Random, size: int, length: int, index: int, sources: Sources) -> Draft:
    return Draft(*wordlists.frequent_words(rng, size, length))


def _question(name: str) -> Ruler:
    def build(rng: random.Random, size: int, length: int, index: int, sources: Sources) -> Draft:
        return Draft(*questions.build(rng, size, index, sources.of(name), sources.position))

    return Ruler(name, build, 32, 10, 2, any_match=True)


RULER: dict[str, Ruler] = {
    task.name: task
    for task in (
        _needle("niah_single_1", "noise"),
        _needle("niah_single_2", "essay"),
        _needle("niah_single_3", "essay", values="uuids"),
        _needle("niah_multikey_1", "essay", k=4),
        _needle("niah_multikey_2", "needle"),
        _needle("niah_multikey_3", "needle", keys="uuids", values="uuids"),
        _needle("niah_multivalue", "essay", v=4),
        _needle("niah_multiquery", "essay", q=4),
        Ruler("vt", _variables, 30, 10, variables.HOPS + 1),
        Ruler("cwe", _common, 120, 10, wordlists.COMMON + 1),
        Ruler("fwe", _frequent, 50, 10, 60),
        _question("qa_1"),
        _question("qa_2"),
    )
}
"""The published 13, by name."""


def wanted(names: list[str]) -> list[Ruler]:
    """Tasks by name, all 13 without one. UsageError with the nearest name."""
    for name in names:
        if name not in RULER:
            raise UsageError(f'RULER task "{name}": no such task{nearest(name, RULER, "tasks")}')
    return [RULER[name] for name in names] or list(RULER.values())


def samples(task: Ruler, length: int, count: Count, number: int, seed: int, sources: Sources) -> Iterator[Sample]:
    """`number` samples whose prompt and answer fit `length` tokens, as `count` counts them.

    The largest haystack that fits is found on sample 0 by bisection; a later sample that does not fit takes a smaller
    one. A sample is a function of (seed, task, length, index, sources). UsageError when even the smallest haystack does
    not fit.
    """
    size = _largest(task, length, count, seed, sources)
    for index in range(number):
        used = size
        while True:
            draft = task.build(_generator(seed, task, length, index), used, length, index, sources)
            tokens = count(draft.prompt)
            if tokens + task.generate <= length:
                break
            if used <= task.smallest:
                raise UsageError(_too_short(task, length, tokens))
            used = max(task.smallest, used - task.shrink(length))
        depth = draft.position / max(1, len(draft.prompt))
        yield Sample(task.name, index, draft.prompt, draft.references, tokens, used, depth)


def _generator(seed: int, task: Ruler, length: int, index: int) -> random.Random:
    return random.Random(f"{seed}/{task.name}/{length}/{index}")  # seeded by the text's SHA-512


def _largest(task: Ruler, length: int, count: Count, seed: int, sources: Sources) -> int:
    def tokens(size: int) -> int:
        return count(task.build(_generator(seed, task, length, 0), size, length, 0, sources).prompt) + task.generate

    low = task.smallest
    if (least := tokens(low)) > length:
        raise UsageError(_too_short(task, length, least - task.generate))
    high = low + 1
    while high <= length and tokens(high) <= length:  # no unit of a haystack is shorter than a token
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens(middle) <= length else (low, middle)
    return low


def _too_short(task: Ruler, length: int, tokens: int) -> str:
    return f"length {length}: RULER's {task.name} needs at least {tokens + task.generate} tokens ({task.generate} to generate)"
