"""A sweep says which evaluations are older than a score: those it makes again, and those that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_runs import evaluation, result

from mmctl.evaluation.changes import AS_TRAINED
from mmctl.runs import RunFolder
from mmctl.sweeps import evaluating, scores, session
from mmctl.sweeps.todo import Options, idle


@pytest.fixture
def finished(tmp_path: Path, make_plan: Callable[..., Any]) -> Any:
    """A plan whose runs are finished, evaluated before versions were recorded, and without checkpoints."""
    plan = make_plan(["long-term-removal"], seeds=[0, 1, 2])
    for run in plan.runs():
        folder = RunFolder.create(tmp_path, run.config, [])
        with folder.lock():
            for changes in (AS_TRAINED, *run.cell.changes(run.seed, plan.seeds)):
                for suite in ("persistent", "new-knowledge", "in-context"):
                    made = evaluation(run.config, suite, changes.record())
                    made["tasks"] = {"icl@1x": {}} if suite == "in-context" else {}
                    folder.write_evaluation(suite + changes.mark(), made)
            folder.write_result(result(run.config))
    return plan


def test_without_checkpoints_nothing_is_run_and_a_line_says_what_is_missing(finished: Any, tmp_path: Path) -> None:
    assert idle(finished, tmp_path, Options())
    resting, _, notes = session.prepared(finished, tmp_path, session.Where(), Options())
    assert resting
    first = min(RunFolder.locate(tmp_path, run.config).label for run in finished.runs())  # type: ignore[union-attr]
    assert notes == [
        f"evaluations of 3 runs ({first}, ...) are older than the score icl/gain-per-doubling: kept without "
        "icl/gain-per-doubling, because no checkpoint is left to make them again"
    ]


def test_those_with_a_checkpoint_are_made_again_and_the_others_are_not(
    finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RunFolder, "has_checkpoint", lambda self, step: self.label.endswith("seed1"))
    again, kept = sorted(evaluating.outdated(finished, tmp_path), key=len)
    assert again.startswith("evaluations of mosaic-v2")
    assert again.endswith("/gain-per-doubling: made again")
    assert kept.startswith("evaluations of 2 runs (mosaic-v2")
    assert "/seed0, ...)" in kept
    session.dry_run(finished, tmp_path, session.Where(), as_json=False)
    said = capsys.readouterr().out
    assert again in said.replace("\n", " ")
    assert said.count("finished, to evaluate") == 1


@pytest.mark.parametrize("content", ['{"scored": "x"', "", '{"scores": {}, "scored": "x"}'])
def test_one_damaged_evaluation_keeps_nothing_else_from_the_report(
    finished: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    one, *others = (RunFolder.locate(tmp_path, run.config) for run in finished.runs())
    assert one is not None
    before = scores.read(one, one.config(), AS_TRAINED)
    (one.path / "eval" / "in-context.json").write_text(content)
    left = scores.read(one, one.config(), AS_TRAINED)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert str(one.path / "eval" / "in-context.json") in told
    lost = {name for name in before if before[name].source == "eval/in-context.json"}
    assert set(before) - set(left) == lost != set()
    for other in others:
        assert other is not None
        assert set(scores.read(other, other.config(), AS_TRAINED)) == set(before)
    assert capsys.readouterr().err == ""
