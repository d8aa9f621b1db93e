"""Shared fixtures. Tests run on one thread each, so that many can run side by side."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference tensors and data sets; tests that need it skip where it is not there."""
    folder = Path(os.environ.get("MMCTL_SHARED", Path(__file__).parents[1] / ".." / "shared")).resolve()
    if not folder.is_dir():
        pytest.skip(f"reference data not found at {folder}; set MMCTL_SHARED")
    return folder
