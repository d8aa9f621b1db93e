"""vt, variable tracking: one chain of assignments hidden in noise; name every variable that ends up with its value."""

from __future__ import annotations

import random
import string
from itertools import pairwise

from mmctl.ruler.prompts import NOISE, VARIABLES

HOPS = 4
EXAMPLE_LINES = 5
"""Lines of noise in the worked example, which the published one fits into 500 tokens."""
EXAMPLE_FROM = 2048
"""Length in tokens from which the worked example is given: below, it would take most of the room (our choice)."""


def build(rng: random.Random, size: int, example: bool = True) -> tuple[str, list[str], int]:
    """Prompt with `size` lines of noise, the chain's variables, and where the first is assigned.

    With `example`, a solved chain of 3-letter variables stands first, its names and value new in every prompt.
    """
    text, names, place = _problem(rng, size, 5, str(rng.randrange(10_000, 99_999)))
    if not example:
        return text, names, place
    solved, answer, _ = _problem(rng, EXAMPLE_LINES, 3, str(rng.randrange(10_000, 99_999)))
    shown = f"{solved} {' '.join(answer)}\n\n"
    return shown + text, names, len(shown) + place


def _problem(rng: random.Random, lines: int, letters: int, value: str) -> tuple[str, list[str], int]:
    names: list[str] = []
    while len(names) < HOPS + 1:
        if (name := "".join(rng.choices(string.ascii_uppercase, k=letters))) not in names:
            names.append(name)
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {later} = VAR {earlier} " for earlier, later in pairwise(names)]
    text = [NOISE] * lines
    places = sorted(rng.sample(range(max(lines, len(chain))), len(chain)))
    for shift, (place, step) in enumerate(zip(places, chain, strict=True)):
        text.insert(place + shift, step)
    prompt = VARIABLES.format(context="\n".join(text).replace(". \n", ".\n"), query=value, count=len(names))
    return prompt, names, prompt.index(chain[0])
