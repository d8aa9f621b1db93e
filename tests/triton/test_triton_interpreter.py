"""Runs the device tests in Triton's interpreter: in processes of their own, one a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEVICE_TESTS = sorted((Path(__file__).parent / "device").glob("test_*.py"))


@pytest.mark.parametrize("file", DEVICE_TESTS, ids=lambda file: file.stem)
def test_interpreted(file):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-x",
        "-W",
        "ignore::RuntimeWarning",
        str(file),
    ]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert "passed" in result.stdout
