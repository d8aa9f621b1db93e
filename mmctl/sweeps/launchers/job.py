"""A job: one training, or the evaluations of one trained run, as plain data; and how it is performed, wherever it
is."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl import plugins

if TYPE_CHECKING:
    from mmctl.runs import RunFolder

TARGETS = {
    "train": "mmctl.training.run:execute",
    "evaluate": "mmctl.sweeps.evaluating:evaluate_changed",
}
"""What performs a job of each kind: f(config, root, listener=..., **arguments) -> Outcome."""

SCRUBBED = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
"""Environment variables a job must not inherit: its run would *be* its parent's, or land elsewhere (runner.md, section
4)."""


@dataclass
class Job:
    """`kind` is a key of TARGETS, `arguments` what that function takes besides (config, root, listener)."""

    id: int
    kind: str
    label: str
    config: dict[str, Any]
    root: Path
    overrides: list[str]
    """`key=value` words that make this run of its preset: what its folder records as typed."""
    arguments: dict[str, Any]
    command: list[str]
    """The command that reproduces this run alone: what its folder records in provenance.json."""

    def message(self) -> dict[str, Any]:
        """Everything `perform` needs, as JSON can carry it."""
        return {
            "id": self.id,
            "kind": self.kind,
            "config": self.config,
            "root": str(self.root),
            "overrides": self.overrides,
            "arguments": self.arguments,
            "command": self.command,
            "plugins": plugins.named(),
        }


@dataclass
class Event:
    """What happened to a job.

    kind "progress": values phase, step, steps, loss, tokens_per_second, seconds_left. kind "done": values state,
    reason, path, and seconds and skipped where known. States: those of a run that has ended, "lost" (its process is
    gone without a word), "busy" (another process has the run: try again later). `place` numbers what runs the job, for
    the display.
    """

    kind: str
    job: Job
    place: int
    values: dict[str, Any]


def perform(
    message: Mapping[str, Any], listener: Callable[[Any], None], targets: Mapping[str, str] = TARGETS
) -> dict[str, Any]:
    """One job, in this process; every way of failing becomes an outcome, with the traceback in the run's log.

    Returns the values of its event "done": state, reason, path, skipped. KeyboardInterrupt (a signal outside the
    training loop, which has handlers of its own) goes through.
    """
    import traceback

    from mmctl.config import from_dict
    from mmctl.errors import MmctlError
    from mmctl.runs import RunFolder
    from mmctl.runs.lock import Locked
    from mmctl.runs.redaction import redact

    root = Path(message["root"])
    try:
        plugins.load(message.get("plugins", []))  # of a worker on another machine, whose environment is not ours
        config = from_dict(message["config"])
        run = RunFolder.locate(root, config)
        if run is None:
            try:
                run = RunFolder.create(root, config, message["overrides"], message["command"])
            except (MmctlError, FileExistsError):
                # Another sweep may have made it this very moment.
                run = RunFolder.locate(root, config)
                if run is None:
                    raise
        with logged(run.log_path):
            try:
                outcome = _target(targets[message["kind"]])(config, root, listener=listener, **message["arguments"])
            except Locked as error:
                return {"state": "busy", "reason": str(error), "path": str(run.path)}
            except Exception as error:
                if not isinstance(error, MmctlError):
                    print(redact(traceback.format_exc()), file=sys.stderr)
                _note_failure(run, _line(error))
                return {"state": "failed", "reason": _line(error), "path": str(run.path)}
        return {
            "state": outcome.state,
            "reason": outcome.reason,
            "path": str(outcome.path),
            "skipped": outcome.skipped,
        }
    except Exception as error:
        if not isinstance(error, MmctlError):
            print(redact(traceback.format_exc()), file=sys.stderr)
        return {"state": "failed", "reason": _line(error), "path": None}


def _note_failure(run: RunFolder, reason: str) -> None:
    """What was raised before the run itself could record how it ended."""
    from mmctl.errors import MmctlError

    if run.finished or run.status.get("state") not in ("planned", "running"):
        return
    with contextlib.suppress(MmctlError), run.lock():  # on a full disk the state will read "lost"
        run.set_state("failed", reason)


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


def _target(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _line(error: Exception) -> str:
    from mmctl.errors import MmctlError

    first = str(error).splitlines()[0] if str(error) else ""
    if isinstance(error, MmctlError):
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
