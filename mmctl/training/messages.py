"""What the processes of a run tell each other besides numbers: through the store they met at, which outlives any of
them.

Collectives cannot do this: one that a process has left for another purpose gives the rest wrong values, or never
returns.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from mmctl.errors import MmctlError, OutOfMemory, first_line
from mmctl.runs.process import Owner
from mmctl.training.ranks import Stopped

NEWS = 5.0
"""Seconds in which it becomes known which process ended, once a collective has failed."""
PAUSE = 0.02
"""Seconds between two looks at the store, whose own waiting would not let a signal through."""


class Messages:
    """Process `rank`'s place in the store of a run of `size` processes."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self._told: set[str] = set()
        self._owners: list[Owner | None] | None = None
        self._set(f"owner/{rank}", Owner.me().record())

    def tell(self, topic: str, **what: Any) -> None:
        """Once a topic; what is told later about it is left out."""
        if topic not in self._told:
            self._told.add(topic)
            with contextlib.suppress(RuntimeError):  # the store went with its process: nobody is left to hear it
                self._set(topic, what)

    def hear(self, topic: str, seconds: float | None = None) -> dict[str, Any] | None:
        """What process 0 told; None when it is gone, or after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while not self._there(topic):
                if (deadline is not None and time.monotonic() > deadline) or self._gone(0):
                    return self._get(topic) if self._there(topic) else None
                time.sleep(PAUSE)
            return self._get(topic)
        except RuntimeError:  # the store is gone
            return None

    def part(self) -> None:
        """Before the end. The store may live in process 0: it waits until the others have heard how the run ended."""
        self.tell(f"parted/{self.rank}")
        waited = [] if self.rank else range(1, self.size)
        deadline = time.monotonic() + NEWS
        with contextlib.suppress(RuntimeError):  # the store is gone: nobody waits
            while time.monotonic() < deadline and not all(self._there(f"parted/{r}") or self._gone(r) for r in waited):
                time.sleep(PAUSE)

    def report(self, error: BaseException) -> None:
        """Why this process ends."""
        text = first_line(error)
        if isinstance(error, KeyboardInterrupt) and not hasattr(error, "signal"):
            error = Stopped(2)
        self.tell(
            f"end/{self.rank}", error=text, signal=getattr(error, "signal", None), fits=getattr(error, "fits", None)
        )

    def explain(self, error: BaseException) -> BaseException:
        """What ended another process, when `error` is only that this one can no longer reach it; else `error`."""
        interrupted = isinstance(error, KeyboardInterrupt)
        if not interrupted and not isinstance(error, RuntimeError):
            return error
        deadline = time.monotonic() + (0.0 if interrupted else NEWS)
        while True:
            for rank in range(self.size):
                if rank != self.rank and (found := self._end(rank)) is not None:
                    return error if interrupted and isinstance(found, Stopped) else found
            if time.monotonic() >= deadline:
                return error
            time.sleep(PAUSE)

    def _end(self, rank: int) -> BaseException | None:
        """Why process `rank` ended, None while it lives."""
        who = f"process {rank} of {self.size}"
        try:
            if self._there(f"end/{rank}"):
                told = self._get(f"end/{rank}")
                if told["signal"]:
                    return Stopped(told["signal"])
                if told["fits"] is not None:
                    return OutOfMemory(f"{who}: {told['error']}", told["fits"])
                return MmctlError(f"{who}: {told['error']}")
            return MmctlError(f"{who} is gone (killed?)") if self._gone(rank) else None
        except RuntimeError:
            return MmctlError(f"the other processes of {self.size} are gone")

    def _gone(self, rank: int) -> bool:
        """Whether the process is known to be dead. Of one on another machine this is never known."""
        if self._owners is None:
            self._owners = [Owner.of(self._get(f"owner/{r}")) for r in range(self.size)]
        owner = self._owners[rank]
        return owner is not None and owner.gone() is True

    def _there(self, topic: str) -> bool:
        return bool(self.store.check([f"mmctl/{topic}"]))

    def _get(self, topic: str) -> Any:
        return json.loads(self.store.get(f"mmctl/{topic}"))

    def _set(self, topic: str, what: Any) -> None:
        self.store.set(f"mmctl/{topic}", json.dumps(what))
