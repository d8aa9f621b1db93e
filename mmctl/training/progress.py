"""Progress for a person: a Rich bar on a terminal, plain timed lines in a log. Both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

LINE_EVERY_SECONDS = 10.0


@dataclass
class Progress:
    """One moment of a run."""

    run: str
    phase: str
    step: int
    steps: int
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None

    def line(self) -> str:
        parts = [f"{self.run}: {self.phase} {self.step}/{self.steps}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:,.0f} tokens/s")
        if self.seconds_left is not None:
            parts.append(f"{clock(self.seconds_left)} left")
        return " · ".join(parts)


Listener = Callable[[Progress], None]


def clock(seconds: float) -> str:
    """75 -> '1:15'; 3700 -> '1:01:40'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def silent(_: Progress) -> None:
    """Listener that shows nothing."""


class Reporter:
    """Context manager giving a `Listener` that suits the terminal."""

    def __init__(self) -> None:
        self._last = 0.0
        self._phase = ""
        self._bar: object | None = None

    def __enter__(self) -> Listener:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as RichProgress

            bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[detail]}"),
                console=Console(stderr=True),
            )
            bar.start()
            task = bar.add_task("", total=1, detail="")
            self._bar = bar

            def show(p: Progress) -> None:
                detail = p.line().split(" · ", 1)[1] if " · " in p.line() else ""
                bar.update(
                    task,
                    description=f"{p.run} {p.phase} {p.step}/{p.steps}",
                    total=p.steps,
                    completed=p.step,
                    detail=detail,
                )

            return show
        return self._show_line

    def _show_line(self, p: Progress) -> None:
        now = time.monotonic()
        if p.phase == self._phase and p.step < p.steps and now - self._last < LINE_EVERY_SECONDS:
            return
        self._last, self._phase = now, p.phase
        print(f"{time.strftime('%H:%M:%S')} {p.line()}", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()  # type: ignore[attr-defined]
