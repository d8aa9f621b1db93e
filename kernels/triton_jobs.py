"""Work in processes of their own that may die: a task's result, or one line that says how its process ended.

A compiler is C++: a failed assertion or the system's memory killer ends the process without an exception, and
`concurrent.futures` then gives up every task that is left and cannot say which one it was.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Failed:
    """Why a task has no result, on one line."""

    reason: str


def outcomes(
    function: Callable[[Any], Any], tasks: Iterable[Any], jobs: int, context: str = "spawn"
) -> Iterator[tuple[Any, Any]]:
    """(task, result or `Failed`) for every task, as they end; a process that dies costs its own task and no other.

    Args:
        function: importable by name, like the tasks' types.
        jobs: processes at a time, >= 1.
        context: how processes start, "spawn" or "fork".
    """
    waiting = deque(tasks)
    with tempfile.TemporaryDirectory() as folder:
        busy: dict[Connection, _Worker] = {}
        try:
            for number in range(min(jobs, len(waiting))):
                worker = _Worker(function, Path(folder) / str(number), context)
                worker.give(waiting.popleft())
                busy[worker.connection] = worker
            while busy:
                for connection in wait(list(busy)):
                    worker = busy.pop(connection)  # type: ignore[arg-type, call-overload]
                    task, result, alive = worker.answer()
                    if waiting:
                        worker = worker if alive else worker.again()
                        worker.give(waiting.popleft())
                        busy[worker.connection] = worker
                    else:
                        worker.stop()
                    yield task, result
        finally:
            for worker in busy.values():
                worker.stop(kill=True)


class _Worker:
    """One process and the task it works on."""

    def __init__(self, function: Callable[[Any], Any], errors: Path, context: str) -> None:
        self.function, self.errors, self.context = function, errors, context
        made = get_context(context)
        self.connection, theirs = made.Pipe()
        self.process = made.Process(target=_serve, args=(theirs, function, str(errors)), daemon=True)  # type: ignore[attr-defined]
        self.process.start()
        theirs.close()
        self.task: Any = None

    def again(self) -> _Worker:
        return _Worker(self.function, self.errors, self.context)

    def give(self, task: Any) -> None:
        self.task = task
        self.connection.send(task)

    def answer(self) -> tuple[Any, Any, bool]:
        """The task, its result, and whether the process lives on."""
        try:
            return self.task, self.connection.recv(), True
        except (EOFError, ConnectionResetError):
            self.process.join()
            return self.task, Failed(self._death()), False

    def _death(self) -> str:
        code = self.process.exitcode or 0
        ended = f"exited with {code}" if code >= 0 else f"died of {signal.Signals(-code).name}"
        hint = " (often: out of memory)" if code == -signal.SIGKILL else ""
        lines = self.errors.read_text(errors="replace").splitlines() if self.errors.exists() else []
        telling = [line.strip() for line in lines if "error" in line.lower() or "assert" in line.lower()] or lines[:1]
        return f"its process {ended}{hint}" + (f": {telling[0][:200]}" if telling else "")

    def stop(self, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        elif self.process.is_alive():
            with contextlib.suppress(OSError):
                self.connection.send(None)
        self.process.join()
        self.connection.close()


def _serve(connection: Connection, function: Callable[[Any], Any], errors: str) -> None:
    """Answer tasks until there is None, or nobody, left. What the compiler prints while it dies goes to a file of its
    own."""
    sys.stderr.flush()
    file = os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(file, 2)
    while True:
        try:
            task = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        if task is None:
            return
        try:
            answer = function(task)
        except Exception as error:
            first = (str(error).strip().splitlines() or ["no message"])[0]
            answer = Failed(f"{type(error).__name__}: {first[:300]}")
        connection.send(answer)
