"""Tasks whose sequences are bytes of text that end in a question, and whose answer is read greedily, byte by byte.

A greedy answer is right when every byte of it is the most likely one after the bytes before, so exact match is read off
one pass over the sequence, without generating.
"""

from __future__ import annotations

import numpy as np

from mmctl.data.task import IGNORE, Batch, Ratio, hits, mean_loss

DEPTHS = 5
"""Parts of the context that get a score of their own: 0 is its beginning."""


def answered(texts: list[tuple[bytes, bytes]], length: int, depths: list[float]) -> Batch:
    """Rows "prompt, answer, padding" of `length` tokens (byte 0 as padding), the answer's bytes labelled.

    texts: (prompt, answer) pairs, together at most length + 1 bytes: the answer's last byte is never read. depths:
    where in [0, 1] what is asked for stands in each; extras["depth"] has it as a part of DEPTHS at labelled positions,
    else -1.
    """
    tokens = np.zeros((len(texts), length + 1), dtype=np.int64)
    targets = np.full((len(texts), length), IGNORE, dtype=np.int64)
    depth = np.full((len(texts), length), -1, dtype=np.int64)
    for row, ((prompt, answer), at) in enumerate(zip(texts, depths, strict=True)):
        whole = np.frombuffer(prompt + answer, dtype=np.uint8)
        tokens[row, : len(whole)] = whole
        span = slice(len(prompt) - 1, len(whole) - 1)
        targets[row, span] = whole[len(prompt) :]
        depth[row, span] = min(DEPTHS - 1, int(at * DEPTHS))
    return Batch(tokens[:, :-1], targets, extras={"depth": depth})


def answer_scores(batch: Batch, losses: np.ndarray, correct: np.ndarray) -> dict[str, Ratio]:
    """`accuracy` of whole answers, also by depth; `bytes-right` and `loss` of their bytes."""
    labelled = batch.labelled
    right = ((correct | ~labelled).all(axis=1) & labelled.any(axis=1)).astype(np.int64)
    asked = np.asarray(labelled.any(axis=1), dtype=np.int64)
    scores = {
        "accuracy": Ratio(right, asked, accuracy=True),
        "bytes-right": Ratio(hits(labelled, correct).total, labelled.sum(axis=1)),
        "loss": mean_loss(labelled, losses),
    }
    place = batch.extras["depth"].max(axis=1)
    for depth in range(DEPTHS):
        there = np.asarray((place == depth) * asked)
        scores[f"accuracy-depth{depth}"] = Ratio(np.asarray(right * there), there, accuracy=True)
    return scores


def readable(token: int) -> str:
    """A byte as text; padding as nothing."""
    return "" if token == 0 else chr(token) if 32 <= token < 127 or token == 10 else f"<{token}>"
