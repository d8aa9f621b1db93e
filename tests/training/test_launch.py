"""`mmctl train --processes N`: what is refused before anything starts, and what is left to say when processes end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import tiny_overrides

from mmctl.config import Config
from mmctl.errors import UsageError
from mmctl.runs import RunFolder
from mmctl.training import launch

WORDS = [w for w in tiny_overrides() if not w.startswith(("training.steps", "operation.checkpoint_every"))]


def test_a_signal_to_the_command_stops_all_its_processes_and_is_its_exit_code(tmp_path: Path) -> None:
    words = [*WORDS, "training.steps=100000", "operation.checkpoint_every=100000", "operation.device=cpu"]
    command = [sys.executable, "-m", "mmctl", "train", "smoke", *words, "--processes", "2", "--runs", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/seed*/metrics.jsonl")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    (path,) = tmp_path.glob("*/seed*")
    run = RunFolder.open(path)
    assert (run.state(), run.status["processes"]) == ("interrupted", 2)
    assert len(run.checkpoint_steps()) == 1
    said = [line for line in errors.splitlines() if "training" not in line]
    assert said == [f"mmctl: {run.label} interrupted: SIGTERM", "mmctl: the same command resumes it"]
    assert not out


@pytest.mark.parametrize(
    ("codes", "code", "state", "said"),
    [
        ({0: -9}, 1, "failed", "process 0 of 2 was ended by SIGKILL"),
        ({0: -9, 1: 1}, 1, "failed", "process 0 of 2 was ended by SIGKILL"),
        ({1: 1}, 1, "lost", ""),  # it has spoken for itself
        ({1: 3}, 3, "lost", ""),
    ],
)
def test_a_killed_first_process_is_said_and_recorded_by_the_launcher(
    tiny: Config,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    codes: dict[int, int],
    code: int,
    state: str,
    said: str,
) -> None:
    run = RunFolder.create(tmp_path, tiny)
    # A process that is gone holds it.
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"from mmctl.runs import RunFolder; RunFolder.open({str(run.path)!r}).set_state('running')",
        ],
        check=True,
    )
    assert run.state() == "lost"
    assert launch._failed(tiny, tmp_path, 2, codes) == code
    assert run.state() == state
    assert capsys.readouterr().err == (f"mmctl: {run.label} failed: {said}\n" if said else "")


def test_what_cannot_be_shared_is_refused_before_anything_starts(
    tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for processes, said in (
        (0, "expected a whole number of at least 1"),
        (3, "data.batch=4: expected a multiple of the 3"),
    ):
        with pytest.raises(UsageError, match=said):
            launch.launch(tiny, processes, [], tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="one of torchrun's processes already"):
        launch.launch(tiny, 2, [], tmp_path)
    assert not list(tmp_path.iterdir())


def test_each_process_gets_the_command_without_the_option() -> None:
    kept = ["train", "smoke", "--seed", "3", "model.layers=1"]
    for option in (["--processes", "2"], ["--processes=2"]):
        for place in range(2, len(kept) + 1):
            assert launch.without_option([*kept[:place], *option, *kept[place:]]) == kept
