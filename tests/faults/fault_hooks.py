"""What is done to the processes of a sweep from inside: a journal of what they do, kills at chosen calls, a jumping
clock.

Nothing here is known to mmctl. `install` wraps functions of os, mlflow and mmctl in the process that calls it.

The journal is one line an event, "pid event subject detail", each written in one append, so its order is the order of
events: begin RUN STEP, step RUN N, saved RUN N (its rename is done), result RUN (likewise), kill POINT, born ROLE
PARENT.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POINTS = {
    "worker": (
        "checkpoint-write",
        "checkpoint-rename",
        "checkpoint-delete",
        "metrics-append",
        "evaluation-write",
        "result-write",
        "status-write",
        "mlflow-write",
        "folder-create",
    ),
    "parent": ("manifest-write", "report-write", "mlflow-write"),
}
"""Where a process can be told to kill itself."""


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, *words: Any) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        _write(descriptor, (" ".join(map(str, (os.getpid(), *words))) + "\n").encode())
        os.close(descriptor)

    def read(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []


_write = os.write


def arm(case: Path, role: str, point: str, number: int, when: str) -> Path:
    """The next process of `role` that comes to `point` for the `number`-th time kills itself there; the file that says
    so.

    when: "before" the call, "half" done, "after" it; MLflow: some milliseconds after its beginning.
    """
    path = case / f"armed-{role}.json"
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"point": point, "number": number, "when": when}))
    os.rename(draft, path)
    return path


class Hooks:
    def __init__(self, case: Path, role: str, clock: int | None = None) -> None:
        self.case, self.role = case, role
        self.journal = Journal(case / "journal")
        self.armed_file = case / f"armed-{role}.json"
        self.counts: dict[str, int] = {}
        self.rename, self.replace, self.pwrite = os.rename, os.replace, os.pwrite
        self.clock = random.Random(f"{clock}-{os.getpid()}") if clock is not None else None
        self.offset = 0.0

    def install(self) -> None:
        os.rename, os.replace, os.pwrite = self._rename, self._replace, self._pwrite  # type: ignore[assignment]
        self._mlflow()
        if self.role == "worker":
            self._training()
        if self.clock is not None:
            real = time.time
            time.time = lambda: real() + self.offset
        self.journal.write("born", self.role, os.getppid())

    # Kills

    def at(self, point: str) -> str | None:
        """When to be killed around the call that is about to be made at `point`; None for not at all."""
        try:
            armed = json.loads(self.armed_file.read_text())
        except FileNotFoundError:
            return None
        if armed["point"] != point:
            return None
        key = f"{point} {armed['number']} {armed['when']}"
        self.counts[key] = self.counts.get(key, 0) + 1
        if self.counts[key] < armed["number"]:
            return None
        try:
            self.armed_file.unlink()  # of two that come here at once, one is killed
        except FileNotFoundError:
            return None
        return str(armed["when"])

    def kill(self, point: str, when: str) -> None:
        self.journal.write("kill", point, when)
        os.kill(os.getpid(), signal.SIGKILL)

    def around(self, point: str | None, call: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        when = self.at(point) if point is not None else None
        if point is not None and when == "half" and half is not None:
            half()
        if point is not None and when in ("before", "half"):
            self.kill(point, when)
        result = call()
        return (lambda: self.kill(point, when) if point is not None and when is not None else None, result)

    # Renames and writes

    def _rename(self, source: Any, target: Any, **more: Any) -> None:
        place, new = Path(source), Path(target)
        point = None
        if re.fullmatch(r"step_\d+", new.name):
            point = "checkpoint-rename"
        elif re.fullmatch(r"step_\d+\.tmp", new.name):
            point = "checkpoint-delete"
        elif re.fullmatch(r"seed\d+", new.name) and place.name.endswith(".tmp"):
            point = "folder-create"
        then, _ = self.around(point, lambda: self.rename(source, target, **more))
        if point == "checkpoint-rename":
            self.journal.write("saved", label(new.parents[1]), new.name.removeprefix("step_"))
        then()

    def _replace(self, source: Any, target: Any, **more: Any) -> None:
        new = Path(target)
        ours = "mlflow-artifacts" not in new.parts
        point = {
            "result.json": "result-write",
            "status.json": "status-write",
            "manifest.json": None if "checkpoints" in new.parts else "manifest-write",
            "results.json": "report-write",
            "numbers.csv": "report-write",
            "report.md": "report-write",
            "report.html": "report-write",
        }.get(new.name, "evaluation-write" if new.parent.name == "eval" else None)
        point = point if ours else None
        then, _ = self.around(point, lambda: self.replace(source, target, **more), lambda: halve(Path(source)))
        if new.name == "result.json" and new.parent.name.startswith("seed"):  # not its copy in the store
            self.journal.write("result", label(new.parent))
        then()

    def _pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        point = "metrics-append" if len(data) > 200 else None  # not a lock's line
        return self._done(
            point,
            lambda: self.pwrite(descriptor, data, offset),
            lambda: self.pwrite(descriptor, data[: len(data) // 2], offset),
        )

    def _done(self, point: str | None, call: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        then, result = self.around(point, call, half)
        then()
        return result

    def _mlflow(self) -> None:
        import sys

        if "mlflow" not in sys.modules:
            return
        from mlflow import MlflowClient

        for name in ("create_run", "log_batch", "log_artifact", "set_terminated", "update_run"):
            original = getattr(MlflowClient, name)

            def call(client: Any, *words: Any, _original: Any = original, **more: Any) -> Any:
                when = self.at("mlflow-write")
                if when is not None:  # anywhere between the request and some way into the next one
                    delay = random.Random(time.perf_counter_ns()).uniform(0, 0.03)
                    threading.Timer(delay, self.kill, ("mlflow-write", "during")).start()
                return _original(client, *words, **more)

            setattr(MlflowClient, name, call)

    # Training

    def _training(self) -> None:
        import safetensors.torch

        from mmctl.runs import RunFolder

        save_file = safetensors.torch.save_file

        def save(tensors: Any, path: Any, *words: Any, **more: Any) -> None:
            then, _ = self.around("checkpoint-write", lambda: save_file(tensors, path, *words, **more))
            then()

        safetensors.torch.save_file = save
        truncate, append = RunFolder.truncate_metrics, RunFolder.append_metrics

        def began(run: RunFolder, step: int) -> None:
            truncate(run, step)
            self.journal.write("begin", label(run.path), step)

        def stepped(run: RunFolder, step: int, values: Any) -> None:
            append(run, step, values)
            self.journal.write("step", label(run.path), step)
            if self.clock is not None and self.clock.random() < 0.2:
                self.offset = self.clock.uniform(-2e6, 2e6)

        RunFolder.truncate_metrics = began  # type: ignore[method-assign]
        RunFolder.append_metrics = stepped  # type: ignore[method-assign]


def label(run: Path) -> str:
    return f"{run.parent.name}/{run.name}"


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)
