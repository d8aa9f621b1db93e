"""The local launcher: long-lived worker processes, each running one job at a time.

Workers are reused from job to job, so torch is imported once a worker and not once a run. A worker that dies (killed,
out of memory, crashed) loses its job and nothing else: its place is filled anew. Each worker sees its own CUDA devices
and has its own folder for compiled kernels, so that no two compile into one file.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmctl.config import from_dict
from mmctl.errors import MmctlError, UsageError
from mmctl.runs import memory
from mmctl.sweeps.launchers import Event, Job, Resources
from mmctl.sweeps.launchers.job import SCRUBBED, TARGETS
from mmctl.sweeps.resources import CacheSlots, assign, visible_devices

MOST_FAILED_STARTS = 3
"""Workers in a row that die before they are ready, after which the launcher gives up."""


def checked(options: Mapping[str, str]) -> None:
    """UsageError for any option: it has none."""
    for option in options:
        raise UsageError(f'--launcher-option "{option}": launcher "local" has no options')


@dataclass
class _Place:
    number: int
    process: subprocess.Popen[bytes] | None = None
    channel: socket.socket | None = None
    job: Job | None = None
    ready: bool = False
    buffer: bytearray = field(default_factory=bytearray)


class LocalLauncher:
    """`resources.jobs` workers on this machine; their own output goes to `folder`/workers. It has no options."""

    def __init__(
        self,
        resources: Resources,
        folder: Path,
        options: Mapping[str, str] | None = None,
        *,
        targets: Mapping[str, str] = TARGETS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        checked(options or {})
        self.places = [_Place(i) for i in range(resources.jobs)]
        self.resources = resources
        self.logs = folder / "workers"
        self.targets = targets
        self.extra = environment or {}
        self.caches = CacheSlots()
        self.slots = [self.caches.take() for _ in self.places]
        self.kernel_kills = memory.killed()
        self.devices = assign(visible_devices(), resources.gpus, resources.jobs) if resources.gpus else None
        self.selector = selectors.DefaultSelector()
        self.failed_starts = 0
        self.leaving: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> LocalLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def free(self) -> int:
        return sum(place.job is None for place in self.places)

    @property
    def running(self) -> list[Job]:
        return [place.job for place in self.places if place.job is not None]

    def submit(self, jobs: Sequence[Job]) -> None:
        """Give each job to a free worker, starting one if need be."""
        for job in jobs:
            free = [place for place in self.places if place.job is None]
            place = next((p for p in free if p.process is not None), free[0])
            place.job = job
            if place.process is None:
                self._start(place)
            assert place.channel is not None
            with contextlib.suppress(OSError):  # it has just died: poll will say so
                place.channel.sendall(json.dumps(job.message()).encode() + b"\n")

    def poll(self, timeout: float) -> list[Event]:
        """Events since the last call, waiting at most `timeout` seconds for one."""
        events: list[Event] = []
        if not self.selector.get_map():
            time.sleep(timeout)
            return events
        for key, _ in self.selector.select(timeout):
            place: _Place = key.data
            assert place.channel is not None
            try:
                received = place.channel.recv(1 << 16)
            except OSError:
                received = b""
            place.buffer += received
            while (end := place.buffer.find(b"\n")) >= 0:
                line = bytes(place.buffer[:end])
                del place.buffer[: end + 1]
                events += self._read(place, json.loads(line))
            if not received:
                events += self._died(place)
        return events

    def cancel(self, number: int = signal.SIGTERM) -> None:
        """Pass a signal on to every worker: a training one saves and ends, an idle one ends. `poll` collects the
        rest."""
        for place in self.places:
            if place.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    place.process.send_signal(number)

    def close(self) -> None:
        """End every worker, killing those that do not go within a few seconds. Idempotent."""
        for place in self.places:
            self._forget(place)
            if place.process is not None:
                self.leaving.append(place.process)
                place.process = None
        deadline = time.monotonic() + 10.0
        while self.leaving:
            process = self.leaving.pop()
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.caches.close()

    def _start(self, place: _Place) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        with open(self.logs / f"worker-{place.number}.log", "ab") as log:
            # A session of its own: Ctrl-C in the terminal reaches the parent alone, which passes it on once.
            place.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "mmctl.sweeps.worker",
                    str(theirs.fileno()),
                    str(os.getpid()),
                    self.targets["train"],
                    self.targets["evaluate"],
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=self.environment(place.number),
                start_new_session=True,
            )
        theirs.close()
        place.channel, place.ready = ours, False
        place.buffer.clear()
        self.selector.register(ours, selectors.EVENT_READ, place)

    def _read(self, place: _Place, message: dict[str, Any]) -> list[Event]:
        kind = message.pop("event")
        if kind == "ready":
            place.ready, self.failed_starts = True, 0
            return []
        job = place.job
        if job is None or message.pop("id", None) != job.id:
            return []
        if kind == "done":
            place.job = None
            if message.pop("last", False):  # it is on its way out: its place is filled anew
                self._forget(place)
                assert place.process is not None
                self.leaving.append(place.process)
                place.process = None
        return [Event(kind, job, place.number, message)]

    def _died(self, place: _Place) -> list[Event]:
        process, job, ready = place.process, place.job, place.ready
        assert process is not None
        self._forget(place)
        try:
            code = process.wait(5.0)
        except subprocess.TimeoutExpired:  # it closed its channel and lives on: of no use
            process.kill()
            code = process.wait()
        place.process, place.job = None, None
        if not ready:
            self.failed_starts += 1
            if self.failed_starts >= MOST_FAILED_STARTS:
                raise MmctlError(f"workers do not start ({_cause(code)}): {self._last_line(place)}")
        if job is None:
            return []
        values: dict[str, Any] = {"state": "lost", "reason": f"its worker {_cause(code)}", "path": None}
        killed = memory.killed()
        if code == -signal.SIGKILL and killed > self.kernel_kills:  # the kernel says that it was for memory
            values |= {"state": "failed", "reason": memory.reason(from_dict(job.config)), "unrecorded": True}
        self.kernel_kills = killed
        return [Event("done", job, place.number, values)]

    def _forget(self, place: _Place) -> None:
        if place.channel is not None:
            self.selector.unregister(place.channel)
            place.channel.close()
            place.channel = None

    def _last_line(self, place: _Place) -> str:
        with contextlib.suppress(OSError):
            lines = (self.logs / f"worker-{place.number}.log").read_text(errors="replace").strip().splitlines()
            if lines:
                return lines[-1].strip()
        return "it left no message"

    def environment(self, place: int) -> dict[str, str]:
        """What the worker of a place sees."""
        environment = {k: v for k, v in os.environ.items() if k not in SCRUBBED}
        # Libraries read these when they are loaded; each run then sets its own number of threads.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[name] = str(self.resources.threads)
        if self.devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[place]
        return {**environment, **self.slots[place], **self.extra}


def _cause(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
