"""A worker process: `python -m mmctl.sweeps.worker FD PARENT EXECUTE EVALUATE`, started by launchers/local.py.

It imports torch once and then runs one job after another. Jobs come in and events go out as JSON lines over the private
socket FD; its own stdout and stderr go to the log of the run it works on, so nothing a library prints can be lost or be
taken for an event. It stops, saving its run, on SIGTERM or SIGINT and when its parent is gone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from mmctl.runs.process import end_with_parent
from mmctl.sweeps.launchers.job import perform

PROGRESS_EVERY_SECONDS = 0.25
NOTICE_SECONDS = 1.0
"""Within this a parent that closed the channel is known to be dead, if it is."""


class Worker:
    def __init__(self, channel: socket.socket, parent: int, execute: str, evaluate: str) -> None:
        self.channel = channel
        self.parent = parent
        self.targets = {"train": execute, "evaluate": evaluate}
        self.jobs: queue.Queue[dict[str, Any]] = queue.Queue()
        self.busy = self.stopping = False
        self._sent = 0.0

    def serve(self) -> None:
        """Run jobs until the parent closes the channel or a signal comes."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        threading.Thread(target=self._receive, daemon=True).start()
        self.send({"event": "ready"})
        while True:
            job = self.jobs.get()
            self.busy = True
            started = time.monotonic()
            try:
                outcome = perform(job, self.progress(job["id"]), self.targets)
            except KeyboardInterrupt:
                outcome = {"state": "interrupted", "reason": "stopped before anything was saved", "path": None}
            self.busy = False
            # After a failed allocation, what is left of the step would weigh on the next run: a new worker is clean.
            last = outcome["state"] == "interrupted" or str(outcome["reason"]).startswith("out of memory")
            seconds = time.monotonic() - started
            self.send({"event": "done", "id": job["id"], "seconds": seconds, "last": last, **outcome})
            if last:
                return

    def progress(self, job: int) -> Callable[[Any], None]:
        def listen(p: Any) -> None:
            now = time.monotonic()
            if now - self._sent < PROGRESS_EVERY_SECONDS and p.step < p.steps:
                return
            self._sent = now
            names = ("phase", "step", "steps", "loss", "tokens_per_second", "seconds_left")
            self.send({"event": "progress", "id": job, **{name: getattr(p, name) for name in names}})

        return listen

    def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the parent is gone; the receiver says so too
            self.channel.sendall(json.dumps(message).encode() + b"\n")

    def _receive(self) -> None:
        with self.channel.makefile("rb") as lines:
            for line in lines:
                self.jobs.put(json.loads(line))
        # End of file: the parent closed the channel or died. A second signal would cut short the saving that a first
        # one began, and of a death the kernel tells too (die_with_parent), a moment after the channel does.
        deadline = time.monotonic() + NOTICE_SECONDS
        while self.busy and sys.platform == "linux" and time.monotonic() < deadline:
            if os.getppid() != self.parent:
                return
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    def _stop(self, number: int, _frame: Any) -> None:
        if not self.busy:
            os._exit(0)
        # Outside the training loop, which has handlers of its own that save first. One that is told twice must not have
        # the saving interrupted that the first began.
        if not self.stopping:
            self.stopping = True
            raise KeyboardInterrupt


def die_with_parent(parent: int) -> None:
    """End when the sweep's process does, however it ends."""
    end_with_parent()
    if os.getppid() != parent:
        sys.exit(0)  # it died before we could ask


def main(arguments: list[str]) -> None:
    descriptor, parent, execute, evaluate = arguments
    faulthandler.enable()
    die_with_parent(int(parent))
    Worker(socket.socket(fileno=int(descriptor)), int(parent), execute, evaluate).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
