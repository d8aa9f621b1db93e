"""cwe and fwe, common and frequent words: aggregation over the whole context; and the words all tasks draw from."""

from __future__ import annotations

import random
import string
from functools import lru_cache

import numpy as np

from mmctl.ruler.prompts import COMMON_WORDS, FREQUENT_WORDS

COMMON = 10
"""Common words asked for."""
CODED_LETTERS = 6
ALPHA = 2.0
"""fwe: the word of rank k stands in proportion to k^-alpha."""
FREQUENT = 3


@lru_cache
def english() -> dict[str, list[str]]:
    """Nouns, adjectives and verbs of the wonderwords package, which RULER uses."""
    from wonderwords import RandomWord

    parts = RandomWord().parts_of_speech
    return {part: sorted(set(parts[part])) for part in ("noun", "adjective", "verb")}


def adjective_noun(rng: random.Random) -> str:
    """A key such as "quiet-harbor"."""
    words = english()
    return f"{rng.choice(words['adjective'])}-{rng.choice(words['noun'])}"


@lru_cache
def _all_words() -> list[str]:
    return sorted({word for part in english().values() for word in part})


def common_words(rng: random.Random, size: int, length: int) -> tuple[str, list[str], int]:
    """cwe with `size` different words, 10 of them common: 30 times against 3, below 4,096 tokens 6 against 1.

    A solved list stands first: of 40 words (10 times against 3), below 4,096 tokens of 20 (3 against 1).
    """
    long = length >= 4096
    shown, answer = _list(rng, *((40, 10, 3) if long else (20, 3, 1)))
    listed, common = _list(rng, size, *((30, 3) if long else (6, 1)))
    example = COMMON_WORDS.format(context=shown) + " " + _numbered(answer) + "\n"
    prompt = example + COMMON_WORDS.format(context=listed)
    return prompt, common, prompt.index(f" {common[0]}", len(example))


def _list(rng: random.Random, size: int, often: int, seldom: int) -> tuple[str, list[str]]:
    words = _all_words()
    if size <= len(words):
        drawn = rng.sample(words, size)
    else:  # more than there are: pairs, which never run out at any length in use
        pairs: set[str] = set()
        while len(pairs) < size:
            pairs.add(adjective_noun(rng))
        drawn = sorted(pairs)
        rng.shuffle(drawn)
    common, rest = drawn[:COMMON], drawn[COMMON:]
    listed = common * often + rest * seldom
    rng.shuffle(listed)
    return _numbered(listed), common


def _numbered(words: list[str]) -> str:
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, start=1))


def frequent_words(rng: random.Random, size: int, length: int) -> tuple[str, list[str], int]:
    """fwe with `size` words drawn by Zipf's law from length / 50 made-up ones; the most frequent is "...", which is
    noise."""
    vocabulary: list[str] = []
    seen: set[str] = set()
    while len(vocabulary) < max(FREQUENT + 1, (length - 50) // 50):
        word = "".join(rng.choices(string.ascii_lowercase, k=CODED_LETTERS))
        if word not in seen:
            seen.add(word)
            vocabulary.append(word)
    vocabulary[0] = "..."
    ranks = np.arange(1, len(vocabulary) + 1)
    zeta = np.pi**2 / 6  # of alpha = 2
    counts = (size * ranks**-ALPHA / zeta).astype(int)
    words = [word for word, count in zip(vocabulary, counts, strict=True) for _ in range(count)]
    rng.shuffle(words)
    answers = vocabulary[1 : FREQUENT + 1]
    prompt = FREQUENT_WORDS.format(context=" ".join(words))
    return prompt, answers, max(0, prompt.find(answers[0]))
