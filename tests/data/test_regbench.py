"""RegBench: automata by their definition, sequences replayed, and the published scores from known predictions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.data.automata import ALPHABET, EDGES, STATES, SYMBOLS, minimised, random_automaton, walk
from mmctl.data.config import DataConfig
from mmctl.data.regbench import RegBench, RegBenchConfig
from mmctl.errors import UsageError


def language(table: np.ndarray, length: int, symbols: list[int]) -> set[tuple[int, ...]]:
    """Every string of `length` of these symbols that the automaton accepts."""
    found = set()
    for string in product(symbols, repeat=length):
        state = 0
        for symbol in string:
            state = int(table[state, symbol]) if state >= 0 else -1
        if state >= 0:
            found.add(string)
    return found


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_automata_are_what_the_protocol_says(seed: int) -> None:
    table = random_automaton(np.random.default_rng(seed))
    assert 2 <= len(table) <= STATES[1]
    assert ((table >= 0).sum(axis=1) >= 1).all()
    assert ((table >= 0).sum(axis=1) <= EDGES).all()
    assert (table >= 0).any(axis=0).sum() <= ALPHABET[1]
    reached, frontier = {0}, [0]
    for state in frontier:
        for target in table[state][table[state] >= 0]:
            if target not in reached:
                reached.add(int(target))
                frontier.append(int(target))
    assert reached == set(range(len(table)))
    assert np.array_equal(minimised(table), table)  # no two states are equivalent any more


def test_minimising_keeps_the_language_and_merges_what_is_equivalent() -> None:
    table = np.full((5, SYMBOLS), -1, dtype=np.int64)
    table[0, 0], table[0, 1] = 1, 2  # 1 and 2 do the same; 4 cannot be reached
    table[1, 2] = table[2, 2] = 3
    table[3, 0] = 0
    table[4, 1] = 0
    small = minimised(table)
    assert len(small) == 3
    for length in range(1, 6):
        assert language(small, length, [0, 1, 2]) == language(table, length, [0, 1, 2])


def test_walks_are_uniform_over_what_is_allowed() -> None:
    table = random_automaton(np.random.default_rng(3))
    symbols, states = walk(table, np.random.default_rng(0), 60_000)
    assert states[0] == 0
    assert (table[states, symbols] >= 0).all()
    assert np.array_equal(table[states[:-1], symbols[:-1]], states[1:])
    for state in range(len(table)):
        counts = np.bincount(symbols[states == state], minlength=SYMBOLS)
        allowed = table[state] >= 0
        assert not counts[~allowed].any()
        share = counts[allowed] / counts.sum()
        assert np.abs(share - 1 / allowed.sum()).max() < 5 * (0.25 / max(1, counts.sum())) ** 0.5


def task(**keys: object) -> RegBench:
    return RegBench(RegBenchConfig(**keys), DataConfig(vocabulary=512))  # type: ignore[arg-type]


def test_sequences_label_every_symbol_and_nothing_else() -> None:
    batch = task().sample(np.random.default_rng(0), 20, 600, "held-out")
    tokens = batch.tokens - 256
    assert batch.tokens.shape == (20, 600)
    after = tokens[:, 1:]
    assert np.array_equal(batch.labelled[:, :-1], after < SYMBOLS)
    assert np.array_equal(batch.targets[:, :-1][after < SYMBOLS], after[after < SYMBOLS] + 256)
    bits = batch.extras["allowed"]
    assert ((bits[batch.labelled] >> (batch.targets[batch.labelled] - 256)) & 1).all()  # what comes is allowed
    assert not bits[~batch.labelled].any()
    strings = (tokens == SYMBOLS).sum(axis=1) + 1
    assert (strings <= 19).all()
    lengths = [(row < SYMBOLS + 1).sum() for row in tokens]
    assert 250 < np.mean(lengths) < 480  # about 370 by the protocol, some cut off at 600


def test_a_number_of_training_automata_is_that_many_fixed_sequences() -> None:
    few = task(automata=5)
    rows = np.concatenate([few.sample(np.random.default_rng(s), 16, 200, "train").tokens for s in range(4)])
    assert len(np.unique(rows, axis=0)) == 5
    held = few.sample(np.random.default_rng(0), 16, 200, "held-out").tokens
    assert len(np.unique(held, axis=0)) == 16
    assert not any((rows == row).all(axis=1).any() for row in held)


def test_scores_from_known_predictions() -> None:
    """The true distribution scores 1 and 0; a uniform one over all tokens its exact variation; an illegal one 0."""
    regbench = task()
    batch = regbench.sample(np.random.default_rng(1), 4, 300, "held-out")
    bits = batch.extras["allowed"][batch.labelled]
    legal = ((bits[:, None] >> np.arange(SYMBOLS)) & 1).astype(bool)

    def scored(logits: np.ndarray) -> dict[str, float]:
        read = regbench.read(batch, logits.astype(np.float32))
        batch.extras.update(read)
        zeros = np.zeros(batch.tokens.shape)
        return {k: r.value for k, r in regbench.scores(batch, zeros, zeros > 0).items() if k != "loss"}

    perfect = np.full((len(bits), 512), -1e4)
    perfect[:, 256 : 256 + SYMBOLS][legal] = 0
    assert scored(perfect) == pytest.approx({"accuracy": 1.0, "total-variation": 0.0}, abs=1e-6)
    uniform = np.zeros((len(bits), 512))
    uniform[:, 0] = 1e-3  # the best guess is no symbol at all
    expected = 1 - legal.sum(axis=1).mean() / 512
    assert scored(uniform) == pytest.approx({"accuracy": 0.0, "total-variation": expected}, abs=1e-4)
    wrong = np.full((len(bits), 512), -1e4)
    wrong[:, 256 : 256 + SYMBOLS][~legal] = 0
    assert scored(wrong) == pytest.approx({"accuracy": 0.0, "total-variation": 1.0}, abs=1e-6)
    assert 0.05 < regbench.chance(300) < 0.2


def test_wrong_keys_are_named() -> None:
    with pytest.raises(UsageError, match=r"regbench\.offset=500"):
        task(offset=500)
    with pytest.raises(UsageError, match=r"regbench\.most_strings=3"):
        task(most_strings=3)
