"""Exact resume: killed with SIGKILL at any moment and restarted, a run ends with the weights it would have had."""

from __future__ import annotations

import hashlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import tiny_overrides

from mmctl.config import load
from mmctl.evaluation import find_evaluation
from mmctl.runs import RunFolder
from mmctl.training.run import execute

TIMING = ("seconds", "time")


def start(root: Path, *extra: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mmctl", "train", "smoke", *tiny_overrides(), *extra, "--runs", str(root)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def only_run(root: Path) -> RunFolder:
    (path,) = root.glob("*/seed*")
    return RunFolder.open(path)


def state_of(run: RunFolder) -> tuple[str, list[dict], dict]:
    """Weights by hash, metrics and result without what a clock says."""
    newest = run.path / "checkpoints" / f"step_{run.latest_checkpoint()}"
    weights = hashlib.sha256((newest / "model.safetensors").read_bytes()).hexdigest()
    rows = [{k: v for k, v in row.items() if k not in TIMING} for row in run.metrics()]
    result = {k: v for k, v in run.result().items() if k not in TIMING}
    return weights, rows, result


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict], dict]:
    root = tmp_path_factory.mktemp("undisturbed")
    outcome = execute(load("smoke", [*tiny_overrides(), "model.name=mosaic-v2"]), root)
    assert outcome.state == "finished", outcome.reason
    return state_of(only_run(root))


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_a_random_moment_and_resumed_is_bitwise_the_same(
    tmp_path: Path, undisturbed: tuple[str, list[dict], dict], seed: int
) -> None:
    rng, kills = random.Random(seed), 0
    for _ in range(2):
        process = start(tmp_path)
        marker = rng.choice(["checkpoints/step_3", "checkpoints/step_6", "metrics.jsonl", "checkpoints", "eval"])
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if list(tmp_path.glob(f"*/seed*/{marker}")):
                time.sleep(rng.random() * 0.05)
                process.kill()
                break
            time.sleep(0.002)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    process = start(tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert kills >= 1, "nothing was killed: the test proved nothing"
    assert state_of(only_run(tmp_path)) == undisturbed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_says_so_and_the_same_command_resumes(
    tmp_path: Path, undisturbed: tuple[str, list[dict], dict], number: signal.Signals, code: int
) -> None:
    for attempt in range(8):  # the run is short: the signal may come too late, then try again
        root = tmp_path / str(attempt)
        process = start(root)
        while not list(root.glob("*/seed*/metrics.jsonl")) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        if process.returncode != 0:
            break
    run = only_run(root)
    assert process.returncode == code, errors
    assert run.state() == "interrupted"
    assert "Traceback" not in errors
    process = start(root)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert state_of(only_run(root)) == undisturbed


def test_a_finished_run_is_skipped_and_untouched(tmp_path: Path) -> None:
    config = load("smoke", tiny_overrides())
    first = execute(config, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in first.path.rglob("*") if p.is_file() and p.name != "lock"}
    again = execute(load("smoke", [*tiny_overrides(), "name=another"]), tmp_path)
    assert again.skipped
    assert again.path == first.path
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_other_evaluation_settings_evaluate_again_but_do_not_train_again(tmp_path: Path) -> None:
    first = execute(load("smoke", tiny_overrides()), tmp_path)
    run = RunFolder.open(first.path)
    trained = (run.path / "result.json").read_bytes()
    words = [w for w in tiny_overrides() if not w.startswith("evaluation.examples")]
    asked = load("smoke", [*words, "evaluation.examples=6"])
    again = execute(asked, tmp_path)
    assert not again.skipped
    assert (run.path / "result.json").read_bytes() == trained
    found = {
        config.evaluation.examples: find_evaluation(run, config, "new-knowledge") for config in (run.config(), asked)
    }
    for examples, evaluation in found.items():
        assert evaluation is not None
        assert evaluation[1]["scores"]["recall/accuracy@1x"]["n"] == examples
    assert execute(asked, tmp_path).skipped


def test_two_at_once_train_once_and_the_other_is_told(tmp_path: Path) -> None:
    processes = [start(tmp_path) for _ in range(3)]
    outcomes = [(process.communicate(timeout=120)[1], process.returncode) for process in processes]
    assert [code for _, code in outcomes].count(0) >= 1, outcomes
    for errors, code in outcomes:
        assert code in (0, 1)
        assert "Traceback" not in errors
        assert code == 0 or "is in use by" in errors
    assert only_run(tmp_path).state() == "finished"
