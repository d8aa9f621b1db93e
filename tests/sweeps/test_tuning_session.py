"""`--tune` and `--at` as a command carries them out, with stand-in runs: trials, choice, sweep; resumed, refused, shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_runs import SMALL

from mmctl.sweeps import execute, launchers, progress, session, tuning, tuning_session
from mmctl.sweeps.matrix import load
from mmctl.sweeps.plan import Plan
from mmctl.sweeps.profiles import profile
from mmctl.sweeps.session import Where
from mmctl.sweeps.todo import Options
from mmctl.sweeps.tuning import Tuning

OWN = """
name: own
question: q
baseline: {set: {model.name: mosaic-v2}}
arms: [{name: mosaic}, {name: transformer, set: {model.name: transformer}}]
claims:
  - {id: c, statement: s, metric: recall/accuracy@1x, treatment: mosaic, control: transformer, expected: greater, margin: 0.02}
"""


@pytest.fixture
def plan(
    tmp_path: Path, fakes: Any, inline_launcher: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Plan]:
    """Composes the tuned sweep anew, as every command does; its runs are stand-ins in this process."""
    monkeypatch.setattr(launchers, "launcher", inline_launcher)
    (tmp_path / "own.yaml").write_text(OWN)
    asked = Tuning("training.learning_rate", ("1e-3", "4e-3", "1e-2"), (0,))
    return lambda: tuning.base([load(tmp_path / "own.yaml")], profile("smoke"), SMALL, (0, 1, 2), [], None, asked)


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """(stdout without what stand-in runs say themselves, stderr)."""
    out, err = capsys.readouterr()
    return "".join(line for line in out.splitlines(keepends=True) if not line.endswith("says hello\n")), err


def run(plan: Plan, root: Path, **options: Any) -> int:
    return tuning_session.run(plan, root, Where(jobs=1), True, Options(**options))


@pytest.mark.parametrize("does", [tuning_session, session], ids=["trials", "sweep"])
def test_what_stopped_names_no_command_that_is_another(
    does: Any,
    plan: Callable[[], Plan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(execute.Sweep, "run", lambda self: execute.Outcome(130, 0, 0, [], 2))
    assert does.run(plan(), tmp_path / "runs", Where(jobs=1), True, Options()) == 130
    said = [line for line in printed(capsys)[1].splitlines() if "stopped" in line]
    assert said == [
        "mmctl: stopped; the same command, typed again, goes on"
    ]  # which --runs, --jobs or --at it had, too


def test_trials_choice_and_sweep_are_one_command_that_does_nothing_twice(
    plan: Callable[[], Plan], tmp_path: Path, fakes: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "runs"
    tuning_session.dry_run(plan(), root, Where(jobs=1), True)
    told = json.loads(capsys.readouterr().out)
    assert (told["trials"]["missing"], told["after"]["missing"], told["after"]["choices"]) == (6, 4, None)
    assert not root.exists()

    assert run(plan(), root) == 0
    out, err = printed(capsys)
    assert "own/transformer: training.learning_rate = 0.01 (the edge of 0.001, 0.004, 0.01: a better one may lie" in err
    results = json.loads(out)
    assert results["sweep"] == plan().name
    assert {one["arm"]: one["chosen"] for one in results["tuning"]["arms"]} == {"mosaic": 4e-3, "transformer": 1e-2}
    assert len(fakes.calls()) == 10  # 6 trials, and two more seeds of either arm
    folder = root / "sweeps" / results["sweep"]
    fixed = (folder / "manifest.json").read_bytes()
    assert [c["id"] for c in json.loads(fixed)["ablations"][0]["claims"]] == ["c"]

    assert run(plan(), root) == 0
    out, err = printed(capsys)
    assert json.loads(out) == results
    assert "nothing has changed" in err
    assert fakes.calls() == []
    assert (folder / "manifest.json").read_bytes() == fixed

    tuning_session.show_status(plan(), root, True)
    by_plan = json.loads(capsys.readouterr().out)
    session.show_status_of(results["sweep"], root, True)
    by_name = json.loads(capsys.readouterr().out)
    for seen in (by_plan, by_name):
        assert (seen["sweep"], seen["counts"]["finished"], len(seen["runs"])) == (results["sweep"], 10, 10)
    tuning_session.dry_run(plan(), root, Where(jobs=1), False)
    assert "own/mosaic: training.learning_rate = 0.004 (of 0.001, 0.004, 0.01)" in capsys.readouterr().out


def test_nothing_is_chosen_before_every_trial_has_ended(
    plan: Callable[[], Plan], tmp_path: Path, fakes: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "runs"
    trials = tuning.trials(plan(), plan().tuned.tuning)  # type: ignore[union-attr]
    label = f"{trials.cells[trials.arms['own', 'mosaic-learning_rate-1e-3']].name}/seed0"
    fakes.actions({label: "fail"})
    assert run(plan(), root) == 1
    out, err = printed(capsys)
    assert out == ""
    assert f"{label} failed: told to" in err
    assert "nothing is chosen before every trial has ended" in err
    assert not (root / "sweeps" / plan().name / "results.json").exists()
    tuning_session.show_status(plan(), root, True)
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert (counts["finished"], counts["failed"]) == (5, 1)

    fakes.actions({})
    fakes.calls()
    assert run(plan(), root, retry_failed=True) == 0
    assert len(fakes.calls()) == 5  # the failed trial, and the four that follow from the choice


def test_a_diverged_trial_is_an_answer_not_a_failure(
    plan: Callable[[], Plan], tmp_path: Path, fakes: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = tuning.trials(plan(), plan().tuned.tuning)  # type: ignore[union-attr]
    fakes.actions({f"{trials.cells[trials.arms['own', 'mosaic-learning_rate-4e-3']].name}/seed0": "diverge"})
    assert run(plan(), tmp_path / "runs") == 0
    results = json.loads(printed(capsys)[0])
    mosaic = results["tuning"]["arms"][0]
    assert (mosaic["chosen"], mosaic["tried"][1]["mean"]) == (1e-2, None)
    report = (tmp_path / "runs" / "sweeps" / results["sweep"] / "report.md").read_text()
    assert "| own/`mosaic` | 0.6021 | diverged | **0.3979** | 0.01 |" in report


def test_results_that_are_damaged_add_nothing_to_a_status(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{")
    assert progress.of_results(tmp_path / "results.json") == []
    (tmp_path / "results.json").write_text('{"runs": [{"label": "a/b/seed3", "identity": "x", "seed": 3}]}')
    (one,) = progress.of_results(tmp_path / "results.json")
    assert (one.cell, one.identity, one.seed) == ("a/b", "x", 3)
