"""Log-likelihoods of given continuations, the same whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mmctl.errors import UsageError
from mmctl.models.base import Model

LOGITS = 1 << 24
"""Most logits (positions x vocabulary) made at once."""


@dataclass(frozen=True)
class Score:
    """How likely a continuation is."""

    log_likelihood: float
    """log p(continuation | context) in nats: the sum over its tokens."""
    greedy: bool
    """Whether every token of it is the most likely one, so that greedy decoding would give it."""
    tokens: int
    """Tokens scored."""


@torch.inference_mode()
def log_likelihoods(
    model: Model, requests: Sequence[tuple[Sequence[int], Sequence[int]]], *, batch_tokens: int = 16384
) -> list[Score]:
    """Score each (context, continuation) of tokens; both have at least one. UsageError for an empty context.

    Sequences of like lengths share a pass of at most `batch_tokens` tokens (at least one sequence), padded on the
    right, where causality keeps the padding out of everything before it. Logits are made at scored positions only; sums
    are float64. Nothing is cut off: a model reads all of a context, however long.
    """
    for number, (context, _) in enumerate(requests):
        if not len(context):
            raise UsageError(f"request {number}: an empty context; expected at least one token before what is scored")
    device = model.embedding.weight.device
    lengths = [len(context) + len(continuation) - 1 for context, continuation in requests]  # the last token is not read
    scores: list[Score | None] = [None] * len(requests)
    order = sorted(range(len(requests)), key=lambda n: -lengths[n])
    while order:
        longest = max(1, lengths[order[0]])
        some, order = order[: max(1, batch_tokens // longest)], order[max(1, batch_tokens // longest) :]
        tokens = torch.zeros(len(some), longest, dtype=torch.int64)
        labelled = torch.zeros(len(some), longest, dtype=torch.bool)
        for row, number in enumerate(some):
            context, continuation = requests[number]
            tokens[row, : lengths[number]] = torch.tensor([*context, *continuation][:-1])
            labelled[row, len(context) - 1 : lengths[number]] = True
        x = model.norm(model.hidden(tokens.to(device))[labelled.to(device)])
        wanted = torch.tensor([token for number in some for token in requests[number][1]], device=device)
        parts = []
        for part, targets in zip(*(t.split(max(1, LOGITS // model.vocabulary)) for t in (x, wanted)), strict=True):
            logits = model.classifier(part).double()
            each = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
            parts.append(torch.stack([each, (logits.argmax(-1) == targets).double()]).cpu())
        values, hits = torch.cat(parts, dim=1)
        counts = [len(requests[number][1]) for number in some]
        for number, each, right in zip(some, values.split(counts), hits.split(counts), strict=True):
            scores[number] = Score(float(each.sum()), bool(right.all()), len(each))
    return [score for score in scores if score is not None]
