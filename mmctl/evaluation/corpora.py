"""Is what a run calls held out still what it was never trained on?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmctl.errors import MmctlError


def check_corpora(run: Any, config: Any, tasks: Iterable[str]) -> None:
    """MmctlError if one of `tasks` reads a corpus whose content is no longer what `run` was trained on: text that it calls
    held out may have been trained on. Runs that did not record their corpora are not checked."""
    from mmctl.data import build_task

    recorded = run.provenance().get("corpora") or {}
    for task in tasks:
        if task in recorded and build_task(task, config.data).fingerprint() != recorded[task]:
            raise MmctlError(
                f"{run.label}: the corpus of {task} (data.text={config.data.text or 'null'}) is not the one it was trained "
                f"on, so nothing in it is known to be held out; choose another task or suite than {task}"
            )
