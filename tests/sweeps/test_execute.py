"""Sweeps with real worker processes and fake training: what runs, what does not, and what a death costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmctl.errors import MmctlError
from mmctl.runs import RunFolder

HERE = Path(__file__).parent


def test_shared_cells_train_once_and_a_rerun_does_only_what_is_missing(make_plan, sweep, fakes, tmp_path) -> None:
    plan = make_plan(["bandwidth", "long-term-removal"], seeds=[0, 1])
    outcome, board = sweep(plan, jobs=2)
    assert (outcome.exit_code, outcome.ran, outcome.skipped, outcome.failures) == (0, 6, 0, [])
    cells = ["bandwidth-constant", "bandwidth-constant-matched", "mosaic-v2"]
    trained = sorted(f"train {cell}/seed{seed}" for cell in cells for seed in (0, 1))
    assert fakes.calls() == ["evaluate mosaic-v2/seed0", "evaluate mosaic-v2/seed1", *trained]
    assert any(e.kind == "progress" and e.values["loss"] == 1.5 for e in board.events)

    outcome, _ = sweep(plan)
    assert (outcome.exit_code, outcome.ran, outcome.skipped) == (0, 0, 6)
    assert fakes.calls() == []

    runs = {r.label: RunFolder.locate(tmp_path / "runs", r.config) for r in plan.runs()}
    (runs["bandwidth-constant/seed1"].path / "result.json").unlink()
    (runs["mosaic-v2/seed0"].path / "eval" / "in-context+remove-long-term.json").unlink()
    outcome, _ = sweep(plan)
    assert (outcome.exit_code, outcome.ran, outcome.skipped) == (0, 1, 4)
    assert fakes.calls() == ["evaluate mosaic-v2/seed0", "train bandwidth-constant/seed1"]


def test_workers_are_reused(make_plan, sweep, fakes) -> None:
    sweep(make_plan(["bandwidth"], seeds=[0, 1]))
    assert len({line.split()[2] for line in fakes.calls_file.read_text().splitlines()}) == 1


def test_another_ablation_and_more_seeds_reuse_finished_runs(make_plan, inline_sweep, fakes) -> None:
    inline_sweep(make_plan(["bandwidth"], seeds=[0]))
    fakes.calls()
    inline_sweep(make_plan(["bandwidth", "long-term-mask"], seeds=[0, 1]))
    assert fakes.calls() == [
        "train bandwidth-constant-matched/seed1",
        "train bandwidth-constant/seed1",
        "train long-term-mask-fixed/seed0",
        "train long-term-mask-fixed/seed1",
        "train mosaic-v2/seed1",
    ]


def test_what_a_run_prints_is_in_its_log(make_plan, sweep, tmp_path) -> None:
    plan = make_plan(["long-term-mask"], seeds=[0])
    sweep(plan)
    for run in plan.runs():
        log = RunFolder.locate(tmp_path / "runs", run.config).log_path.read_text()
        assert log.splitlines() == [f"{run.label} says hello"]


def test_failures_do_not_stop_the_others(make_plan, sweep, fakes, tmp_path) -> None:
    fakes.actions(
        {
            "mosaic-v2/seed0": "fail",
            "bandwidth-constant/seed1": "raise",
            "bandwidth-constant-matched/seed0": "kill-again",
        }
    )
    plan = make_plan(["bandwidth"], seeds=[0, 1])
    outcome, _ = sweep(plan)
    assert outcome.exit_code == 1
    assert outcome.ran == 3
    reasons = {f["label"]: (f["state"], f["reason"]) for f in outcome.failures}
    assert reasons["mosaic-v2/seed0"] == ("failed", "told to")
    assert reasons["bandwidth-constant/seed1"] == ("failed", "RuntimeError: broken on purpose")
    state, reason = reasons["bandwidth-constant-matched/seed0"]
    assert state == "lost"
    assert "SIGKILL" in reason
    runs = {r.label: RunFolder.locate(tmp_path / "runs", r.config) for r in plan.runs()}
    assert "Traceback" in runs["bandwidth-constant/seed1"].log_path.read_text()
    assert runs["bandwidth-constant-matched/seed0"].state() == "lost"

    # What was lost is run again; what failed is reported again, and run again when asked.
    fakes.calls()
    fakes.actions({})
    outcome, _ = sweep(plan)
    assert (outcome.exit_code, outcome.ran, outcome.skipped) == (1, 1, 3)
    assert fakes.calls() == ["train bandwidth-constant-matched/seed0"]
    assert {f["label"]: f["state"] for f in outcome.failures} == {
        "mosaic-v2/seed0": "failed",
        "bandwidth-constant/seed1": "failed",
    }
    assert all("--retry-failed" in f["reason"] for f in outcome.failures)
    outcome, _ = sweep(plan, retry_failed=True)
    assert (outcome.exit_code, outcome.ran, outcome.skipped) == (0, 2, 4)
    assert fakes.calls() == ["train bandwidth-constant/seed1", "train mosaic-v2/seed0"]


def test_a_killed_worker_costs_a_resumption_and_not_the_run(make_plan, sweep, fakes, tmp_path) -> None:
    plan = make_plan(["long-term-mask"], seeds=[0])
    fakes.actions({"mosaic-v2/seed0": "kill"})
    outcome, board = sweep(plan)
    assert (outcome.exit_code, outcome.failures) == (0, [])
    assert fakes.calls() == ["train long-term-mask-fixed/seed0", *["train mosaic-v2/seed0"] * 2]
    assert any("resumed once" in note for note in board.notes)
    run = RunFolder.locate(tmp_path / "runs", next(r for r in plan.runs() if r.label == "mosaic-v2/seed0").config)
    assert [(e["attempt"], e["state"]) for e in run.status["earlier"]] == [(1, "lost")]


def test_a_diverged_run_is_a_result_until_told_otherwise(make_plan, inline_sweep, fakes) -> None:
    plan = make_plan(["long-term-mask"], seeds=[0])
    fakes.actions({"mosaic-v2/seed0": "diverge"})
    outcome, _ = inline_sweep(plan)
    assert [f["state"] for f in outcome.failures] == ["diverged"]
    fakes.calls()
    fakes.actions({})
    outcome, _ = inline_sweep(plan)
    assert (outcome.exit_code, fakes.calls()) == (1, [])
    outcome, _ = inline_sweep(plan, retry_failed=True)
    assert (outcome.exit_code, fakes.calls()) == (0, ["train mosaic-v2/seed0"])


def test_retry_failed_gives_one_more_try_at_the_end(make_plan, inline_sweep, fakes) -> None:
    fakes.actions({"mosaic-v2/seed0": "fail-once", "long-term-mask-fixed/seed0": "fail"})
    outcome, board = inline_sweep(make_plan(["long-term-mask"], seeds=[0]), retry_failed=True)
    assert [f["label"] for f in outcome.failures] == ["long-term-mask-fixed/seed0"]
    assert fakes.calls() == ["train long-term-mask-fixed/seed0"] * 2 + ["train mosaic-v2/seed0"] * 2
    assert any("once more" in note for note in board.notes)


def test_max_failures_starts_nothing_new(make_plan, inline_sweep, fakes) -> None:
    plan = make_plan(["bandwidth"], seeds=[0, 1, 2])
    fakes.actions({run.label: "fail" for run in plan.runs()})
    outcome, _ = inline_sweep(plan, max_failures=2)
    assert (outcome.exit_code, outcome.gave_up, len(outcome.failures), len(fakes.calls())) == (1, True, 2, 2)


def test_force_runs_anew_and_keeps_the_old_outcome(make_plan, inline_sweep, fakes, tmp_path) -> None:
    plan = make_plan(["long-term-mask"], seeds=[0])
    inline_sweep(plan)
    fakes.calls()
    outcome, _ = inline_sweep(plan, force=True)
    assert (outcome.exit_code, outcome.ran) == (0, 2)
    assert len(fakes.calls()) == 2
    old = sorted((tmp_path / "runs" / "replaced").iterdir())
    assert len(old) == 2
    assert all((folder / "result.json").is_file() for folder in old)


def test_a_run_somebody_else_holds_is_waited_for(make_plan, sweep, fakes, tmp_path, monkeypatch) -> None:
    import threading

    from mmctl.sweeps import execute

    monkeypatch.setattr(execute, "BUSY_SECONDS", 0.2)
    plan = make_plan(["long-term-mask"], seeds=[0], only=["fixed"])
    (run,) = plan.runs()
    folder = RunFolder.create(tmp_path / "runs", run.config, [])
    with folder.lock():
        done: list = []
        thread = threading.Thread(target=lambda: done.append(sweep(plan)))
        thread.start()
        time.sleep(3)
        assert thread.is_alive()
    thread.join(60)
    assert done[0][0].exit_code == 0
    assert done[0][0].failures == []


def test_workers_that_cannot_start_are_said_once(make_plan, sweep) -> None:
    with pytest.raises(MmctlError, match="workers do not start"):
        sweep(make_plan(["bandwidth"], seeds=[0, 1]), environment={"PYTHONHOME": "/nonexistent"})


def test_a_target_that_is_not_there_fails_every_run_in_one_line(make_plan, sweep) -> None:
    outcome, _ = sweep(make_plan(["long-term-mask"], seeds=[0]), execute="fake_runs:nothing")
    assert {f["state"] for f in outcome.failures} == {"failed"}
    assert all("\n" not in f["reason"] and "nothing" in f["reason"] for f in outcome.failures)


DRIVER = """
import sys
from pathlib import Path
from mmctl.sweeps import live, matrix, plan, profiles
from mmctl.sweeps.execute import Options, Sweep
from mmctl.sweeps.launchers import Resources
from mmctl.sweeps.launchers.local import LocalLauncher

