"""A sweep from plan to results: run what is missing, go on past failures, evaluate the arms that need no training.

The sweep keeps no state of its own beside the run folders: what is finished is read from them, so it can be stopped and
started again at any moment, by the same command, and shares runs with every other command. Two sweeps at once share the
work: a run's lock lets one of them train it, and the other goes on with what nobody has.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mmctl.config import to_dict
from mmctl.errors import EXIT_DONE, EXIT_FAILED
from mmctl.sweeps.launchers import Event, Job, Launcher
from mmctl.sweeps.plan import Plan
from mmctl.sweeps.todo import Options, Task, look, record, todo

POLL_SECONDS = 0.25
BUSY_SECONDS = 2.0
"""Pause before asking again for a run that another process holds."""
GRACE_SECONDS = 120.0
"""Time for workers to save after a signal; a second signal ends it."""


class Board(Protocol):
    """Shows a sweep as it goes. `live.py` has the two that people see."""

    def begin(self, tasks: Sequence[Task], done: int) -> None: ...
    def event(self, event: Event) -> None: ...
    def note(self, text: str) -> None: ...
    def tick(self) -> None: ...
    def end(self) -> None: ...


@dataclass
class Outcome:
    """How a sweep ended. `failures`: one entry a run that is not finished, with state and reason."""

    exit_code: int
    ran: int
    skipped: int
    failures: list[dict[str, Any]]
    stopped_by: int | None = None
    gave_up: bool = False
    left: int = 0
    """Runs that were not started, or not ended."""


class Sweep:
    """Runs a plan's missing work on a launcher."""

    def __init__(
        self,
        plan: Plan,
        root: Path,
        launcher: Launcher,
        board: Board,
        options: Options | None = None,
        parent_run_id: str | None = None,
    ) -> None:
        self.plan, self.root, self.launcher, self.board = plan, root, launcher, board
        self.options = options or Options()
        self.parent_run_id = parent_run_id
        self.waiting: deque[Task] = deque()
        self.active: dict[int, Task] = {}
        self.failed: list[Task] = []
        self.earlier = 0
        self.ran = 0
        self.retried = False
        self.signals: list[int] = []
        self._next = 0

    def run(self) -> Outcome:
        """Work until nothing is missing, too much has failed, or a signal comes."""
        tasks = todo(self.plan, self.root, self.options)
        self.waiting.extend(t for t in tasks if t.state == "waiting")
        self.failed.extend(t for t in tasks if t.state not in ("waiting", "finished"))
        self.earlier = len(self.failed)
        skipped = sum(t.state == "finished" for t in tasks)
        self.board.begin(list(self.waiting), skipped)
        gave_up = False
        with catching(self.signals):
            try:
                while (self.waiting or self.active) and not self.signals:
                    gave_up = gave_up or self._too_many()
                    if gave_up and not self.active:
                        break
                    if not gave_up:
                        self._submit()
                    for event in self.launcher.poll(POLL_SECONDS):
                        self._handle(event)
                    self.board.tick()
                    self._retry()
                if self.signals:
                    self._stop()
            finally:
                self.board.end()
        failures = [
            {
                "label": t.run.label,
                "identity": t.run.cell.identity,
                "seed": t.run.seed,
                "state": t.state,
                "reason": t.reason,
            }
            for t in self.failed
        ]
        code = 128 + self.signals[0] if self.signals else EXIT_FAILED if failures or self.waiting else EXIT_DONE
        stopped_by = self.signals[0] if self.signals else None
        return Outcome(code, self.ran, skipped, failures, stopped_by, gave_up, len(self.waiting) + len(self.active))

    def _submit(self) -> None:
        now, free = time.monotonic(), self.launcher.free
        jobs: list[Job] = []
        for _ in range(len(self.waiting)):
            if len(jobs) == free:
                break
            task = self.waiting.popleft()
            if task.not_before > now:
                self.waiting.append(task)
                continue
            if not self._ours(task):
                continue
            self._next += 1
            job = self._job(task)
            self.active[job.id] = task
            jobs.append(job)
        if jobs:
            self.launcher.submit(jobs)

    def _ours(self, task: Task) -> bool:
        """Whether to start this task now; one that another process has is put back, one that it could not finish
        noted."""
        state, reason = look(task, self.root, self.options)
        if state == "busy":
            task.not_before = time.monotonic() + BUSY_SECONDS
            self.waiting.append(task)
        elif state != "waiting":
            task.state, task.reason = state, reason
            self.failed.append(task)
            self.board.note(f"{task.run.label}: {state}: {reason}")
        return state == "waiting"

    def _job(self, task: Task) -> Job:
        run = task.run
        overrides = run.cell.train_words(run.seed)
        arguments: dict[str, Any]
        if task.kind == "train":
            uses = {f"ablation/{use.ablation}": use.arm for use in run.cell.uses if not use.changes}
            tags = {"sweep": self.plan.name, "cell": run.cell.name, **uses}
            arguments = {"overrides": overrides, "parent_run_id": self.parent_run_id, "tags": tags}
        else:
            arguments = {"changes": [c.record() for c in task.changes]}
        command = ["mmctl", "train", self.plan.profile.preset, *overrides]
        return Job(self._next, task.kind, run.label, to_dict(run.config), self.root, overrides, arguments, command)

    def _handle(self, event: Event) -> None:
        task = self.active.get(event.job.id)
        if task is None:
            return
        if event.kind != "done":
            self.board.event(event)
            return
        del self.active[event.job.id]
        state, task.reason = event.values["state"], event.values.get("reason")
        if state == "busy":
            task.not_before = time.monotonic() + BUSY_SECONDS
            self.waiting.append(task)
            return
        if state == "lost" and not task.tries and not self.signals:
            # The process went, not the run: what it saved is resumed, once.
            task.tries = 1
            self.waiting.append(task)
            self.board.note(f"{task.run.label}: lost: {task.reason}; it is resumed once")
            return
        if event.values.get("unrecorded"):
            record(task, self.root, state, task.reason)
        self.board.event(event)
        if state != "finished":
            task.state = state
            self.failed.append(task)
            return
        if task.kind == "train":
            self.ran += not event.values.get("skipped")
            if task.changes:
                task.kind = "evaluate"
                self.waiting.appendleft(task)
                return
        task.state = "finished"

    def _too_many(self) -> bool:
        limit = self.options.max_failures
        new = len(self.failed) - self.earlier
        if limit is None or new < limit:
            return False
        self.board.note(f"{new} failed: nothing new is started, what runs is finished")
        return True

    def _retry(self) -> None:
        """With retry_failed, what failed in this sweep gets one more try once everything else is done."""
        if self.retried or not self.options.retry_failed or self.waiting or self.active or not self.failed:
            return
        self.retried = True
        again = [t for t in self.failed if t.state != "interrupted"]
        self.failed = [t for t in self.failed if t.state == "interrupted"]
        for task in again:
            task.state, task.tries = "waiting", task.tries + 1
            self.waiting.append(task)
        self.board.note(f"trying {len(again)} failed once more")

    def _stop(self) -> None:
        """Pass the signal on and let the workers save; a second signal, or too long a wait, ends that."""
        self.launcher.cancel(self.signals[0])
        if self.active:
            self.board.note(f"{signal.Signals(self.signals[0]).name}: saving {len(self.active)} running")
        deadline = time.monotonic() + GRACE_SECONDS
        while self.active and len(self.signals) < 2 and time.monotonic() < deadline:
            for event in self.launcher.poll(POLL_SECONDS):
                self._handle(event)
            self.board.tick()


@contextlib.contextmanager
def catching(received: list[int]) -> Iterator[None]:
    """SIGINT and SIGTERM append to `received` instead of ending the process. Only in the main thread, as signals
    are."""
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, _: Any) -> None:
        received.append(number)

    before: dict[int, Callable[..., Any] | int | None] = {}
    for watched in (signal.SIGINT, signal.SIGTERM):
        before[watched] = signal.signal(watched, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
