"""Runs as rows: what a table of them shows and a program reads. A damaged file costs its cell, never the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError, UsageError, nearest
from mmctl.runs import status
from mmctl.runs.folder import RunFolder
from mmctl.runs.preflight import used


def rows(root: Path, state: str | None = None, name: str | None = None) -> Iterator[dict[str, Any]]:
    """A row a run: those in `state`, and whose name contains `name`. UsageError for a state there is not."""
    if state is not None and state not in status.STATES:
        raise UsageError(f'state "{state}": no such state{nearest(state, status.STATES, "states")}')
    return (
        found
        for run in RunFolder.all(root)
        if name is None or name in run.name
        if (found := row(run)) and state in (None, found["state"])
    )


def row(run: RunFolder) -> dict[str, Any]:
    """JSON-ready: name, identity, seed, run, path, state, reason, attempt, step, train_loss (None if unknown), when."""
    record, last = run.status, run.last_metrics()
    result = run.result() if run.finished else {}
    loss = result.get("train_loss", last.get("loss"))
    moment = record.get("ended") or record.get("heartbeat") or record.get("created")
    return {
        "name": run.name,
        "identity": run.identity,
        "seed": run.seed,
        "run": run.label,
        "path": str(run.path),
        "state": run.state(),
        "reason": record.get("reason"),
        "attempt": record.get("attempt", 0),
        "step": result.get("steps", last.get("step")),
        "train_loss": loss if isinstance(loss, int | float) else None,
        "when": iso(moment),
    }


def details(run: RunFolder) -> dict[str, Any]:
    """`row` with configuration, status, provenance, result, evaluations and files; what is damaged is in "problems"."""
    problems: list[str] = []

    def read(what: Any, missing: Any) -> Any:
        try:
            return what()
        except MmctlError as error:
            problems.append(str(error))
            return missing

    return {
        **row(run),
        "config": read(run.config_dict, None),
        "status": run.status,
        "provenance": read(run.provenance, None),
        "result": read(run.result, None) if run.finished else None,
        "evaluations": read(run.evaluations, {}),
        "checkpoints": run.checkpoint_steps(),
        "files": {str(p.relative_to(run.path)): used(p) if p.is_dir() else p.stat().st_size for p in _files(run.path)},
        "problems": problems,
    }


def _files(folder: Path) -> Iterator[Path]:
    """Files, with each checkpoint as one entry."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        whole = len(inside) == 2 if inside[0] == "checkpoints" else path.is_file()
        if whole and not path.name.startswith("."):
            yield path


def iso(seconds: Any) -> str | None:
    """Unix seconds as UTC, 2026-01-31T12:00:00+00:00; None if it is no time."""
    try:
        return datetime.fromtimestamp(float(seconds), UTC).isoformat(timespec="seconds")
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping under dotted keys."""
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        found.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return found
