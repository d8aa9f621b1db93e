"""Profiles: how large a sweep is. One name scales model, data, steps and seeds together; a preset holds the sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmctl.errors import UsageError, nearest


@dataclass(frozen=True)
class Profile:
    """`preset` gives sizes and steps, `seeds` the default seeds, `set` what differs from the preset in a sweep."""

    name: str
    preset: str
    seeds: tuple[int, ...]
    about: str
    set: Mapping[str, Any] = field(default_factory=dict)


PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        Profile("smoke", "smoke", (0, 1, 2), "all five ablations in minutes on two cores"),
        Profile("standard", "lab", (0, 1, 2, 3, 4), "about 1 M parameters: hours on two cores"),
        Profile("full", "micro", (0, 1, 2, 3, 4), "about 10 M parameters: days on two cores, hours on a GPU"),
        Profile("paper-small", "paper-small", (0,), "the paper's small model: a cluster"),
        Profile("paper-large", "paper-large", (0,), "the paper's large model: a large cluster"),
        Profile("regbench", "regbench", (0, 1, 2), "the published RegBench recipe, for the ablation of that name"),
        Profile("intents", "intents", (0, 1, 2), "real queries from files of yours, for the ablation of that name"),
        Profile("recall", "recall", (0, 1, 2), "small associative recall, for the ablation of that name"),
    )
}


def profile(name: str) -> Profile:
    """The profile of that name. UsageError with the nearest one when there is none."""
    if name not in PROFILES:
        raise UsageError(f'--profile "{name}": no such profile{nearest(name, PROFILES, "profiles")}')
    return PROFILES[name]


def chosen(asked: str | None, ablations: Sequence[str]) -> Profile:
    """The profile asked for, or the one the ablations named (none: the main ones) start from: a recipe's own, where a
    profile has the ablation's name, else smoke.

    UsageError when they start from different ones, or when another is asked for than the recipe whose scores an
    ablation's claims are about.
    """
    recipes = [name for name in ablations if name in PROFILES]
    for name in recipes:
        if asked not in (None, name):
            profile(asked or "")
            raise UsageError(
                f'--profile "{asked}": ablation "{name}" is about the recipe of its name, --profile {name}'
            )
    found = list(dict.fromkeys(name if name in recipes else "smoke" for name in ablations))
    if asked is None and len(found) > 1:
        raise UsageError(
            f"{', '.join(ablations)}: start from different profiles ({', '.join(found)}); run them one after the other"
        )
    return profile(asked or (found or ["smoke"])[0])


def parse_seeds(text: str | None) -> tuple[int, ...] | None:
    """`0,1,4` as those seeds, `5` as the first five (0 to 4); None stays None. `7,` is seed 7 alone."""
    if text is None:
        return None
    words = [w.strip() for w in text.split(",")]
    listed = len(words) > 1
    if listed and words[-1] == "":
        words.pop()
    if not words or not all(w.isascii() and w.isdigit() and len(w) <= 9 for w in words):
        raise UsageError(f'--seeds "{text}": expected a number of seeds (5) or seeds by name (0,1,4)')
    numbers = [int(w) for w in words]
    if not listed:
        if not 1 <= numbers[0] <= 10_000:
            raise UsageError(f"--seeds {text}: expected at least 1 seed and at most 10000")
        return tuple(range(numbers[0]))
    if len(set(numbers)) < len(numbers):
        raise UsageError(f'--seeds "{text}": a seed stands there twice')
    return tuple(sorted(numbers))
