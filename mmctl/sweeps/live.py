"""Live progress of a sweep, on stderr: a table on a terminal, timed lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmctl.training.progress import clock

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from mmctl.sweeps.launchers import Event
    from mmctl.sweeps.todo import Task

LINE_EVERY_SECONDS = 15.0
EVALUATION = 0.15
"""Weight of an evaluation beside a training in the estimate of the time left."""


@dataclass
class _Row:
    label: str
    phase: str = "starting"
    step: int = 0
    steps: int = 0
    loss: float | None = None
    left: float | None = None
    shown: float = 0.0

    def update(self, values: dict[str, Any]) -> None:
        self.phase, self.step, self.steps = values["phase"], values["step"], values["steps"]
        self.loss, self.left = values.get("loss"), values.get("seconds_left")

    def words(self) -> list[str]:
        return [
            self.label,
            self.phase,
            f"{self.step}/{self.steps}" if self.steps else "",
            "" if self.loss is None else f"{self.loss:.4f}",
            "" if self.left is None else clock(self.left),
        ]


class _Counts:
    """What both boards keep: how many are done, and when the rest will be."""

    def __init__(self) -> None:
        self.total = self.kept = 0
        self.ended: dict[tuple[str, str], str] = {}  # (kind, run) -> state: one that is tried again is still one job
        self.work = 0.0
        self.rows: dict[int, _Row] = {}
        self.started = time.monotonic()

    def begin(self, tasks: Sequence[Task], done: int) -> None:
        self.kept = done
        self.total = sum((t.kind == "train") + bool(t.changes) for t in tasks)
        self.work = sum((t.kind == "train") + EVALUATION * bool(t.changes) for t in tasks)
        self.started = time.monotonic()

    def count(self, event: Event) -> None:
        if event.kind == "progress":
            self.rows.setdefault(event.place, _Row(event.job.label)).label = event.job.label
            self.rows[event.place].update(event.values)
            return
        self.rows.pop(event.place, None)
        self.ended[event.job.kind, event.job.label] = event.values["state"]

    @property
    def done(self) -> int:
        return len(self.ended)

    @property
    def failed(self) -> int:
        return sum(state not in ("finished", "interrupted") for state in self.ended.values())

    @property
    def worked(self) -> float:
        return sum(1.0 if kind == "train" else EVALUATION for kind, _ in self.ended)

    def left(self) -> float | None:
        """Seconds left by the pace so far; None before anything has finished."""
        if not self.done:
            return None
        elapsed = time.monotonic() - self.started
        return elapsed / self.worked * max(0.0, self.work - self.worked)

    def summary(self) -> str:
        parts = [f"{self.done}/{self.total} jobs"]
        if self.kept:
            parts.append(f"{self.kept} runs already finished")
        if self.failed:
            parts.append(f"{self.failed} failed")
        parts.append(f"{clock(time.monotonic() - self.started)} so far")
        left = self.left()
        if left is not None and self.done < self.total:
            parts.append(f"about {clock(left)} left")
        return ", ".join(parts)


def ending(event: Event) -> str:
    """One line for a finished job, with the reason of a failure."""
    values = event.values
    what = "evaluated" if event.job.kind == "evaluate" else "finished"
    if values["state"] == "finished":
        took = f" in {clock(values['seconds'])}" if values.get("seconds") is not None else ""
        return f"{event.job.label}: {'already ' if values.get('skipped') else ''}{what}{took}"
    return f"{event.job.label}: {values['state']}: {values.get('reason') or 'no reason given'}"


class LineBoard:
    """Timed lines: every job's end at once, its progress now and then."""

    def __init__(self) -> None:
        self.counts = _Counts()
        self.last: dict[int, float] = {}

    def begin(self, tasks: Sequence[Task], done: int) -> None:
        self.counts.begin(tasks, done)
        self._say(self.counts.summary())

    def event(self, event: Event) -> None:
        self.counts.count(event)
        if event.kind == "done":
            self.last.pop(event.place, None)
            self._say(f"{ending(event)} ({self.counts.summary()})")
            return
        now = time.monotonic()
        if now - self.last.get(event.place, 0.0) >= LINE_EVERY_SECONDS:
            self.last[event.place] = now
            label, phase, step, loss, left = self.counts.rows[event.place].words()
            loss, left = loss and f", loss {loss}", left and f", {left} left"
            self._say(f"{label}: {phase} {step}{loss}{left}")

    def note(self, text: str) -> None:
        self._say(text)

    def tick(self) -> None:
        pass

    def end(self) -> None:
        pass

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class TableBoard:
    """A Rich table, one row a worker; finished and failed jobs scroll by above it."""

    def __init__(self) -> None:
        self.counts = _Counts()
        self.live: Live | None = None

    def begin(self, tasks: Sequence[Task], done: int) -> None:
        from rich.console import Console
        from rich.live import Live

        self.counts.begin(tasks, done)
        self.live = Live(self._table(), console=Console(stderr=True), refresh_per_second=4, transient=True)
        self.live.start()

    def event(self, event: Event) -> None:
        self.counts.count(event)
        if event.kind == "done":
            self.note(ending(event))

    def note(self, text: str) -> None:
        from rich.text import Text

        if self.live is not None:
            self.live.console.print(Text(f"{time.strftime('%H:%M:%S')} {text}"))

    def tick(self) -> None:
        if self.live is not None:
            self.live.update(self._table())

    def end(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self.counts.summary()), title_justify="left", title_style="")
        for name in ("run", "phase", "step", "loss", "left"):
            table.add_column(name, justify="left" if name in ("run", "phase") else "right")
        for place in sorted(self.counts.rows):
            table.add_row(*map(Text, self.counts.rows[place].words()))
        return table


def board() -> LineBoard | TableBoard:
    """The one that suits stderr."""
    return TableBoard() if sys.stderr.isatty() else LineBoard()
