"""Ray: every job a task of a Ray cluster, which finds the cores and devices for it.

`--ray-address` joins a running cluster (auto, HOST:PORT, ray://HOST:PORT); without one, Ray is started on this machine
for the sweep. Nodes must share the folder of runs and have mmctl installed. A task whose worker dies is run again by
Ray, and resumes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError, UsageError, nearest
from mmctl.sweeps.launchers import Event, Job, Resources
from mmctl.sweeps.launchers.job import TARGETS
from mmctl.sweeps.launchers.remote import perform_here

OPTIONS = {
    "address": "of a running cluster: auto, HOST:PORT or ray://HOST:PORT",
    "queue": "tasks submitted at once (default --jobs, else all)",
    "retries": "how often Ray runs a task again whose worker died (default 3)",
}
"""--launcher-option NAME=VALUE."""


class RayLauncher:
    """Jobs as Ray tasks."""

    def __init__(
        self,
        resources: Resources,
        folder: Path,
        options: Mapping[str, str] | None = None,
        *,
        targets: Mapping[str, str] = TARGETS,
    ) -> None:
        chosen = dict(options or {})
        numbers = checked(chosen)
        os.environ.setdefault(
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
        )  # a task without devices leaves them as they are
        try:
            import ray
        except ImportError:
            raise MmctlError("--launcher ray: needs ray: pip install 'mmctl[ray]'") from None
        self.ray: Any = ray
        self.ours = not ray.is_initialized()
        if self.ours:
            start: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
            if "address" in chosen:
                start["address"] = chosen["address"]
            else:
                start |= {"num_cpus": resources.jobs * resources.threads, "include_dashboard": False}
            try:
                ray.init(**start)
            except Exception as error:  # Ray's own words for a cluster that does not answer
                raise MmctlError(f"--launcher ray: {_line(error)}") from None
        self.targets = dict(targets)
        self.limit = numbers.get("queue", resources.jobs)
        self.jobs: dict[Any, Job] = {}
        self.task = ray.remote(perform_here).options(
            num_cpus=resources.threads,
            num_gpus=resources.gpus,
            max_retries=numbers.get("retries", 3),
        )

    def __enter__(self) -> RayLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def free(self) -> int:
        return max(0, self.limit - len(self.jobs))

    @property
    def running(self) -> list[Job]:
        return list(self.jobs.values())

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.jobs[self.task.remote(job.message(), self.targets)] = job

    def poll(self, timeout: float) -> list[Event]:
        if not self.jobs:
            return []
        ended, _ = self.ray.wait(list(self.jobs), num_returns=1, timeout=timeout)
        if ended:  # and whatever else has ended by now
            ended, _ = self.ray.wait(list(self.jobs), num_returns=len(self.jobs), timeout=0)
        events = []
        for reference in ended:
            job = self.jobs.pop(reference)
            try:
                values = self.ray.get(reference)
            except self.ray.exceptions.TaskCancelledError:
                values = {"state": "interrupted", "reason": "stopped", "path": None}
            except Exception as error:
                values = {"state": "lost", "reason": f"its Ray task: {_line(error)}", "path": None}
            events.append(Event("done", job, 0, values))
        return events

    def cancel(self, number: int = signal.SIGTERM) -> None:
        """Ray interrupts each task (as Ctrl-C would), on which a run saves and ends."""
        for reference in self.jobs:
            with contextlib.suppress(Exception):
                self.ray.cancel(reference, force=False)

    def close(self) -> None:
        for reference in self.jobs:
            with contextlib.suppress(Exception):
                self.ray.cancel(reference, force=True)
        self.jobs.clear()
        if self.ours and self.ray.is_initialized():
            self.ray.shutdown()
        self.ours = False


def checked(options: Mapping[str, str]) -> dict[str, int]:
    """The whole numbers among the options. UsageError for an unknown name or a wrong value."""
    for name in options:
        if name not in OPTIONS:
            raise UsageError(f'--launcher-option "{name}": no such option of ray{nearest(name, OPTIONS, "options")}')
    return {name: _whole(name, options[name]) for name in ("queue", "retries") if name in options}


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--launcher-option {name}={text}: expected a whole number of at least 0")
    return int(text)


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
