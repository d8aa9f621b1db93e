"""Runs as rows: what a table of them shows and a program reads. A damaged file costs its cell, never the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError, UsageError, nearest
from mmctl.runs.filters import ALL, Filters, last_sign, select
from mmctl.runs.folder import RunFolder
from mmctl.runs.preflight import used

SORTS = ("name", "identity", "seed", "state", "attempt", "step", "train_loss", "when")
"""What a list can be sorted by; `name` is by name, identity and seed."""
TEXTS = ("identity", "state", "when")


def rows(root: Path, filters: Filters = ALL, sort: str = "name", reverse: bool = False) -> list[dict[str, Any]]:
    """A row a run that fits, sorted; rows without the value come last. UsageError for a column there is not."""
    if sort not in SORTS:
        raise UsageError(f'--sort "{sort}": no such column{nearest(sort, SORTS, "columns")}')
    found = [row(run) for run in select(root, filters)]
    if sort == "name":
        return found[::-1] if reverse else found
    known = [r for r in found if isinstance(r[sort], int | float) or (isinstance(r[sort], str) and sort in TEXTS)]
    rest = [r for r in found if r not in known]
    return sorted(known, key=lambda r: r[sort], reverse=reverse) + rest


def row(run: RunFolder) -> dict[str, Any]:
    """JSON-ready: name, identity, seed, run, path, state, reason, attempt, step, train_loss (None if unknown), when."""
    record, last = run.status, run.last_metrics()
    result = run.result() if run.finished else {}
    loss = result.get("train_loss", last.get("loss"))
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
        "when": iso(last_sign(run)),
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
