"""SIGINT and SIGTERM: collected by the loop, which saves first; outside of it an exception, so that the end is
recorded."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmctl.training.ranks import Stopped

AGAIN = 1.0
"""Seconds after which a second signal is a second request. Launchers, and the kernel when a parent of many threads
dies, send the same one several times."""


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying, so that a step is finished and saved first. A second one kills."""
    received: list[int] = []
    first = 0.0
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _: Any) -> None:
        nonlocal first
        if not received:
            received.append(number)
            first = time.monotonic()
        elif time.monotonic() - first >= AGAIN:
            raise Stopped(number)

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Terminable:
    """SIGTERM raises `Stopped` where nobody handles it, as SIGINT raises KeyboardInterrupt: the state gets recorded.

    While `muted`, both wait until they can do no harm (SIGTERM) or are left out (a launcher sends them to all).
    """

    muted = False

    def __enter__(self) -> Terminable:
        ours = threading.current_thread() is threading.main_thread()
        self._set = ours and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if self._set:
            signal.signal(signal.SIGTERM, self._stop)
        return self

    def _stop(self, number: int, _: Any) -> None:
        if not self.muted:
            raise Stopped(number)

    def __exit__(self, *_: object) -> None:
        if self._set:
            signal.signal(signal.SIGTERM, signal.SIG_IGN if self.muted else signal.SIG_DFL)
