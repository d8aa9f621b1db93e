"""Batch and heads as one dimension, in whichever order costs no copy, and buffers that are used again.

The operations return keys and values laid out as (H, B, T, D): the heads of one memory, cut from a call over
the heads of several, then still fold into one batch dimension without a copy.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch


def head_major(tensor: torch.Tensor) -> bool:
    """Whether (B, H, ...) folds into (H B, ...) rather than (B H, ...) without a copy."""
    return tensor.stride(1) >= tensor.stride(0)


def fold(tensor: torch.Tensor, by_head: bool) -> torch.Tensor:
    """(B, H, ...) -> (G, ...), a view where strides allow it."""
    return (tensor.transpose(0, 1) if by_head else tensor).flatten(0, 1)


def unfold(tensor: torch.Tensor, batch: int, heads: int, by_head: bool) -> torch.Tensor:
    """(G, ...) -> (B, H, ...), a view."""
    if by_head:
        return tensor.unflatten(0, (heads, batch)).transpose(0, 1)
    return tensor.unflatten(0, (batch, heads))


def folded_like(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, by_head: bool) -> torch.Tensor:
    """New (B, H, ...) tensor laid out as (G, ...), on the device of ``tensor``."""
    batch, heads, *rest = shape
    return unfold(tensor.new_empty((batch * heads, *rest), dtype=dtype), batch, heads, by_head)


@dataclass(frozen=True)
class Group:
    """Some heads of some sequences, worked on together: small enough for its buffers to stay in cache."""

    batch: slice
    heads: slice
    by_head: bool

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """This group's part (b, h, ...) of a (B or 1, H, ...) tensor; a view."""
        return tensor[self.batch if tensor.shape[0] > 1 else slice(None), self.heads]

    def fold(self, tensor: torch.Tensor) -> torch.Tensor:
        """This group's part of a (B, H, ...) tensor as (g, ...), a view where strides allow it."""
        return fold(self.of(tensor), self.by_head)

    def fold_view(self, part: torch.Tensor) -> torch.Tensor:
        """(b, h, ...) -> (g, ...), a view where strides allow it."""
        return fold(part, self.by_head)

    def unfold(self, tensor: torch.Tensor) -> torch.Tensor:
        """(g, ...) -> (b, h, ...), a view."""
        batch, heads = self.batch.stop - self.batch.start, self.heads.stop - self.heads.start
        return unfold(tensor, batch, heads, self.by_head)

    def fold_rows(self, flags: torch.Tensor, row: int, count: int) -> torch.Tensor:
        """Rows of a (B or 1, 1, T, 1) tensor for every head of the group: (g, count, 1)."""
        part = flags[self.batch if flags.shape[0] > 1 else slice(None), :, row : row + count]
        batch, heads = self.batch.stop - self.batch.start, self.heads.stop - self.heads.start
        return fold(part.expand(batch, heads, -1, -1), self.by_head)

    def contiguous(self, name: str, tensor: torch.Tensor, dtype: torch.dtype, scratch: Scratch) -> torch.Tensor:
        """This group's part of a (B, H, ...) tensor as contiguous (g, ...) in ``dtype``: itself, or a copy in a
        buffer."""
        part = self.of(tensor)
        batch, heads, *rest = part.shape
        ordered = part.transpose(0, 1) if self.by_head else part
        if part.dtype == dtype and ordered.is_contiguous():
            return ordered.flatten(0, 1)
        buffer = scratch.get(name, (batch * heads, *rest), dtype)
        self.unfold(buffer).copy_(part)
        return buffer


def groups(batch: int, heads: int, by_head: bool, size: int) -> Iterator[Group]:
    """Cut B x H into groups of about ``size``: whole outer slices, or parts of one."""
    outer, inner = (heads, batch) if by_head else (batch, heads)
    many, part = max(1, min(outer, size // inner)), min(inner, max(1, size))
    for first in range(0, outer, many):
        outers = slice(first, min(outer, first + many))
        for start in range(0, inner, inner if many > 1 else part):
            inners = slice(start, min(inner, start + (inner if many > 1 else part)))
            yield Group(inners, outers, True) if by_head else Group(outers, inners, False)


class Scratch:
    """Named buffers that are used again, within a call and, on a CPU, from call to call.

    Fresh memory costs a CPU more than the arithmetic done on it: the allocator returns large blocks to the
    system, which hands them out page by page. Kept buffers are per thread and no larger than `KEPT_BYTES` each.
    """

    KEPT_BYTES = 1 << 26
    _kept = threading.local()

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self.views: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}
        if device.type == "cpu":
            self.buffers = self._kept.__dict__.setdefault("buffers", self.buffers)

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Contiguous uninitialised tensor; valid until the same name is asked for again."""
        view = self.views.get((name, shape))
        if view is not None and view.dtype == dtype:
            return view
        size = math.prod(shape)
        buffer = self.buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            # A buffer made inside inference mode could not be written outside of it.
            with torch.inference_mode(False):
                buffer = torch.empty(size, dtype=dtype, device=self.device)
            if self.device.type != "cpu" or size * dtype.itemsize <= self.KEPT_BYTES:
                self.buffers[(name, dtype)] = buffer
        self.views[(name, shape)] = view = buffer[:size].view(shape)
        return view

    def cast(self, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``tensor`` itself where it has ``dtype`` and contiguous rows, else a copy in a buffer."""
        if tensor.dtype == dtype and tensor.stride(-1) == 1:
            return tensor
        return self.get(name, tuple(tensor.shape), dtype).copy_(tensor)

    @classmethod
    def clear(cls) -> None:
        """Let go of this thread's kept buffers."""
        cls._kept.__dict__.pop("buffers", None)
