"""Random deterministic automata as in RegBench (berlino/seq_icl @ 9b9223d, src/dataloaders/dfa.py; protocols.md,
section 1.5).

Every state accepts. An automaton is stored as its transition table, and drawn until minimising keeps at least two
states.
"""

from __future__ import annotations

import numpy as np

STATES = (4, 12)
"""Fewest and most states before minimising."""
SYMBOLS = 18
ALPHABET = (4, 18)
"""Fewest and most of the symbols one automaton uses."""
EDGES = 3
"""Most outgoing edges of a state; at least one."""


def random_automaton(rng: np.random.Generator) -> np.ndarray:
    """Transitions (states, SYMBOLS) int64, -1 where a symbol is not allowed; state 0 is the start.

    Each state has 1 to 3 edges to different other states with different symbols; states that cannot be reached are
    dropped and equivalent ones merged.
    """
    while True:
        states = int(rng.integers(STATES[0], STATES[1] + 1))
        alphabet = rng.permutation(SYMBOLS)[: int(rng.integers(ALPHABET[0], ALPHABET[1] + 1))]
        table = np.full((states, SYMBOLS), -1, dtype=np.int64)
        for state in range(states):
            edges = int(rng.integers(1, EDGES + 1))
            others = np.delete(np.arange(states), state)
            table[state, rng.permutation(alphabet)[:edges]] = rng.permutation(others)[:edges]
        small = minimised(table)
        if len(small) > 1:
            return small


def minimised(table: np.ndarray) -> np.ndarray:
    """The smallest automaton with the same language and start 0 (all states accept): reachable states, equivalent ones
    merged by refining partitions (Moore), numbered in the order a walk from the start meets them."""
    classes = np.zeros(len(table), dtype=np.int64)
    count = 1
    while True:
        follow = np.where(table >= 0, classes[table], -1)
        _, refined = np.unique(np.column_stack([classes, follow]), axis=0, return_inverse=True)
        refined = refined.reshape(-1)
        if refined.max() + 1 == count:
            break
        classes, count = refined, int(refined.max()) + 1
    order: dict[int, int] = {int(classes[0]): 0}
    states, rows = [0], []
    for state in states:  # grows while it is walked
        row = np.full(table.shape[1], -1, dtype=np.int64)
        for symbol in np.flatnonzero(table[state] >= 0):
            target = int(table[state, symbol])
            if int(classes[target]) not in order:
                order[int(classes[target])] = len(order)
                states.append(target)
            row[symbol] = order[int(classes[target])]
        rows.append(row)
    return np.stack(rows)


def walk(table: np.ndarray, rng: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
    """A string of `length` symbols, each drawn uniformly among those allowed, and the states it was drawn in."""
    symbols, states = np.empty(length, dtype=np.int64), np.empty(length, dtype=np.int64)
    choices = [np.flatnonzero(row >= 0).tolist() for row in table]
    state = 0
    for step, drawn in enumerate(rng.random(length).tolist()):
        symbol = choices[state][int(drawn * len(choices[state]))]
        symbols[step], states[step] = symbol, state
        state = int(table[state, symbol])
    return symbols, states
