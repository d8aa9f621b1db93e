"""A worker process: `python -m mmctl.sweeps.worker FD PARENT EXECUTE EVALUATE`, started by workers.py.

It imports torch once and then runs one job after another. Jobs come in and events go out as JSON lines over the private
socket FD; its own stdout and stderr go to the log of the run it works on, so nothing a library prints can be lost or be
taken for an event. It stops, saving its run, on SIGTERM or SIGINT and when its parent is gone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
                outcome = self.run(job)
            except KeyboardInterrupt:
                outcome = {"state": "interrupted", "reason": "stopped before anything was saved", "path": None}
            self.busy = False
            self.send({"event": "done", "id": job["id"], "seconds": time.monotonic() - started, **outcome})
            if outcome["state"] == "interrupted":
                return

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """One job; every way of failing becomes an outcome, with the traceback in the run's log."""
        from mmctl.config import from_dict
        from mmctl.errors import MmctlError
        from mmctl.runs import RunFolder
        from mmctl.runs.lock import Locked

        root = Path(job["root"])
        try:
            config = from_dict(job["config"])
            run = RunFolder.locate(root, config)
            if run is None:
                try:
                    run = RunFolder.create(root, config, job["overrides"])
                except (MmctlError, FileExistsError):
                    # Another sweep may have made it this very moment.
                    run = RunFolder.locate(root, config)
                    if run is None:
                        raise
            with logged(run.log_path):
                try:
                    outcome = self.target(job["kind"])(
                        config, root, listener=self.progress(job["id"]), **job["arguments"]
                    )
                except Locked as error:
                    return {"state": "busy", "reason": str(error), "path": str(run.path)}
                except MmctlError as error:
                    return {"state": "failed", "reason": str(error), "path": str(run.path)}
                except Exception as error:
                    import traceback

                    traceback.print_exc()
                    return {"state": "failed", "reason": _line(error), "path": str(run.path)}
            return {
                "state": outcome.state,
                "reason": outcome.reason,
                "path": str(outcome.path),
                "skipped": outcome.skipped,
            }
        except Exception as error:
            import traceback

            traceback.print_exc()
            return {"state": "failed", "reason": _line(error), "path": None}

    def target(self, kind: str) -> Callable[..., Any]:
        module, _, attribute = self.targets[kind].partition(":")
        return getattr(importlib.import_module(module), attribute)

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
        # End of file: the parent closed the channel or died. A second signal would cut short the saving that a first one
        # began, and of a death the kernel tells too (die_with_parent), a moment after the channel does.
        deadline = time.monotonic() + NOTICE_SECONDS
        while self.busy and sys.platform == "linux" and time.monotonic() < deadline:
            if os.getppid() != self.parent:
                return
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    def _stop(self, number: int, _frame: Any) -> None:
        if not self.busy:
            os._exit(0)
        # Outside the training loop, which has handlers of its own that save first. One that is told twice must not have the
        # saving interrupted that the first began.
        if not self.stopping:
            self.stopping = True
            raise KeyboardInterrupt


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
    """Everything written to descriptors 1 and 2 inside, by Python or not, is appended to `path`."""
    before = os.dup(1), os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    _flush()
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        yield
    finally:
        _flush()
        os.dup2(before[0], 1)
        os.dup2(before[1], 2)
        for descriptor in (log, *before):
            os.close(descriptor)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent dies (Linux), so that a killed sweep leaves nothing running."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)  # it died before we could ask


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _line(error: Exception) -> str:
    first = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def main(arguments: list[str]) -> None:
    descriptor, parent, execute, evaluate = arguments
    faulthandler.enable()
    die_with_parent(int(parent))
    Worker(socket.socket(fileno=int(descriptor)), int(parent), execute, evaluate).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
