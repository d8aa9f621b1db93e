"""The form of an evaluation's file: whoever reads a run's scores can rely on it, whatever was done to the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError
from mmctl.runs import files

MAPPINGS: Mapping[str, type | None] = {"settings": None, "scores": dict, "tasks": dict, "scored": int}
"""Keys of an evaluation that hold mappings, and of what (None: of anything). Any may be missing."""


def read_evaluation(path: Path) -> dict[str, Any]:
    """An evaluation's file. MmctlError, one line, where it is damaged or not of this form."""
    evaluation = files.read_object(path)
    for key, kind in MAPPINGS.items():
        found = evaluation.get(key, {})
        if not isinstance(found, dict) or (kind and not all(isinstance(value, kind) for value in found.values())):
            raise MmctlError(f'{path}: damaged, "{key}" is not what an evaluation has there')
    return evaluation
