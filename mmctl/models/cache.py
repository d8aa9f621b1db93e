"""What decoding keeps between tokens, so that a step costs one token and no more.

A model's cache holds what each block needs of the past: stored key-value pairs (all of them for long-term memory and
attention, the last h for short-term memory), the state of the key recurrence, and the newest position's half of a
value: v_i looks at x_{i+1} (memory-mosaics.md, section 3), so the newest pair is incomplete until the next token
arrives. No read misses it, for a read at t sees pairs up to t-1 only.

All rows of a batch stand at the same position. Prompts of different lengths are padded on the left, the padding being a
document of its own: nothing is read across a document's boundary, so a row is computed as if it were alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmctl.kernels import key_scan, memory_attention, value_extract
from mmctl.models.single_step import EXACT, read_one, scan_one, value_one

State = tuple[Tensor, Tensor]

FORGOTTEN = -1e5
"""Log scale of a key recurrence that starts anew: its sum is 0, and no gate's exponent is as low."""
RING_SLACK = 64
"""Positions beyond h in a ring's buffer: it is moved together once in so many tokens."""


class Series:
    """A tensor (B, H, n, D) growing along n: everything, or with `keep` only the last `keep` positions before a step.

    The ring of `keep` positions is stored unrolled, oldest first, in a buffer of fixed size.
    """

    def __init__(self, keep: int | None = None, capacity: int = 0) -> None:
        self.keep = keep
        self.capacity = capacity if keep is None else keep + RING_SLACK
        self.buffer: Tensor | None = None
        self.end = 0

    def extend(self, new: Tensor) -> Tensor:
        """Store `new` (B, H, c, D). Returns a view (or, of a ring, sometimes a copy) that ends with `new`: everything
        before it, or the last `keep` positions before it."""
        count = new.shape[2]
        if self.keep is not None and count > RING_SLACK:
            whole = torch.cat([*self.held(), new], dim=2)
            self.end = 0
            self._store(whole[:, :, -self.keep :])
            return whole
        if self.keep is not None and self.end + count > self.capacity:
            kept = [part.clone() for part in self.held()]  # a clone: the move overlaps
            self.end = 0
            for part in kept:
                self._store(part)
        self._store(new)
        assert self.buffer is not None
        first = 0 if self.keep is None else max(0, self.end - count - self.keep)
        return self.buffer[:, :, first : self.end]

    def held(self) -> list[Tensor]:
        """What is stored: everything, or the last `keep` positions; [] before the first."""
        if self.buffer is None:
            return []
        return [self.buffer[:, :, 0 if self.keep is None else max(0, self.end - self.keep) : self.end]]

    def replace_last(self, new: Tensor) -> None:
        """Overwrite the newest position with `new` (B, H, 1, D)."""
        assert self.buffer is not None
        self.buffer[:, :, self.end - 1 : self.end] = new

    def _store(self, new: Tensor) -> None:
        end = self.end + new.shape[2]
        if self.buffer is None or end > self.buffer.shape[2]:
            larger = max(self.capacity, end if self.buffer is None else end + end // 4)
            buffer = new.new_empty((*new.shape[:2], larger, new.shape[3]))
            if self.buffer is not None:
                buffer[:, :, : self.end] = self.buffer[:, :, : self.end]
            self.buffer = buffer
        self.buffer[:, :, self.end : end] = new
        self.end = end


class Pairs:
    """Stored key-value pairs (B, H, n, D); the newest value is incomplete until the next token completes it."""

    def __init__(self, keep: int | None = None, capacity: int = 0) -> None:
        self.keys, self.values = Series(keep, capacity), Series(keep, capacity)

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys (B, H, c, D) and their values; (B, H, c + 1, D) values begin with the last stored one, now
        complete.

        Returns keys and values as `Series.extend` does.
        """
        if values.shape[2] > keys.shape[2]:
            self.values.replace_last(values[:, :, :1])
            values = values[:, :, 1:]
        return self.keys.extend(keys), self.values.extend(values)


@dataclass
class Cache:
    """The cache of one batch: what decoding was started with, where it stands, and one entry a block."""

    batch: int
    """B, sequences."""
    delay: int | None
    """m of the long-term reads, fixed when the cache is made."""
    remove_long_term: bool
    """Long-term memories' outputs dropped: their pairs are not even stored."""
    capacity: int = 0
    """Tokens to make room for at once; more are taken all the same."""
    length: int = 0
    """Tokens so far, padding included."""
    documents: Tensor | None = None
    """(B, length) int32 ids, None when every row is one document."""
    layers: list[Any] = field(default_factory=list)

    def admit(self, tokens_BT: Tensor, documents: Tensor | None) -> dict[str, Any]:
        """Count the new tokens in, and say what their reads need: the context that `Model.context` gives a whole pass,
        with `position` of the first new token, `before` (B, 1), the id of the position before it, `stored` (B, length),
        all ids, and `first` (B, T), where each new token's document starts. Tokens without ids continue their row's
        last document. ValueError for wrong shapes.
        """
        batch, count = tokens_BT.shape
        if batch != self.batch or count < 1:
            raise ValueError(f"tokens: expected ({self.batch}, at least 1), got {tuple(tokens_BT.shape)}")
        if documents is not None and tuple(documents.shape) != tuple(tokens_BT.shape):
            raise ValueError(f"documents: expected {tuple(tokens_BT.shape)}, got {tuple(documents.shape)}")
        if documents is not None and self.documents is None and self.length:
            raise ValueError("documents: the tokens before these had none")
        before = None if self.documents is None else self.documents[:, -1:]
        if before is not None:
            documents = before.expand(batch, count) if documents is None else documents.to(torch.int32)
            self.documents = torch.cat([self.documents, documents], dim=1)  # type: ignore[list-item]
        elif documents is not None:
            documents = self.documents = documents.to(torch.int32)
        position, self.length = self.length, self.length + count
        return {
            "documents": documents,
            "before": before,
            "stored": self.documents,
            "first": document_firsts(self.documents, count),
            "position": position,
            "delay": self.delay,
            "remove_long_term": self.remove_long_term,
        }

    def bytes(self) -> int:
        """Bytes of everything held, without the room for tokens to come."""
        return sum(t.numel() * t.element_size() for t in _tensors([self.documents, self.layers]))

    def select(self, rows: Tensor) -> None:
        """Keep these rows only, in this order; a row may come more than once, to be continued in several ways."""
        self.batch = len(rows)
        if self.documents is not None:
            self.documents = self.documents[rows]
        self.layers = [_changed(layer, lambda t: t[rows]) for layer in self.layers]


def document_firsts(ids: Tensor | None, count: int) -> Tensor | None:
    """Position (B, count) at which the document of each of the last `count` positions starts, of ids (B, n); None for
    None."""
    if ids is None:
        return None
    begins = torch.ones_like(ids, dtype=torch.bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = torch.where(begins, torch.arange(ids.shape[1], device=ids.device), 0).cummax(dim=1).values
    return starts[:, -count:]


def scan_step(
    x: Tensor, log_gate: Tensor, log_decay: Tensor, state: State | None, context: Any
) -> tuple[Tensor, State]:
    """`key_scan` of the new positions (B, H, c, D) from the carried state: unit keys, and the state after them."""
    documents, before = context["documents"], context["before"]
    if state is not None and before is not None:
        anew = documents[:, :1] != before
        carried, maximum = state
        state = (carried.masked_fill(anew.unsqueeze(-1), 0.0), maximum.masked_fill(anew, FORGOTTEN))
    if state is not None and x.shape[2] == 1:
        return scan_one(x, log_gate, log_decay, state)
    return key_scan(x, log_gate, log_decay, documents=documents, state=state, return_state=True)


def value_step(psi: Tensor, gamma: Tensor, scale: Tensor, pending: Tensor | None, context: Any) -> Tensor:
    """`value_extract` of the new positions (B, H, c, D), after the completed value of the pending one if there is
    one."""
    documents, before = context["documents"], context["before"]
    if pending is not None and psi.shape[2] == 1:
        return value_one(psi, gamma, scale, pending)  # the last of a document is no exception: no read sees that pair
    if pending is not None:
        psi = torch.cat([pending, psi], dim=2)
        documents = None if documents is None else torch.cat([before, documents], dim=1)
    return value_extract(psi, gamma, scale, documents=documents)


def read_step(
    pairs: Pairs,
    keys: Tensor,
    values: Tensor,
    bandwidth: tuple[Tensor, Tensor, Tensor],
    context: Any,
    *,
    window: int | None = None,
    delay: int | None = None,
) -> Tensor:
    """Store the new pairs and read the memory with their keys (B, H, c, D); one of window and delay is given."""
    stored_keys, stored_values = pairs.extend(keys, values)
    count, stored = keys.shape[2], stored_keys.shape[2]
    if count == 1 and keys.dtype in EXACT:
        begin = context["position"] + 1 - stored
        return read_one(keys, stored_keys, stored_values, bandwidth, begin, context["first"], delay or 1)
    documents = context["stored"]
    return memory_attention(
        stored_keys,
        stored_values,
        bandwidth,
        documents=None if documents is None else documents[:, -stored:],
        query=keys if stored > count else None,
        query_offset=stored - count,
        window=window,
        delay=delay,
    )


def _tensors(thing: Any) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Series):
        yield from thing.held()
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from _tensors(part)
    elif hasattr(thing, "__dict__"):
        yield from _tensors(list(vars(thing).values()))


def _changed(thing: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`thing` with every tensor in it changed: lists and tuples anew, objects in place."""
    if isinstance(thing, Tensor):
        return change(thing)
    if isinstance(thing, list | tuple):
        return type(thing)(_changed(part, change) for part in thing)
    if hasattr(thing, "__dict__"):
        for name, part in vars(thing).items():
            setattr(thing, name, _changed(part, change))
    return thing
