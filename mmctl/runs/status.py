"""A run's state: what status.json says, corrected by what is really there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError
from mmctl.runs.files import read_json, write_json
from mmctl.runs.lock import SILENT_AFTER
from mmctl.runs.process import Owner

STATES = ("planned", "running", "finished", "failed", "diverged", "interrupted", "lost")
WRITTEN = tuple(state for state in STATES if state != "lost")
"""`lost` is never written: it is what `running` is once its process is gone."""
MOST_EARLIER = 20
"""Attempts whose endings are kept under "earlier"."""


def read(path: Path) -> dict[str, Any] | None:
    """The record, or None if the file is missing or damaged: then the folder itself must tell."""
    try:
        record = read_json(path)
    except MmctlError:
        return None
    return record if isinstance(record, dict) and record.get("state") in STATES else None


def state(record: dict[str, Any] | None, finished: bool, started: bool, locked: bool) -> str:
    """One of STATES.

    record: status.json, None if unreadable. finished: result.json is there and parses. started: there are metrics or
    checkpoints. locked: another living process holds the run's lock.
    """
    if finished:
        return "finished"
    if record is None:
        return "running" if locked else "lost" if started else "planned"
    if record["state"] == "finished":
        return "lost"  # it said so, but its result is gone
    if record["state"] == "running" and not locked and gone(record):
        return "lost"
    return str(record["state"])


def gone(record: dict[str, Any]) -> bool:
    """Whether the process that wrote `record` is dead, or on another machine and silent for too long."""
    owner = Owner.of(record)
    if owner is None:
        return True
    known = owner.gone()
    if known is not None:
        return known
    try:
        return time.time() - float(record["heartbeat"]) > SILENT_AFTER
    except (KeyError, TypeError, ValueError):
        return True


def changed(record: dict[str, Any] | None, state: str, reason: str | None, more: dict[str, Any]) -> dict[str, Any]:
    """The next record. Entering `running` counts an attempt and names this process as its owner."""
    if state not in WRITTEN:
        raise ValueError(f"{state!r} is not a state that is written; expected one of {', '.join(WRITTEN)}")
    now = time.time()
    new = dict(record or {"attempt": 0, "created": now})
    me = Owner.me()
    if state == "running":
        if not (new.get("state") == "running" and Owner.of(new) == me):
            attempt = new.get("attempt")
            if isinstance(attempt, int) and attempt > 0:
                new["earlier"] = [*_earlier(new), _ending(new)][-MOST_EARLIER:]
            new["attempt"] = attempt + 1 if isinstance(attempt, int) else 1
            new["started"] = now
            new.setdefault("first_started", now)
        new.pop("ended", None)
        new |= me.record()
    elif state != "planned":
        new["ended"] = now
    return {**new, "state": state, "reason": reason, "heartbeat": now, **more}


def _earlier(record: dict[str, Any]) -> list[Any]:
    found = record.get("earlier")
    return found if isinstance(found, list) else []


def _ending(record: dict[str, Any]) -> dict[str, Any]:
    """How the attempt before this one ended: a new attempt does not make the old outcome forgotten."""
    ended = "lost" if record.get("state") == "running" else record.get("state")
    when = record.get("ended") or record.get("heartbeat")
    return {"attempt": record.get("attempt"), "state": ended, "reason": record.get("reason"), "ended": when}


def write(path: Path, record: dict[str, Any], *, durable: bool = True) -> None:
    write_json(path, record, durable=durable)
