"""`docs_qa`: many unrelated documents, then a question about one of them. RULER's skeleton with made-up documents.

Every document is about a person who exists in this sequence only, so the answer cannot be known beforehand. The prompt
is RULER's for question answering (protocols.md, section 1.1), whole or without its instructions: at lab scale they
would fill the sequence. Answers are one word, read greedily; with a single reference RULER's any-match is exact match.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from mmctl.data.answers import answer_scores, answered, readable
from mmctl.data.task import Batch, Ratio, Split, Task, TaskConfig, at_least
from mmctl.data.vocabulary import distinct
from mmctl.errors import UsageError, nearest

INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
)
GIVEN = "\n\nThe following are given documents.\n\n"

ATTRIBUTES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("{} lives in {}.", "Where does {} live?", ("Paris", "Rome", "Oslo", "Cairo", "Lima", "Delhi", "Tokyo", "Accra")),
    (
        "{} works as a {}.",
        "What does {} work as?",
        ("baker", "pilot", "nurse", "miner", "judge", "tailor", "farmer", "chef"),
    ),
    ("{} keeps a {}.", "What does {} keep?", ("cat", "dog", "goat", "horse", "parrot", "snail", "rabbit", "crow")),
    ("{} plays the {}.", "What does {} play?", ("flute", "drum", "harp", "piano", "banjo", "cello", "horn", "organ")),
    ("{} likes {}.", "What does {} like?", ("tea", "plums", "honey", "bread", "soup", "figs", "rice", "cheese")),
)
"""Sentence, question and possible answers of each attribute."""

ONSETS, VOWELS, CODAS = "bdfgklmnprstvz", "aeiou", "lmnrst"
NAMES = [
    (a + v + b + w + c).capitalize() for a in ONSETS for v in VOWELS for b in ONSETS for w in VOWELS for c in CODAS
]
"""Made-up names of two syllables."""

SKELETONS = ("ruler", "short")
POSITIONS = ("uniform", "ruler", "sweep")
RULER_SEED = 42
"""RULER shuffles each prompt's documents with a fresh generator of this seed, which pins where the gold one stands."""


@dataclass
class DocsQAConfig(TaskConfig):
    """What the documents hold and where the one asked about stands."""

    sentences: int = 2
    """Sentences (attributes) of a document."""
    skeleton: str = "short"
    """ruler: the published prompt; short: the same without its instructions."""
    position: str = "uniform"
    """Of the document asked about. uniform: anywhere; ruler: where RULER's own shuffle puts it, the same for every
    sequence with as many documents; sweep: one place after the other."""

    def validate(self, prefix: str) -> None:
        at_least(self, prefix, sentences=1)
        if self.sentences > len(ATTRIBUTES):
            raise UsageError(f"{prefix}sentences={self.sentences}: expected at most {len(ATTRIBUTES)}")
        for key, valid in (("skeleton", SKELETONS), ("position", POSITIONS)):
            value = getattr(self, key)
            if value not in valid:
                raise UsageError(f'{prefix}{key}="{value}": expected one of {", ".join(valid)}{nearest(value, valid)}')


class DocsQA(Task):
    """As many documents as data.length holds in the worst case, the same number for every sequence of a length."""

    name = "docs_qa"
    dimension = "new-knowledge"
    Config = DocsQAConfig
    config: DocsQAConfig

    def documents(self, length: int) -> int:
        """Documents in a sequence of `length` bytes, 0 when not even two fit."""
        count = 0
        while self._longest(count + 1) <= length + 1 and count < len(NAMES):
            count += 1
        return count if count > 1 else 0

    def check_length(self, length: int) -> None:
        if not self.documents(length):
            raise UsageError(
                f"data.length={length}: docs_qa with two documents needs at least {self._longest(2) - 1} tokens (bytes)"
            )

    def sample(self, rng: np.random.Generator, count: int, length: int, split: Split) -> Batch:
        """extras["depth"]: fifth of the documents in which the one asked about stands."""
        n, k = self.documents(length), self.config.sentences
        names = distinct(rng, count, 0, len(NAMES), n)
        sweep = int(rng.integers(n))
        texts, depths = [], []
        for row in range(count):
            gold = self._gold(n, rng, sweep + row)
            facts, documents = [], []
            for name in names[row]:
                about = rng.permutation(len(ATTRIBUTES))[:k]
                values = [ATTRIBUTES[a][2][int(rng.integers(len(ATTRIBUTES[a][2])))] for a in about]
                facts.append(list(zip(about.tolist(), values, strict=True)))
                documents.append(" ".join(ATTRIBUTES[a][0].format(NAMES[name], v) for a, v in facts[-1]))
            attribute, answer = facts[gold][int(rng.integers(k))]
            question = ATTRIBUTES[attribute][1].format(NAMES[names[row][gold]])
            texts.append((self._prompt(documents, question).encode(), f" {answer}\n".encode()))
            depths.append(gold / max(1, n - 1) if n > 1 else 0.0)
        return answered(texts, length, depths)

    def _gold(self, documents: int, rng: np.random.Generator, turn: int) -> int:
        if self.config.position == "uniform":
            return int(rng.integers(documents))
        if self.config.position == "sweep":
            return turn % documents
        order = list(range(documents))
        random.Random(RULER_SEED).shuffle(order)  # a fresh generator a sequence, as in RULER
        return order.index(0)

    def _prompt(self, documents: list[str], question: str) -> str:
        numbered = "\n\n".join(f"Document {i}:\n{text}" for i, text in enumerate(documents, start=1))
        if self.config.skeleton == "ruler":
            numbered = f"{INSTRUCTION}{GIVEN}{numbered}\n\n{INSTRUCTION}"
        return f"{numbered}\n\nQuestion: {question}\n Answer:"

    def _longest(self, documents: int) -> int:
        """Most bytes of a prompt with its answer."""
        name = max(NAMES, key=len)
        sentences = sorted((len(s.format(name, max(v, key=len))) for s, _, v in ATTRIBUTES), reverse=True)
        text = "x" * (sum(sentences[: self.config.sentences]) + self.config.sentences - 1)
        question = max((q.format(name) for _, q, _ in ATTRIBUTES), key=len)
        answer = max((v for _, _, values in ATTRIBUTES for v in values), key=len)
        return len(self._prompt([text] * documents, question)) + len(f" {answer}\n")

    def scores(self, batch: Batch, losses: np.ndarray, correct: np.ndarray) -> dict[str, Ratio]:
        """`accuracy`: the whole answer, also by where it stands."""
        return answer_scores(batch, losses, correct)

    def chance(self, length: int) -> float:
        """One of the eight answers of the attribute asked for."""
        return 1 / len(ATTRIBUTES[0][2])

    def notes(self, length: int) -> dict[str, int]:
        return {"documents": self.documents(length)}

    def word(self, token: int) -> str:
        return readable(token)
