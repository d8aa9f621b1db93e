"""The decoding loop: prompts in, continuations out, one token a step from the model's cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mmctl.data.tokenizers import Stream, Tokenizer
from mmctl.errors import MmctlError, UsageError
from mmctl.generation.sampling import Sampling, choose, log_probability
from mmctl.generation.stopping import Stopper
from mmctl.models.base import Model

OnText = Callable[[int, str], object]
"""(number of the prompt, text that has become certain)."""

PADDING = -1
"""Document id of the padding on the left; the prompt's is 0."""


@dataclass
class Continuation:
    """What followed one prompt."""

    tokens: list[int] = field(default_factory=list)
    """Everything chosen, the tokens of a stop string included."""
    text: str = ""
    """The tokens' text, cut before the first stop string."""
    log_probabilities: list[float] = field(default_factory=list)
    """log p of each token in nats, under the model's own distribution (temperature 1)."""
    finish: Literal["length", "stop"] = "length"


@dataclass
class _Row:
    """One prompt being continued."""

    number: int
    rng: np.random.Generator
    stream: Stream
    stopper: Stopper
    made: Continuation = field(default_factory=Continuation)


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device | str) -> tuple[Tensor, Tensor | None]:
    """Prompts as tokens (B, T) that all end at T, and documents (B, T) that keep the padding out of every read; None
    where nothing is padded."""
    longest = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), longest, dtype=torch.int64)
    documents = torch.full((len(prompts), longest), PADDING, dtype=torch.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
        documents[row, longest - len(prompt) :] = 0
    padded = any(len(prompt) < longest for prompt in prompts)
    return tokens.to(device), documents.to(device) if padded else None


def generate(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int = 128,
    sampling: Sampling | None = None,
    stop: Sequence[str] = (),
    batch: int = 16,
    allowed: int | None = None,
    on_text: OnText | None = None,
) -> list[Continuation]:
    """Continue every prompt (tokens, at least one each) until a stop string or `max_tokens`.

    `batch` prompts are decoded at once, of like lengths together; what follows a prompt depends neither on it nor on
    the others. `allowed`: only tokens below it are chosen (a tokenizer's own, where the model knows more).
    `on_text(number, piece)` is told text as it becomes certain. UsageError for an empty prompt or a setting out of
    range.
    """
    sampling = sampling or Sampling()
    sampling.validate()
    if max_tokens < 0:
        raise UsageError(f"--max-tokens {max_tokens}: expected a whole number of at least 0")
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            which = "" if len(prompts) == 1 else f" {number}"
            raise UsageError(f"prompt{which} is empty: expected at least one token to continue")
    order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
    rows = [_Row(n, sampling.generator(n), tokenizer.stream(prompts[n]), Stopper(stop)) for n in range(len(prompts))]
    for first in range(0, len(order), batch):
        some = [rows[n] for n in order[first : first + batch]]
        _continue(model, some, [prompts[row.number] for row in some], max_tokens, sampling, allowed, on_text)
    return [row.made for row in rows]


@torch.inference_mode()
def _continue(
    model: Model,
    rows: list[_Row],
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    sampling: Sampling,
    allowed: int | None,
    on_text: OnText | None,
) -> None:
    device = model.embedding.weight.device
    tokens, documents = left_padded(prompts, device)
    cache = model.init_cache(len(rows), capacity=tokens.shape[1] + max_tokens)
    logits = model.prefill(tokens, cache, documents=documents)
    for count in range(1, max_tokens + 1):
        table = logits.double().cpu().numpy()
        if not np.isfinite(table).all():
            raise MmctlError("the model's logits are not finite: its training has diverged")
        going = []
        for place, (row, scores) in enumerate(zip(rows, table, strict=True)):
            _take(row, scores, allowed, sampling, on_text)
            if not row.stopper.stopped:
                going.append(place)
        if count == max_tokens or not going:
            break
        if len(going) < len(rows):
            cache.select(torch.tensor(going, device=device))
            rows = [rows[place] for place in going]
        chosen = torch.tensor([[row.made.tokens[-1]] for row in rows], device=device)
        logits = model.step(chosen, cache)[:, -1]
    for row in rows:
        if not row.stopper.stopped:
            _give(row, row.stopper.push(row.stream.flush()), on_text)
            _give(row, row.stopper.flush(), on_text)


def _take(row: _Row, logits: np.ndarray, allowed: int | None, sampling: Sampling, on_text: OnText | None) -> None:
    """Choose a token and pass on the text that it makes certain."""
    token = choose(logits[:allowed], sampling, row.rng)
    row.made.tokens.append(token)
    row.made.log_probabilities.append(log_probability(logits, token))
    _give(row, row.stopper.push(row.stream.push(token)), on_text)
    if row.stopper.stopped:
        row.made.finish = "stop"


def _give(row: _Row, text: str, on_text: OnText | None) -> None:
    row.made.text += text
    if text and on_text is not None:
        on_text(row.number, text)
