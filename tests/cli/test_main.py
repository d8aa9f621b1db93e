"""The command line as a process: whatever its streams and surroundings, one line and an exit code, never a
traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MMCTL = f"{sys.executable} -m mmctl"


def shell(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    path = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return subprocess.run(["sh", "-c", command], cwd=folder, env=path | environment, capture_output=True, timeout=120)


@pytest.mark.parametrize("command", ["train smoke --dry-run", "runs list", "ablate bandwidth --dry-run", "flops"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_closed_streams(tmp_path: Path, command: str, closed: str) -> None:
    done = shell(f"{MMCTL} {command} {closed}", tmp_path)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    done = shell(f"{MMCTL} flops | head -1", tmp_path)
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""


def test_letters_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    folder = tmp_path / "rüns"
    folder.mkdir()
    surroundings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = shell(f"{MMCTL} runs list --runs {folder}", tmp_path, **surroundings)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"no runs in" in done.stdout


@pytest.mark.parametrize("command", ["runs list --runs ~nobody-of-that-name/x", "eval ~nobody-of-that-name/x"])
def test_a_home_that_is_not_there(tmp_path: Path, command: str) -> None:
    done = shell(f"{MMCTL} {command}".replace("~", "'~'"), tmp_path)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"nobody-of-that-name" in done.stderr


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    done = shell(f"{MMCTL} flops > /dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
