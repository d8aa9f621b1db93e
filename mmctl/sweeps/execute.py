"""A sweep from plan to results: run what is missing, go on past failures, evaluate the arms that need no training.

The sweep keeps no state of its own beside the run folders: what is finished is read from them, so it can be stopped and
started again at any moment, by the same command, and shares runs with every other command.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mmctl.config import to_dict
from mmctl.errors import EXIT_DONE, EXIT_FAILED
from mmctl.sweeps import evaluating
from mmctl.sweeps.launchers import Event, Job, Launcher
from mmctl.sweeps.matrix import Changes
from mmctl.sweeps.plan import Plan, Run

POLL_SECONDS = 0.25
BUSY_SECONDS = 2.0
"""Pause before asking again for a run that another process holds."""
GRACE_SECONDS = 120.0
"""Time for workers to save after a signal; a second signal ends it."""


@dataclass(frozen=True)
class Options:
    """What to do about failures and finished runs. `max_failures`: stop starting new work at that many (None: never)."""

    force: bool = False
    retry_failed: bool = False
    max_failures: int | None = None


@dataclass
class Task:
    """One run's way through the sweep: training, then evaluations with changes."""

    run: Run
    state: str
    changes: list[Changes] = field(default_factory=list)
    kind: str = "train"
    not_before: float = 0.0
    tries: int = 0
    reason: str | None = None


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


class Sweep:
    """Runs a plan's missing work on a launcher."""

    def __init__(
        self,
        plan: Plan,
        root: Path,
        launcher: Launcher,
        board: Board,
        options: Options = Options(),
        parent_run_id: str | None = None,
    ) -> None:
        self.plan, self.root, self.launcher, self.board, self.options = plan, root, launcher, board, options
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
        return Outcome(code, self.ran, skipped, failures, self.signals[0] if self.signals else None, gave_up)

    def _submit(self) -> None:
        now, free, jobs = time.monotonic(), self.launcher.free, []
        for _ in range(len(self.waiting)):
            if len(jobs) == free:
                break
            task = self.waiting.popleft()
            if task.not_before > now:
                self.waiting.append(task)
                continue
            self._next += 1
            job = self._job(task)
            self.active[job.id] = task
            jobs.append(job)
        if jobs:
            self.launcher.submit(jobs)

    def _job(self, task: Task) -> Job:
        run = task.run
        overrides = run.cell.train_words(run.seed)
        arguments: dict[str, Any]
        if task.kind == "train":
            uses = {f"ablation/{use.ablation}": use.arm for use in run.cell.uses if not use.changes}
            tags = {"sweep": self.plan.name, "cell": run.cell.name, **uses}
            arguments = {"overrides": overrides, "parent_run_id": self.parent_run_id, "tags": tags}
        else:
            arguments = {"changes": [asdict(c) for c in task.changes]}
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


def todo(plan: Plan, root: Path, options: Options) -> list[Task]:
    """One task a run: state "waiting" for what is missing, "finished", or "diverged" for what would diverge again.

    A run that failed, was lost or interrupted is missing, as one that never started. One that diverged is a result: it is
    reported, and run again only with retry_failed.
    """
    from mmctl.runs import RunFolder

    tasks = []
    for run in plan.runs():
        config = run.config
        folder = RunFolder.locate(root, config)
        changes = run.cell.changes(run.seed, plan.seeds)
        if folder is not None and options.force and folder.finished:
            set_aside(folder, root)
            folder = None
        if folder is not None and folder.finished and not needs_evaluation(folder, config):
            missing = [c for c in changes if evaluating.missing(folder, config, c)]
            tasks.append(Task(run, "waiting" if missing else "finished", missing, "evaluate"))
        elif folder is not None and folder.state() == "diverged" and not options.retry_failed:
            tasks.append(Task(run, "diverged", reason="diverged in an earlier run (--retry-failed runs it again)"))
        else:
            tasks.append(Task(run, "waiting", changes))
    return tasks


def needs_evaluation(folder: Any, config: Any) -> bool:
    return bool(evaluating.missing(folder, config, Changes()))


def set_aside(folder: Any, root: Path) -> Path:
    """--force: an old outcome is never rewritten, it is moved to runs/replaced/ and the run starts anew."""
    target = root / "replaced" / f"{folder.path.parent.name}-{folder.path.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with folder.lock():
        folder.path.rename(target)
    return target


@contextlib.contextmanager
def catching(received: list[int]) -> Iterator[None]:
    """SIGINT and SIGTERM append to `received` instead of ending the process. Only in the main thread, as signals are."""
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
