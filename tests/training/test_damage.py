"""Files of a half-trained or finished run are damaged from outside: it ends with the results it would have had."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmctl.config import Config
from mmctl.runs import RunFolder
from mmctl.training.run import execute

TIMING = ("seconds", "time")


def found(run: RunFolder) -> dict[str, Any]:
    newest = run.path / "checkpoints" / f"step_{run.latest_checkpoint()}"
    return {
        "weights": hashlib.sha256((newest / "model.safetensors").read_bytes()).hexdigest(),
        "optimizer": hashlib.sha256((newest / "optimizer.safetensors").read_bytes()).hexdigest(),
        "metrics": [{k: v for k, v in row.items() if k not in TIMING} for row in run.metrics()],
        "result": {k: v for k, v in run.result().items() if k not in TIMING},
        "scores": {stem: evaluation["scores"] for stem, evaluation in run.evaluations().items()},
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    from tiny import tiny_overrides

    from mmctl.config import load

    outcome = execute(load("smoke", tiny_overrides()), tmp_path_factory.mktemp("undisturbed"))
    assert outcome.state == "finished", outcome.reason
    return outcome.path, found(RunFolder.open(outcome.path))


def stopped(tiny: Config, root: Path) -> RunFolder:
    """A run of which steps 1 to 8 are done, with checkpoints of 3 and 6."""

    def stop(progress: Any) -> None:
        if progress.phase == "training" and progress.step == 8:
            raise KeyboardInterrupt

    outcome = execute(tiny, root, listener=stop)
    run = RunFolder.open(outcome.path)
    assert (outcome.state, run.checkpoint_steps(), run.last_metrics()["step"]) == ("interrupted", [3, 6], 8)
    return run


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def first_line(path: Path) -> None:
    path.write_bytes(b"not JSON\n" + path.read_bytes().partition(b"\n")[2])


def first_value(path: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(lines[0]), "loss": 1.0}), *lines[1:]]) + "\n")


@pytest.mark.parametrize("harm", [halve, first_line, first_value, Path.unlink, lambda path: path.write_bytes(b"")])
def test_metrics_of_before_the_checkpoint_come_back(
    harm: Callable[[Path], Any], tiny: Config, tmp_path: Path, undisturbed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped(tiny, tmp_path)
    harm(run.metrics_path)
    assert execute(tiny, tmp_path).state == "finished"
    assert found(run) == undisturbed[1]
    assert "metrics.jsonl was damaged; its rows are those of step 6 again" in capsys.readouterr().err


def test_metrics_beyond_the_checkpoint_are_cut_without_a_word(
    tiny: Config, tmp_path: Path, undisturbed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped(tiny, tmp_path)
    run.metrics_path.write_bytes(run.metrics_path.read_bytes()[:-9])
    assert execute(tiny, tmp_path).state == "finished"
    assert found(run) == undisturbed[1]
    assert "damaged" not in capsys.readouterr().err


@pytest.mark.parametrize("harm", [flip, halve, Path.unlink])
@pytest.mark.parametrize("steps", [[6], [3, 6]])
def test_damaged_checkpoints_cost_the_steps_since_the_last_whole_one(
    steps: list[int], harm: Callable[[Path], Any], tiny: Config, tmp_path: Path, undisturbed: Any
) -> None:
    run = stopped(tiny, tmp_path)
    for step in steps:
        harm(run.checkpoints / f"step_{step}" / "model.safetensors")
    start = 0 if 3 in steps else 3
    kept: list[list[int]] = []

    def look(progress: Any) -> None:
        if progress.phase == "training" and progress.step == start + 3:
            kept.append(run.checkpoint_steps())

    outcome = execute(tiny, tmp_path, listener=look)
    assert outcome.state == "finished", outcome.reason
    assert found(run) == undisturbed[1]
    assert run.provenance()["segments"][-1]["from_step"] == start
    # What is saved is not pruned in favour of damaged ones that are further on.
    assert kept == [[3] if start == 0 else [3, 6]]


@pytest.mark.parametrize("name", ["result.json", "eval/new-knowledge.json"])
@pytest.mark.parametrize("harm", [halve, Path.unlink])
def test_a_damaged_result_or_evaluation_is_made_again_and_nothing_trained(
    name: str, harm: Callable[[Path], Any], tiny: Config, tmp_path: Path, undisturbed: Any
) -> None:
    place = tmp_path / undisturbed[0].parent.name / undisturbed[0].name
    shutil.copytree(undisturbed[0], place)
    run, trained = RunFolder.open(place), []
    weights = (run.checkpoints / "step_12" / "model.safetensors").stat().st_mtime_ns
    harm(place / name)
    outcome = execute(tiny, tmp_path, listener=lambda p: trained.append(p.step) if p.phase == "training" else None)
    assert (outcome.state, trained) == ("finished", [])
    assert found(run) == undisturbed[1]
    assert (run.checkpoints / "step_12" / "model.safetensors").stat().st_mtime_ns == weights