root = Path(sys.argv[1])
made = plan.make_plan(matrix.find(["long-term-mask"]), profiles.profile("smoke"), sys.argv[2:], [0])
targets = {"train": "fake_runs:execute", "evaluate": "fake_runs:evaluate"}
with LocalLauncher(Resources(2), root / "sweep", targets=targets) as launcher:
    outcome = Sweep(made, root, launcher, live.LineBoard(), Options()).run()
sys.exit(outcome.exit_code)
"""


@pytest.fixture(params=["hang", "save"])
def parent(request, fakes, tmp_path, make_plan):
    """A sweep in a process of its own, with both its runs under way; "save" takes signals as the training loop does."""
    from fake_runs import SMALL

    plan = make_plan(["long-term-mask"], seeds=[0])
    fakes.actions({run.label: request.param for run in plan.runs()})
    root = tmp_path / "runs"
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(root), *SMALL],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: len(list(root.glob("*/seed0/hanging"))) == 2, 60)
    workers = [int(line.split()[2]) for line in fakes.calls_file.read_text().splitlines()]
    yield process, workers, root, {"hang": "asked to", "save": "saved"}[request.param]
    process.kill()
    process.wait()


def wait_for(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_runs_save_and_sets_the_exit_code(parent, number: int, code: int) -> None:
    process, workers, root, reason = parent
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert "saving 2 running" in said
    assert all(gone(pid) for pid in workers)
    ended = [RunFolder.open(p.parent).status for p in root.glob("*/seed0/hanging")]
    assert [(s["state"], s["reason"]) for s in ended] == [("interrupted", reason)] * 2


def test_workers_do_not_outlive_a_killed_parent(parent) -> None:
    process, workers, root, reason = parent
    process.kill()
    process.wait()
    wait_for(lambda: all(gone(pid) for pid in workers), 30)
    ended = [RunFolder.open(p.parent).status for p in root.glob("*/seed0/hanging")]
    assert [(s["state"], s["reason"]) for s in ended] == [("interrupted", reason)] * 2


def test_what_is_left_is_said_with_the_command_that_goes_on() -> None:
    from mmctl.sweeps.todo import summary

    failures = [{"state": "failed"}, {"state": "diverged"}, {"state": "lost"}]
    assert summary(failures, 5, 9) == [
        "5 of 9 runs not finished",
        "2 failed or diverged: not run again unless the same command has --retry-failed",
        "3 not started, interrupted or lost: the same command goes on with them",
    ]
    assert len(summary(failures[:2], 2, 9)) == 2
    assert len(summary(failures[2:], 1, 9)) == 2
