"""A run's mlflow.json: its parent, its tags, its place in the store, and what was sent there. A damaged one is made
anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError
from mmctl.runs import files
from mmctl.runs.folder import RunFolder


def told(run: RunFolder, state: str) -> bool:
    """Whether a store has been told that the run ended in `state`, with all that is in its folder now."""
    return bool(record(run.path).get("closed") == ending(run, state))


def ending(run: RunFolder, state: str) -> list[Any]:
    """What changes when a run has something new to tell: its state, attempt, evaluations and result."""
    return [state, run.status.get("attempt", 0), files.stamp(run.path / "eval"), files.stamp(run.path / "result.json")]


def remember(run: RunFolder, parent_run_id: str | None, tags: Mapping[str, str] | None) -> dict[str, Any]:
    """mlflow.json with this parent and these tags added: a store that is down now must learn them later."""
    old = record(run.path)
    parent = parent_run_id or old.get("parent_run_id")
    new = {**old, "parent_run_id": parent, "tags": {**old.get("tags", {}), **(tags or {})}}
    if new != old:
        files.write_json(run.path / "mlflow.json", new, durable=False)
    return new


def record(folder: Path) -> dict[str, Any]:
    """mlflow.json; {} if it is missing or damaged: a mirror's notes can be made anew."""
    try:
        found = files.read_json(folder / "mlflow.json")
    except MmctlError:
        return {}
    kinds = {"tags": dict, "sent": dict, "artifacts": dict, "parent_run_id": str | None, "run_id": str}
    whole = isinstance(found, dict) and all(isinstance(found[k], v) for k, v in kinds.items() if k in found)
    whole = whole and all(isinstance(v, str) for v in found.get("tags", {}).values())
    whole = whole and all(v is None or isinstance(v, str) for v in found.get("artifacts", {}).values())
    whole = whole and all(isinstance(v, list) and v for v in found.get("sent", {}).values())
    return found if whole else {}
