"""Launchers: where a sweep's jobs run. A new one is one file here and one line in `LAUNCHERS`.

The sweep (execute.py) decides what is run and when; a launcher is given jobs, says what became of them, and can be told
to stop. What a launcher must keep, and may rely on:

- The run folders are the truth. A job needs the folder `job.root` and nothing else of the parent; `job.perform` does it
  in the process that was given `job.message()` (plain JSON), on this machine or another. Whether a run is finished is
  read from its folder: a launcher that forgets everything costs time, never a result.
- Performing one job twice, at once or again, is harmless: the run's lock lets one through and the other is "busy"; a
  run that was interrupted or killed resumes exactly. So a scheduler may requeue as it likes.
- `submit` returns at once. Every job ends in exactly one event "done", whatever happens to its process (state "lost"
  when it is gone without a word). Events "progress" are for the eye and may be missing.
- SIGTERM or SIGINT makes a job save and end as "interrupted".
- MmctlError, one line, is raised only when the launcher itself cannot go on: no cluster, workers that do not start.

Importing this imports neither torch nor a scheduler.
"""

from __future__ import annotations

import importlib
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from mmctl.errors import UsageError, nearest
from mmctl.sweeps.launchers.job import Event, Job

__all__ = ["LAUNCHERS", "Event", "Job", "Launcher", "Resources", "launcher"]

LAUNCHERS: dict[str, str] = {
    "local": "mmctl.sweeps.launchers.local:LocalLauncher",
    "slurm": "mmctl.sweeps.launchers.slurm:SlurmLauncher",
    "ray": "mmctl.sweeps.launchers.ray:RayLauncher",
}
"""Name after `--launcher` -> "module:Class"."""


@dataclass(frozen=True)
class Resources:
    """What each job gets. Computed once for the sweep (resources.py), the same for every job of it."""

    jobs: int = 1
    """Jobs at once."""
    threads: int = 1
    """CPU threads of a job (training.threads)."""
    gpus: float = 0
    """CUDA devices a job sees: a whole number, or 1/n where n jobs share one; 0: no device is assigned."""
    memory: int = 0
    """Bytes of memory that the largest job is estimated to need (of the device, where it has one); 0: not known."""


class Launcher(Protocol):
    """What the sweep asks of a launcher. Constructed as `Class(resources, folder, options)`.

    folder: the sweep's own (logs of workers go to `folder/"workers"`). options: what the user gave the launcher, by
    name (`--launcher-option partition=gpu`). The module's `checked(options)` raises UsageError with the nearest name
    for one that it does not know, and needs no cluster for that.
    """

    def __init__(self, resources: Resources, folder: Path, options: Mapping[str, str]) -> None: ...
    @property
    def free(self) -> int:
        """How many more jobs `submit` takes now."""

    @property
    def running(self) -> list[Job]:
        """Jobs submitted whose end has not been told by `poll`."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Start (or queue) at most `free` jobs. A cluster makes one array of them."""

    def poll(self, timeout: float) -> list[Event]:
        """What happened since the last call, waiting at most `timeout` seconds for something to happen."""

    def cancel(self, number: int = signal.SIGTERM) -> None:
        """Let every job save and end, as that signal would. `poll` then tells each one's end."""

    def close(self) -> None:
        """Leave nothing running and release what is held. May be called twice."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def check(name: str, options: Mapping[str, str]) -> None:
    """UsageError with the nearest name for an unknown launcher or option of it. Needs neither a cluster nor its
    package."""
    if name not in LAUNCHERS:
        raise UsageError(f'--launcher "{name}": no such launcher{nearest(name, LAUNCHERS, "launchers")}')
    importlib.import_module(LAUNCHERS[name].partition(":")[0]).checked(options)


def launcher(name: str, resources: Resources, folder: Path, options: Mapping[str, str] | None = None) -> Launcher:
    """The launcher of that name. UsageError with the nearest one when there is none."""
    check(name, options or {})
    module, _, attribute = LAUNCHERS[name].partition(":")
    made: Launcher = getattr(importlib.import_module(module), attribute)(resources, folder, options or {})
    return made
