"""Forgetting induced without training (Stuffed Mamba, arXiv 2410.07145, section 5): a sliding window on Mamba-2's
states, and reading them with faster decay and weaker insertion. The weights are untouched; the run stays what it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mmctl.errors import UsageError
from mmctl.evaluation.changes import Change


@dataclass(frozen=True)
class Forgetting(Change):
    """The recurrence of `models.mamba2.StateChanges`, for every layer."""

    window: int | None = None
    """r: the state holds what the last r tokens wrote and nothing older, exactly: h_t - alpha_{t-r+1:t} h_{t-r}."""
    decay: float = 1.0
    """Factor on alpha (reduced retention; published choice 0.9999)."""
    insert: float = 1.0
    """Factor on B (reduced insertion; published choice 0.75)."""

    def check(self, config: Any) -> None:
        from mmctl.models.mamba2 import Mamba2Config, StateChanges

        if not isinstance(config.model, Mamba2Config):
            raise UsageError(f'forgetting: model "{config.model.name}" has no state to forget: expected mamba2')
        if (self.window, self.decay, self.insert) == (None, 1.0, 1.0):
            raise UsageError("forgetting: changes nothing: give window, decay or insert")
        try:
            StateChanges(self.decay, self.insert, self.window).validate()
        except UsageError as error:
            raise UsageError(f"forgetting.{error}") from None

    @contextlib.contextmanager
    def applied(self, model: Any, config: Any) -> Iterator[None]:
        self.check(config)
        with model.state_changes(decay=self.decay, insert=self.insert, window=self.window):
            yield None
