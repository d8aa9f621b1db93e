"""SLURM through submitit: a job array for everything that is ready, requeued when preempted, logs beside the sweep.

The folder of runs must be on a file system that the nodes share. What a preempted job had done since its last
checkpoint is done again, exactly (runner.md, section 2). `cluster=local` runs the same path on this machine, without
SLURM.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError, UsageError, nearest
from mmctl.sweeps.launchers import Event, Job, Resources
from mmctl.sweeps.launchers.job import TARGETS
from mmctl.sweeps.launchers.remote import Requeued

POLL_SECONDS = 0.5
"""Between two looks at the jobs while `poll` waits; submitit itself asks the scheduler less often."""

OPTIONS: dict[str, str] = {
    "cluster": "slurm, or local to run on this machine",
    "partition": "SLURM partition",
    "account": "SLURM account",
    "qos": "SLURM quality of service",
    "constraint": "SLURM constraint",
    "time": "minutes a job may take before it is requeued (default 1440)",
    "memory": "GB a job gets (default: what the largest run is estimated to need, and half as much again)",
    "parallel": "jobs of the array that run at once (default --jobs, else 64)",
    "queue": "jobs in the queue at once (default 1000)",
    "requeue": "how often a job that ran out of time may be requeued (default 20)",
}
"""--launcher-option NAME=VALUE."""
WHOLE = ("time", "memory", "parallel", "queue", "requeue")


class SlurmLauncher:
    """Jobs as elements of SLURM arrays."""

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
        try:
            import submitit
        except ImportError:
            raise MmctlError("--launcher slurm: needs submitit: pip install 'mmctl[slurm]'") from None
        self.targets = dict(targets)
        self.limit = numbers.get("queue", 1000)
        self.jobs: dict[int, tuple[Job, Any]] = {}
        self.logs = folder / "workers" / "slurm"
        self.logs.mkdir(parents=True, exist_ok=True)
        cluster = chosen.get("cluster", "slurm")
        try:
            self.executor = submitit.AutoExecutor(
                folder=self.logs, cluster=cluster, slurm_max_num_timeout=numbers.get("requeue", 20)
            )
        except Exception as error:  # submitit's own words for a missing scheduler
            raise MmctlError(
                f"--launcher slurm: {str(error).splitlines()[0]}; is this a login node of a cluster?"
            ) from None
        memory = numbers.get("memory") or math.ceil(1.5 * resources.memory / 1e9)
        settings: dict[str, Any] = {
            "name": "mmctl",
            "timeout_min": numbers.get("time", 1440),
            "cpus_per_task": resources.threads,
            "tasks_per_node": 1,
            "gpus_per_node": math.ceil(resources.gpus),
            "slurm_array_parallelism": numbers.get("parallel", min(64, resources.jobs)),
            "stderr_to_stdout": True,
        }
        if memory:
            settings["mem_gb"] = max(1, memory)
        for name in ("partition", "account", "qos", "constraint"):
            if name in chosen:
                settings[f"slurm_{name}"] = chosen[name]
        if cluster != "slurm":
            settings = {k: v for k, v in settings.items() if not k.startswith("slurm_")}
        self.executor.update_parameters(**settings)

    def __enter__(self) -> SlurmLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def free(self) -> int:
        return max(0, self.limit - len(self.jobs))

    @property
    def running(self) -> list[Job]:
        return [job for job, _ in self.jobs.values()]

    def submit(self, jobs: Sequence[Job]) -> None:
        """One array of all of them."""
        if not jobs:
            return
        try:
            with self.executor.batch():
                handles = [self.executor.submit(Requeued(), job.message(), self.targets) for job in jobs]
        except Exception as error:  # sbatch refuses in many words
            raise MmctlError(f"--launcher slurm: jobs were not accepted: {_line(error)}") from None
        for job, handle in zip(jobs, handles, strict=True):
            self.jobs[job.id] = job, handle

    def poll(self, timeout: float) -> list[Event]:
        deadline = time.monotonic() + timeout
        while True:
            events = self._ended()
            left = deadline - time.monotonic()
            if events or left <= 0:
                return events
            time.sleep(min(POLL_SECONDS, left))

    def cancel(self, number: int = signal.SIGTERM) -> None:
        """scancel with SIGTERM, on which a run saves and ends."""
        for _, handle in self.jobs.values():
            with contextlib.suppress(Exception):  # it may have ended this moment
                _interrupt(handle)

    def close(self) -> None:
        for _, handle in self.jobs.values():
            with contextlib.suppress(Exception):
                handle.cancel(check=False)
        self.jobs.clear()

    def _ended(self) -> list[Event]:
        events = []
        for number, (job, handle) in list(self.jobs.items()):
            if not handle.done():
                continue
            del self.jobs[number]
            try:
                values = handle.result()
            except Exception as error:  # the job's process is gone, or what it returned is
                values = {"state": "lost", "reason": f"job {handle.job_id}: {_line(error)}", "path": None}
            events.append(Event("done", job, 0, values))
        return events


def _interrupt(handle: Any) -> None:
    """SIGTERM to a job: through scancel, or to the process of a local one."""
    import subprocess

    process = getattr(handle, "_process", None)
    if process is not None:
        process.send_signal(signal.SIGTERM)
        return
    subprocess.run(["scancel", "--signal=TERM", "--full", str(handle.job_id)], check=False, capture_output=True)
    if str(handle.state).upper() == "PENDING":
        handle.cancel(check=False)


def checked(options: Mapping[str, str]) -> dict[str, int]:
    """The whole numbers among the options. UsageError for an unknown name or a wrong value."""
    for name in options:
        if name not in OPTIONS:
            raise UsageError(f'--launcher-option "{name}": no such option of slurm{nearest(name, OPTIONS, "options")}')
    numbers = {}
    for name in WHOLE:
        if name in options:
            if not options[name].isascii() or not options[name].isdigit() or int(options[name]) < 1:
                raise UsageError(f"--launcher-option {name}={options[name]}: expected a whole number of at least 1")
            numbers[name] = int(options[name])
    if options.get("cluster", "slurm") not in ("slurm", "local"):
        raise UsageError(f"--launcher-option cluster={options['cluster']}: expected slurm or local")
    return numbers


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
