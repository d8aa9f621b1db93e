"""metrics.jsonl: one object a line, appended as the run goes, cut back when it resumes from an earlier step."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmctl.runs import files

TAIL = 65536
"""Bytes read to find the last row."""
LARGEST_COPY = 1 << 24
"""Bytes of rows beyond which a checkpoint keeps no copy of them."""


def append(path: Path, step: int, values: Mapping[str, float]) -> None:
    """One line {"step", "time" (Unix seconds), **values}."""
    files.append_line(path, {"step": step, "time": round(time.time(), 3), **values})


def copy(path: Path) -> str | None:
    """The rows so far, for a checkpoint to keep; None where they are too many for that."""
    try:
        return path.read_text(encoding="ascii") if path.stat().st_size <= LARGEST_COPY else None
    except (OSError, UnicodeDecodeError):
        return None


def restore(path: Path, text: Any) -> bool:
    """Bring back the rows that a checkpoint kept if the file does not begin with them; whether it had to be."""
    kept = text.encode("ascii", "replace") if isinstance(text, str) else b""
    try:
        with open(path, "rb") as file:
            whole = file.read(len(kept)) == kept
    except FileNotFoundError:
        whole = not kept
    if not whole:
        files.write_bytes(path, kept)
    return not whole


def read(path: Path) -> list[dict[str, Any]]:
    """All rows; MmctlError naming the line if one before the last is damaged."""
    return [{key: files.number(value) for key, value in row.items()} for row in files.read_lines(path)]


def last(path: Path) -> dict[str, Any]:
    """The last whole row; {} if there is none or it is damaged."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            row = json.loads(file.read().split(b"\n")[-2])
    except (OSError, ValueError, IndexError, RecursionError):
        return {}
    return {key: files.number(value) for key, value in row.items()} if isinstance(row, dict) else {}


def whole_lines(path: Path, offset: int) -> list[bytes]:
    """The lines beyond `offset` that are written to their end, newline included; [] if there is no file."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            content = file.read()
    except FileNotFoundError:
        return []
    return content[: content.rfind(b"\n") + 1].splitlines(keepends=True)


def row(line: bytes) -> dict[str, Any] | None:
    """The object of a line; None if it is damaged."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def truncate(path: Path, step: int) -> None:
    """Keep the rows up to `step`; damaged lines go too. The file is left alone if nothing changes."""
    if not path.exists():
        return
    rows = files.read_lines(path, skip_damaged=True)
    kept = [row for row in rows if isinstance(row.get("step"), int) and row["step"] <= step]
    text = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in kept)
    if text.encode() != path.read_bytes():
        files.write_text(path, text)
