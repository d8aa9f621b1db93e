"""`regbench`: in-context language learning. Every sequence speaks the language of one random automaton, new to the
model.

10 to 19 strings of 1 to 49 symbols of that automaton, joined by "|"; what follows a prefix can only be known from the
strings before. Construction: mmctl.data.automata; every symbol is labelled, "|" and padding are not (protocols.md,
section 1.5). Scores: `accuracy`, the most likely token is one the automaton allows; `total-variation`, between the
model's distribution and the uniform one over what is allowed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mmctl.data.automata import SYMBOLS, random_automaton, walk
from mmctl.data.task import IGNORE, Batch, Ratio, Split, Task, TaskConfig, at_least, hits, mean_loss
from mmctl.data.vocabulary import FIRST_SYMBOL
from mmctl.errors import UsageError


@dataclass
class RegBenchConfig(TaskConfig):
    """How many languages, and how long their samples are."""

    automata: int | None = None
    """Different automata in training (100 to 40,000 as published), each with one fixed sequence; null: a new one each
    time."""
    automata_seed: int = 0
    """Seed of the training automata. The same for every run seed, so that arms differ in the model only."""
    fewest_strings: int = 10
    most_strings: int = 19
    longest_string: int = 49
    offset: int = FIRST_SYMBOL
    """First token used: 18 symbols, then "|", then padding."""

    def validate(self, prefix: str) -> None:
        at_least(
            self,
            prefix,
            automata=1,
            automata_seed=0,
            fewest_strings=1,
            most_strings=self.fewest_strings,
            longest_string=1,
            offset=0,
        )


class RegBench(Task):
    """Tokens from data.tasks.regbench.offset on: symbols 0..17, "|", padding."""

    name = "regbench"
    dimension = "in-context"
    Config = RegBenchConfig
    config: RegBenchConfig
    reads_distributions = True

    def __init__(self, config: RegBenchConfig, data: object) -> None:
        super().__init__(config, data)  # type: ignore[arg-type]
        need = SYMBOLS + 2
        self.require(
            config.offset + need <= self.data.vocabulary,
            "offset",
            f"with {need} tokens needs data.vocabulary of at least {config.offset + need}",
        )
        self.bar, self.padding = SYMBOLS, SYMBOLS + 1

    def check_length(self, length: int) -> None:
        if length < 2:
            raise UsageError(f"data.length={length}: regbench predicts the next symbol, expected at least 2 tokens")

    def sample(self, rng: np.random.Generator, count: int, length: int, split: Split) -> Batch:
        """Sequences cut off at `length`, or padded; extras["allowed"] (B, T): bit s is set when symbol s may follow."""
        c = self.config
        tokens = np.full((count, length + 1), self.padding, dtype=np.int64)
        allowed = np.zeros((count, length + 1), dtype=np.int64)
        for row in range(count):
            shape = c.fewest_strings, c.most_strings, c.longest_string
            if split == "train" and c.automata is not None:
                symbols, bits = _training_episode(c.automata_seed, int(rng.integers(c.automata)), *shape)
            else:
                symbols, bits = _episode(rng, *shape)
            used = min(len(symbols), length + 1)
            tokens[row, :used], allowed[row, :used] = symbols[:used], bits[:used]
        targets = np.where(tokens[:, 1:] < SYMBOLS, tokens[:, 1:] + c.offset, IGNORE)
        return Batch(tokens[:, :-1] + c.offset, targets, extras={"allowed": np.where(targets >= 0, allowed[:, 1:], 0)})

    def read(self, batch: Batch, logits: np.ndarray) -> dict[str, np.ndarray]:
        """From logits (N, V) at the labelled positions: "legal" and "variation", (B, T)."""
        bits = batch.extras["allowed"][batch.labelled]
        legal_NS = (bits[:, None] >> np.arange(SYMBOLS)) & 1
        probability = np.exp(logits - logits.max(axis=1, keepdims=True))
        probability /= probability.sum(axis=1, keepdims=True)
        inside = probability[:, self.config.offset : self.config.offset + SYMBOLS]
        wanted = legal_NS / legal_NS.sum(axis=1, keepdims=True)
        outside = 1 - inside.sum(axis=1)
        best = logits.argmax(axis=1) - self.config.offset
        ours = (best >= 0) & (best < SYMBOLS)
        legal = np.zeros(batch.tokens.shape, dtype=bool)
        variation = np.zeros(batch.tokens.shape)
        legal[batch.labelled] = ours & (
            np.take_along_axis(legal_NS, np.clip(best, 0, SYMBOLS - 1)[:, None], axis=1)[:, 0] > 0
        )
        variation[batch.labelled] = 0.5 * (np.abs(inside - wanted).sum(axis=1) + outside)
        return {"legal": legal, "variation": variation}

    def scores(self, batch: Batch, losses: np.ndarray, correct: np.ndarray) -> dict[str, Ratio]:
        """`accuracy` and `total-variation` as published, and the loss."""
        return {
            "accuracy": hits(batch.labelled, batch.extras["legal"]),
            "total-variation": mean_loss(batch.labelled, batch.extras["variation"]),
            "loss": mean_loss(batch.labelled, losses),
        }

    def chance(self, length: int) -> float:
        """A symbol picked blindly: the mean share of the 18 symbols that may follow."""
        return _mean_share()

    def word(self, token: int) -> str:
        """Letters for the symbols, "|" between strings, "." as padding."""
        return (
            (("abcdefghijklmnopqr" + "|.")[token - self.config.offset]) if token >= self.config.offset else str(token)
        )


def _episode(rng: np.random.Generator, fewest: int, most: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Strings of one new automaton joined by "|", and for each position the set of what is allowed there, as bits (0 at
    "|")."""
    table = random_automaton(rng)
    bits = ((table >= 0) << np.arange(SYMBOLS)).sum(axis=1)
    symbols: list[np.ndarray] = []
    allowed: list[np.ndarray] = []
    for _ in range(int(rng.integers(fewest, most + 1))):
        string, states = walk(table, rng, int(rng.integers(1, longest + 1)))
        symbols += [string, np.array([SYMBOLS])]
        allowed += [bits[states], np.array([0])]
    return np.concatenate(symbols[:-1]), np.concatenate(allowed[:-1])


@lru_cache(maxsize=4096)
def _training_episode(seed: int, index: int, fewest: int, most: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """The fixed sequence of one training automaton."""
    return _episode(np.random.default_rng([seed, zlib.crc32(b"regbench"), index]), fewest, most, longest)


@lru_cache
def _mean_share() -> float:
    """Share of symbols allowed, over 200 automata and the states their strings pass through."""
    rng = np.random.default_rng(0)
    shares = [bin(int(b)).count("1") / SYMBOLS for _ in range(200) for b in _episode(rng, 2, 2, 49)[1] if b]
    return float(np.mean(shares))
