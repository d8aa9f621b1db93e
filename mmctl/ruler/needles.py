"""Needle in a haystack: keys with values hidden in noise, essays or other needles (8 of the 13 tasks)."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass

from mmctl.ruler.haystack import Haystack, sentences
from mmctl.ruler.prompts import NEEDLE, NIAH, NIAH_SINGLE, NOISE
from mmctl.ruler.wordlists import adjective_noun

DEPTHS = [round(100 * i / 39) for i in range(40)]
"""Per cent of an essay's sentences after which a needle may stand: 40 of them, evenly spaced."""


@dataclass(frozen=True)
class Needles:
    """What is hidden where: haystack noise, essay or needle; keys and values words, numbers or uuids; their numbers."""

    haystack: str
    keys: str
    values: str
    key_count: int
    values_a_key: int
    queries: int


def draw(rng: random.Random, kind: str) -> str:
    """A key or value: an adjective-noun pair, a number of 7 digits, or a UUID."""
    if kind == "words":
        return adjective_noun(rng)
    if kind == "numbers":
        return str(rng.randint(10**6, 10**7 - 1))
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def build(rng: random.Random, size: int, spec: Needles, essay: Haystack) -> tuple[str, list[str], int]:
    """Prompt, values asked for, and where the first of them stands."""
    keys: list[str] = []
    while len(keys) < spec.key_count:
        if (key := draw(rng, spec.keys)) not in keys:
            keys.append(key)
    values = [[draw(rng, spec.values) for _ in range(spec.values_a_key)] for _ in keys]
    hidden = [_needle(spec, key, value) for key, row in zip(keys, values, strict=True) for value in row]
    rng.shuffle(hidden)
    if spec.haystack == "essay":
        context = _in_essay(rng, hidden, essay.words(size))
    else:
        lines = [
            NOISE if spec.haystack == "noise" else _needle(spec, draw(rng, spec.keys), draw(rng, spec.values))
            for _ in range(size)
        ]
        for place, needle in zip(sorted(rng.sample(range(size), len(hidden)), reverse=True), hidden, strict=True):
            lines.insert(place, needle)
        context = "\n".join(lines)
    asked = rng.sample(range(spec.key_count), spec.queries)
    wanted = [keys[i] for i in asked]
    references = [value for i in asked for value in values[i]]
    query = wanted[0] if len(wanted) == 1 else ", ".join(wanted[:-1]) + ", and " + wanted[-1]
    one = spec.queries * spec.values_a_key == 1
    prompt = (NIAH_SINGLE if one else NIAH).format(
        kind=spec.values[:-1] if one else spec.values, context=context, query=query
    )
    return prompt, references, prompt.index(references[0])


def _needle(spec: Needles, key: str, value: str) -> str:
    return NEEDLE.format(kinds=spec.values, key=key, value=value)


def _in_essay(rng: random.Random, hidden: list[str], text: str) -> str:
    parts = sentences(text)
    places = sorted(int(len(parts) * depth / 100) for depth in rng.sample(DEPTHS, len(hidden)))
    pieces, last = [], 0
    for place, needle in zip(places, hidden, strict=True):
        pieces += [" ".join(parts[last:place]), needle]
        last = place
    return " ".join(piece for piece in [*pieces, " ".join(parts[last:])] if piece)
