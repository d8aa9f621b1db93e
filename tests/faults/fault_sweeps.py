"""A tiny sweep of twelve runs under a folder of its own, that can be started, killed, started again and judged."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fault_checks as checks
import warm_start
from fault_hooks import Hooks, Journal

STEPS = 40
MATRIX = """
name: faults
question: Do results survive faults?
baseline: {set: {model.name: mosaic-v2}}
arms:
  - {name: kept}
  - {name: removed, evaluate: {remove_long_term: true}}
  - {name: constant, set: {model.bandwidth: constant}}
  - {name: transformer, set: {model.name: transformer}}
"""
WORDS = [
    f"training.steps={STEPS}", "training.warmup=4", "data.length=64", "data.batch=4", "data.mixture.text=0",
    "model.width=16", "model.heads=2", "model.ffn_width=32", "evaluation.examples=4", "evaluation.minimum_examples=2",
    "evaluation.lengths=[1]", "evaluation.resamples=100", "operation.log_every=1", "operation.checkpoint_every=4",
]  # fmt: skip


@dataclass
class Case:
    """One sweep and what was done to it."""

    folder: Path
    seeds: str = "0,1,2,3"
    mlflow: bool = False
    clock: int | None = None
    jobs: int = 2
    words: list[str] = field(default_factory=list)
    prepare: Callable[[], None] = lambda: None
    parents: set[int] = field(default_factory=set)
    commands: int = 0
    before: dict[str, dict[str, str]] = field(default_factory=dict)
    codes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.root = self.folder / "runs"
        self.journal = Journal(self.folder / "journal")
        (self.folder / "faults.yaml").write_text(MATRIX)

    def command(self) -> list[str]:
        mlflow = f"operation.mlflow={'true' if self.mlflow else 'false'}"
        seeds = self.seeds if "," in self.seeds else f"{self.seeds},"  # else it would be how many
        own = [str(self.folder / "faults.yaml"), "--seeds", seeds, "--jobs", str(self.jobs)]
        return ["ablate", *own, "--runs", str(self.root), *WORDS, mlflow, *self.words]

    def start(self, *words: str) -> int:
        """The command, once more; the pid of its process."""

        def hooked(role: str) -> Callable[[], None]:
            def prepare() -> None:
                self.prepare()
                Hooks(self.folder, role, self.clock).install()

            return prepare

        log = self.folder / "log"
        pid = warm_start.command([*self.command(), *words], log, hooked("parent"), hooked("worker"))
        self.parents.add(pid)
        self.commands += 1
        return pid

    def reap(self) -> list[int]:
        """Exit codes of parents that have ended since the last call."""
        ended = []
        for pid in list(self.parents):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.parents.discard(pid)
                ended.append(os.waitstatus_to_exitcode(status))
        self.codes += ended
        return ended

    def wait(self, seconds: float = 300.0) -> list[int]:
        """Until every parent has ended; their exit codes."""
        deadline, codes = time.monotonic() + seconds, []
        while self.parents:
            codes += self.reap()
            if time.monotonic() > deadline:
                self.stop()
                raise checks.Broken(f"{self.folder.name}: the sweep hangs (ended after {seconds:g} s)")
            time.sleep(0.02)
        return codes

    def finish(self, seconds: float = 300.0, most: int = 4) -> int:
        """The same command until it says that all is done; how often it took. Broken if `most` are not enough."""
        for number in range(1, most + 1):
            self.start()
            codes = self.wait(seconds)
            self.check()
            if codes == [0]:
                return number
        raise checks.Broken(f"{self.folder.name}: not complete after {most} commands more; see {self.folder / 'log'}")

    def workers(self) -> list[int]:
        """Living worker processes of this sweep, whoever started them."""
        born = [int(pid) for pid, event, role, *_ in self.journal.read() if (event, role) == ("born", "worker")]
        return [pid for pid in born if living(pid)]

    def check(self) -> None:
        """Broken if something that was finished is not as it was, or a traceback was shown to the user."""
        log = self.folder / "log"
        if log.exists() and b"Traceback" in log.read_bytes():
            raise checks.Broken(f"{self.folder.name}: a traceback on the screen")
        self.before = checks.kept(self.before, self.root)

    def judge(self, reference: dict[str, Any]) -> dict[str, int]:
        """Of a complete sweep: all invariants; counts for the summary."""
        self.check()
        counts = checks.trained_once(self.journal.read())
        checks.same(self.root, reference)
        return counts

    def stop(self) -> None:
        """End what still runs."""
        for pid in [*self.parents, *self.workers()]:
            kill(pid)
        for pid in list(self.parents):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self.parents.clear()


def living(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
