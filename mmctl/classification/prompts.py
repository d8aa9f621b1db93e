"""The published prompts, with the variations of Memory Mosaics v2: two delimiters, two orders, two kinds of label."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from mmctl.classification.datasets import Examples

_FORMAT = "The predict answer must come from the demonstration examples with the exact format."
INSTRUCTIONS = {
    "banking77": f"Given a customer service query, please predict the intent of the query. {_FORMAT}",
    "clinc150": f"Given a customer service query, please predict the intent of the query. {_FORMAT}",
    "own": f"Given a customer service query, please predict the intent of the query. {_FORMAT}",
    "goemotions": f"Given a comment, please predict the emotion category of this comment. {_FORMAT}",
    "tacred": "Given a sentence and a pair of subject and object entities within the sentence, please predict the relation "
    "between the given entities.",
}
LEAD = " The examples are as follows: \n"
PARTS = {
    "banking77": ("service query: {0}", "intent category:"),
    "clinc150": ("service query: {0}", "intent category:"),
    "own": ("service query: {0}", "intent category:"),
    "goemotions": ("comment: {0}", "emotion category:"),
    "tacred": ("sentence: {0}", "the relation between {1} and {2} is:"),  # as Memory Mosaics v2 shortens it
}
"""What stands for a text, and what its class follows."""
CUTS = {
    "banking77": "service query",
    "clinc150": "service query",
    "own": "service query",
    "goemotions": "comment",
    "tacred": "sentence:",
}
"""An answer ends where the next example would begin."""

DELIMITERS = {"return": "\n", "space": " "}
ORDERS = ("fixed", "shuffled")
LABELS = ("semantic", "anonymous")


@dataclass(frozen=True)
class Prompt:
    """One way of writing the same examples."""

    delimiter: str
    """return or space, between an example's parts."""
    order: str
    """fixed: the classes in the same order in every shot; shuffled: in a new order in each."""
    labels: str
    """semantic: the classes' own names; anonymous: class_00, class_01, ..."""


PROMPTS = [Prompt(d, o, labels) for labels, d, o in product(LABELS, DELIMITERS, ORDERS)]
"""Four prompts for each kind of label."""


def label_names(examples: Examples, classes: list[str], kind: str, seed: int) -> dict[str, str]:
    """What each class is called in the prompt. Anonymous numbers are dealt at random: their order tells nothing."""
    if kind == "semantic":
        return {label: label for label in classes}
    numbers = list(range(len(classes)))
    random.Random(f"{seed}/anonymous/{examples.name}").shuffle(numbers)
    digits = max(2, len(str(len(classes) - 1)))
    return {label: f"class_{number:0{digits}d}" for label, number in zip(classes, numbers, strict=True)}


def demonstrations(examples: Examples, classes: list[str], shots: int, seed: int) -> list[list[tuple[str, str]]]:
    """`shots` rounds of one example of every class; fewer where a class has run out. More shots keep the earlier
    ones."""
    by_class: dict[str, list[str]] = {label: [] for label in classes}
    for text, label in examples.train:
        if label in by_class:
            by_class[label].append(text)
    for label, texts in by_class.items():
        random.Random(f"{seed}/shown/{examples.name}/{label}").shuffle(texts)
    return [[(by_class[label][i], label) for label in classes if i < len(by_class[label])] for i in range(shots)]


def prompt(
    examples: Examples, rounds: list[list[tuple[str, str]]], names: dict[str, str], style: Prompt, text: str, seed: int
) -> str:
    """Instruction, demonstrations, and `text` with its class left out (no trailing space, which a tokenizer would tell
    apart)."""
    between = DELIMITERS[style.delimiter]
    shown = []
    for number, members in enumerate(rounds):
        order = list(members)
        if style.order == "shuffled":
            random.Random(f"{seed}/order/{number}").shuffle(order)
        shown += [f"{_example(examples.name, t, between)} {names[label]}{between}" for t, label in order]
    return INSTRUCTIONS[examples.name] + LEAD + "".join(shown) + _example(examples.name, text, between)


def _example(name: str, text: str, between: str) -> str:
    what, asked = PARTS[name]
    fields = " ".join(text.split("\n")).split("\t") if name == "tacred" else [" ".join(text.split())]
    return what.format(*fields) + between + asked.format(*fields)


def answer(name: str, generated: str) -> str:
    """A generated class, cleaned as published: up to the next example, first line, stripped, case ignored."""
    text = generated.partition(CUTS[name])[0].strip()
    return text.split("\n")[0].strip().lower() if text else ""


def decided(name: str, valid: Iterable[str]) -> Callable[[str], bool]:
    """Asks of a generated text whether its `answer` is settled: the next example has begun, or nothing that may follow
    can make it one of the `valid` answers any more."""
    names, cut = [label.strip().casefold() for label in valid], CUTS[name]

    def settled(generated: str) -> bool:
        text = generated.lstrip()
        if cut in text:
            return True
        text = text.casefold()
        return not any(
            label.startswith(text) or (text.startswith(label) and _ends(text[len(label) :], cut)) for label in names
        )

    return settled


def _ends(rest: str, cut: str) -> bool:
    """Whether what stands after an answer may yet turn out to be no part of it: space, and the next example's
    beginning."""
    return cut.casefold().startswith(rest.lstrip())
