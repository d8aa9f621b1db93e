"""What a scheduler's process does with a job: perform it where it is, and nothing else of the sweep."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from mmctl.sweeps.launchers.job import SCRUBBED, TARGETS, perform


def perform_here(message: Mapping[str, Any], targets: Mapping[str, str] = TARGETS) -> dict[str, Any]:
    """Values of the job's event "done". Environment that must not be inherited is dropped first."""
    for name in SCRUBBED:
        os.environ.pop(name, None)
    started = time.monotonic()
    try:
        outcome = perform(message, _silent, targets)
    except KeyboardInterrupt:
        outcome = {"state": "interrupted", "reason": "stopped before anything was saved", "path": None}
    return {**outcome, "seconds": time.monotonic() - started}


def _silent(_: Any) -> None:
    """How far a run is can be read from its folder (`mmctl ablate --status`); a cluster is not kept busy with it."""


class Requeued:
    """`perform_here` as submitit calls it: pickled once, and submitted again as it is when the job is preempted."""

    def __call__(self, message: dict[str, Any], targets: dict[str, str]) -> dict[str, Any]:
        return perform_here(message, targets)

    def checkpoint(self, message: dict[str, Any], targets: dict[str, str]) -> Any:
        """Asked by submitit on preemption or timeout: the same job again, which resumes the run from its last
        checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, message, targets)
