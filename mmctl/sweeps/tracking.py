"""The sweep in MLflow: one parent run, whose children are the runs it trained; its scores, report and figures.

The parent process makes the store and the parent run before any worker starts, so that no two processes create the
database at once. MLflow being down is said once and stops nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.sweeps.plan import Plan

if TYPE_CHECKING:
    from mmctl.runs.parents import Parent


class Tracked:
    """`parent_run_id` and `uri` are None where the sweep is not tracked (operation.mlflow=false)."""

    def __init__(self, parent: Parent | None = None, uri: str | None = None) -> None:
        self._parent = parent
        self.uri = uri
        self.parent_run_id = None if parent is None else parent.run_id

    def results(self, results: Mapping[str, Any]) -> None:
        """Means of every arm, and every claim's difference, as metrics of the parent run."""
        if self._parent is not None:
            self._parent.metrics(dict(_metrics(results)))

    def finish(self, state: str, files: Iterable[Path]) -> None:
        if self._parent is not None:
            files = list(files)
            if files:
                self._parent.artifacts(files)
            self._parent.finish(state)


def start(plan: Plan, root: Path, folder: Path) -> Tracked:
    """Make or find the store and this sweep's parent run."""
    if not all(cell.config.operation.mlflow for cell in plan.cells.values()):
        return Tracked()
    from mmctl.runs.parents import parent_run
    from mmctl.runs.provenance import redact_urls
    from mmctl.runs.store import StoreError, tracking_uri

    tags = {
        "mmctl.sweep": plan.name,
        "mmctl.profile": plan.profile.name,
        "mmctl.ablations": " ".join(m.name for m in plan.matrices),
        "mmctl.command": plan.command(),
    }
    parent = parent_run(root, plan.name, tags, folder)
    try:
        uri = redact_urls(tracking_uri(root))
    except StoreError:  # said by the parent run already
        uri = None
    return Tracked(parent, uri)


def _metrics(results: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    for ablation in results["ablations"]:
        for arm in ablation["arms"]:
            for metric, summary in arm["scores"].items():
                if "@" not in metric or metric.partition("@")[0].endswith(("/accuracy", "/loss", "last-quarter")):
                    yield f"{ablation['name']}/{arm['name']}/{metric}", summary["mean"]
        for claim in ablation["claims"]:
            if claim["difference"] is not None:
                yield f"{ablation['name']}/claims/{claim['id']}", claim["difference"]["mean"]
