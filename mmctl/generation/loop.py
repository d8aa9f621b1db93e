"""The decoding loop: prompts in, continuations out, one token a step from the model's cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
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
from mmctl.models.cache import Cache

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
    unread: list[int] = field(default_factory=list)
    """Tokens of its prompt that the model has not read yet: they come before any that are chosen."""


@dataclass
class Beginning:
    """What several prompts begin with, read once: each continues a copy of its cache."""

    tokens: list[int]
    cache: Cache


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
    beginning: Beginning | None = None,
    enough: Callable[[str], bool] | None = None,
) -> list[Continuation]:
    """Continue every prompt (tokens, at least one each) until a stop string or `max_tokens`.

    `batch` prompts are decoded at once, of like lengths together; what follows a prompt depends neither on it nor on
    the others. `allowed`: only tokens below it are chosen (a tokenizer's own, where the model knows more).
    `on_text(number, piece)` is told text as it becomes certain. `beginning`: what all prompts begin with, already read
    (`read_beginning`); rounding changes and nothing else. `enough(text)`: asked after each token whether the text so
    far will do; if so, that prompt is finished. UsageError for an empty prompt or a setting out of range, ValueError
    for a prompt that does not go on from `beginning`.
    """
    sampling = sampling or Sampling()
    sampling.validate()
    if max_tokens < 0:
        raise UsageError(f"--max-tokens {max_tokens}: expected a whole number of at least 0")
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            which = "" if len(prompts) == 1 else f" {number}"
            raise UsageError(f"prompt{which} is empty: expected at least one token to continue")
    if not prompts or not max_tokens:
        return [Continuation() for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
    rows = [_Row(n, sampling.generator(n), tokenizer.stream(prompts[n]), Stopper(stop)) for n in range(len(prompts))]
    shared = [] if beginning is None else beginning.tokens
    for number, prompt in enumerate(prompts):
        if len(prompt) <= len(shared) or list(prompt[: len(shared)]) != shared:
            raise ValueError(f"prompt {number} does not go on from the beginning")
    with torch.inference_mode():
        for first in range(0, len(order), batch):
            some = [rows[n] for n in order[first : first + batch]]
            own = [prompts[row.number][len(shared) :] for row in some]
            cache, logits = _read(model, some, own, beginning, max_tokens)
            _continue(model, some, cache, logits, max_tokens, sampling, allowed, on_text, enough)
    return [row.made for row in rows]


def common_beginning(prompts: Iterable[Sequence[int]]) -> list[int]:
    """The tokens that all prompts begin with, of which none is left without a token of its own."""
    shared: list[int] | None = None
    for prompt in prompts:
        if shared is None:
            shared = list(prompt[:-1])
        elif len(prompt) <= len(shared) or list(prompt[: len(shared)]) != shared:
            limit = min(len(shared), len(prompt) - 1)
            shared = shared[: next((i for i in range(limit) if shared[i] != prompt[i]), limit)]
    return shared or []


@torch.inference_mode()
def read_beginning(model: Model, tokens: Sequence[int], room: int = 0) -> Beginning:
    """Read at least one token that prompts begin with; `room`: tokens that may follow in each."""
    cache = model.init_cache(1, capacity=len(tokens) + room)
    model.prefill(torch.tensor([list(tokens)], device=model.embedding.weight.device), cache)
    return Beginning(list(tokens), cache)


def _read(
    model: Model, rows: list[_Row], prompts: Sequence[Sequence[int]], beginning: Beginning | None, max_tokens: int
) -> tuple[Cache, Tensor]:
    """Cache, and logits (B, V) after as much of the prompts as can be read together; the rest is the rows' `unread`.

    Padding may stand before a document, not within one: what follows a common beginning is therefore read as far as the
    shortest goes, and the rest (prompts of like lengths stand together) a token a step.
    """
    device = model.embedding.weight.device
    if beginning is None:
        tokens, documents = left_padded(prompts, device)
        cache = model.init_cache(len(rows), capacity=tokens.shape[1] + max_tokens)
        return cache, model.prefill(tokens, cache, documents=documents)
    cache = copy.deepcopy(beginning.cache)
    cache.select(torch.zeros(len(rows), dtype=torch.int64, device=device))
    together = min(map(len, prompts))
    for row, prompt in zip(rows, prompts, strict=True):
        row.unread = list(prompt[together:])
    return cache, model.prefill(torch.tensor([prompt[:together] for prompt in prompts], device=device), cache)


def _continue(
    model: Model,
    rows: list[_Row],
    cache: Cache,
    logits: Tensor,
    max_tokens: int,
    sampling: Sampling,
    allowed: int | None,
    on_text: OnText | None,
    enough: Callable[[str], bool] | None,
) -> None:
    while True:
        table = logits.double().cpu().numpy()
        if not np.isfinite(table).all():
            raise MmctlError("the model's logits are not finite: its training has diverged")
        going, following = [], []
        for place, (row, scores) in enumerate(zip(rows, table, strict=True)):
            if row.unread:
                going.append(place)
                following.append([row.unread.pop(0)])
                continue
            _take(row, scores, allowed, sampling, on_text)
            if not _finished(row, max_tokens, on_text, enough):
                going.append(place)
                following.append([row.made.tokens[-1]])
        if not going:
            return
        if len(going) < len(rows):
            cache.select(torch.tensor(going, device=logits.device))
            rows = [rows[place] for place in going]
        logits = model.step(torch.tensor(following, device=logits.device), cache)[:, -1]


def _finished(row: _Row, max_tokens: int, on_text: OnText | None, enough: Callable[[str], bool] | None) -> bool:
    """Whether nothing more is to be chosen for a row; then its text is given out to the end."""
    if row.stopper.stopped:
        return True
    if len(row.made.tokens) == max_tokens:
        _give(row, row.stopper.push(row.stream.flush()), on_text)
        _give(row, row.stopper.flush(), on_text)
        return True
    if enough is not None and enough(row.made.text):
        row.made.finish = "stop"
        return True
    return False


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
