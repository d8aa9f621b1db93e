"""A sweep in milliseconds: small plans, and workers that run `fake_runs` instead of training."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture
def make_plan() -> Callable[..., Any]:
    """(names, seeds, overrides, only) -> Plan of the smoke profile."""
    from fake_runs import SMALL

    from mmctl.sweeps import matrix, plan, profiles, selection

    def make(
        names: Sequence[str] = (),
        seeds: Sequence[int] | None = None,
        overrides: Sequence[str] = (),
        only: Sequence[str] = (),
    ) -> Any:
        chosen = selection.select(matrix.find(list(names)), only, [])
        return plan.make_plan(chosen, profiles.profile("smoke"), [*SMALL, *overrides], seeds, names)

    return make


class Fakes:
    """What the fake runs shall do, and what they were asked to do."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "actions.json"
        self.calls_file = folder / "calls"

    def set(self, **actions: str) -> None:
        self.file.write_text(json.dumps({k.replace("__", "/").replace("_", "-"): v for k, v in actions.items()}))

    def actions(self, actions: dict[str, str]) -> None:
        self.file.write_text(json.dumps(actions))

    def calls(self) -> list[str]:
        """Calls since the last time, "train mosaic-v2/seed0"."""
        if not self.calls_file.exists():
            return []
        lines = self.calls_file.read_text().splitlines()
        self.calls_file.unlink()
        return sorted(line.rpartition(" ")[0] for line in lines)


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    made = Fakes(tmp_path)
    monkeypatch.setenv("MMCTL_FAKE", str(made.file))
    return made


class Notes:
    """A board that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.notes: list[str] = []

    def begin(self, tasks: Sequence[Any], done: int) -> None: ...
    def event(self, event: Any) -> None:
        self.events.append(event)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def tick(self) -> None: ...
    def end(self) -> None: ...


class InlineLauncher:
    """A launcher without processes: a job is performed when it is submitted. For what does not depend on processes."""

    def __init__(self, targets: dict[str, str]) -> None:
        self.targets, self.events = targets, deque()
        self.free, self.running = 1, []

    def submit(self, jobs: Sequence[Any]) -> None:
        from mmctl.sweeps.launchers import Event
        from mmctl.sweeps.launchers.job import perform

        for job in jobs:
            outcome = perform(
                json.loads(json.dumps(job.message())),
                lambda p, job=job: self.events.append(Event("progress", job, 0, dataclasses.asdict(p))),
                self.targets,
            )
            self.events.append(Event("done", job, 0, outcome))

    def poll(self, timeout: float) -> list[Any]:
        found = list(self.events)
        self.events.clear()
        if not found:
            time.sleep(timeout)
        return found

    def cancel(self, number: int = 15) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def inline_launcher() -> Callable[..., Any]:
    """What stands for launchers.launcher where a whole session runs in this process, with stand-in runs."""

    def make(*_: Any) -> Any:
        return contextlib.nullcontext(InlineLauncher({"train": "fake_runs:execute", "evaluate": "fake_runs:evaluate"}))

    return make


@pytest.fixture
def inline_sweep(tmp_path: Path, fakes: Fakes) -> Callable[..., Any]:
    """As `sweep`, in this process: quicker where no worker is killed, signalled or counted."""
    from mmctl.sweeps.execute import Options, Sweep

    def run(plan: Any, **options: Any) -> Any:
        board = Notes()
        launcher = InlineLauncher({"train": "fake_runs:execute", "evaluate": "fake_runs:evaluate"})
        return Sweep(plan, tmp_path / "runs", launcher, board, Options(**options)).run(), board

    return run


@pytest.fixture
def sweep(tmp_path: Path, fakes: Fakes) -> Callable[..., Any]:
    """(plan, jobs, **options) -> (outcome, board): run it with fake workers under tmp_path/runs."""
    from mmctl.sweeps.execute import Options, Sweep
    from mmctl.sweeps.launchers import Resources
    from mmctl.sweeps.launchers.local import LocalLauncher

    def run(
        plan: Any,
        jobs: int = 1,
        environment: dict[str, str] | None = None,
        execute: str = "fake_runs:execute",
        **options: Any,
    ) -> Any:
        board = Notes()
        extra = {"PYTHONPATH": str(HERE), **(environment or {})}
        targets = {"train": execute, "evaluate": "fake_runs:evaluate"}
        with LocalLauncher(Resources(jobs), tmp_path / "sweep", targets=targets, environment=extra) as launcher:
            return Sweep(plan, tmp_path / "runs", launcher, board, Options(**options)).run(), board

    return run
