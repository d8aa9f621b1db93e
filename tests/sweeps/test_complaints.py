"""What people complain of in tools of this kind, one test a complaint, named by what went wrong for them.

Some complaints have their tests where the code is: inexact resume in tests/training/test_resume.py, torn checkpoints in
tests/runs/test_checkpoint.py, scores and batch sizes in tests/evaluation/test_scoring.py, a slow --help in
tests/cli/test_main.py, MLflow in tests/runs/test_mirror.py.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from fake_runs import SMALL

from mmctl.errors import MmctlError, UsageError
from mmctl.runs import RunFolder
from mmctl.sweeps import matrix, preflight
from mmctl.sweeps.resources import CacheSlots

HERE = Path(__file__).parent

DRIVER = """
import sys
from pathlib import Path
from mmctl.sweeps import live, matrix, plan, profiles
from mmctl.sweeps.execute import Sweep
from mmctl.sweeps.launchers import Resources
from mmctl.sweeps.launchers.local import LocalLauncher

root, names = Path(sys.argv[1]), sys.argv[2].split(",")
made = plan.make_plan(matrix.find(names), profiles.profile("smoke"), sys.argv[3:], [0, 1])
targets = {"train": "fake_runs:execute", "evaluate": "fake_runs:evaluate"}
with LocalLauncher(Resources(2), root / "sweep", targets=targets) as launcher:
    outcome = Sweep(made, root, launcher, live.LineBoard()).run()
sys.exit(outcome.exit_code)
"""


def start(root: Path, names: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(root), names, *SMALL],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stderr=subprocess.PIPE,
        text=True,
    )


def results(root: Path) -> dict[str, bytes]:
    """What each run has found; the same for the same runs whatever happened on the way."""
    return {f"{p.parent.parent.name}/{p.parent.name}": p.read_bytes() for p in root.glob("*/seed*/result.json")}


def test_a_killed_sweep_starts_over_instead_of_resuming(make_plan, fakes, tmp_path: Path) -> None:
    """hydra#3328: a sweep that is killed can be started again, and does only what is missing."""
    root = tmp_path / "runs"
    plan = make_plan(["bandwidth"], seeds=[0, 1])
    fakes.actions({"bandwidth-constant/seed0": "hang"})
    process = start(root, "bandwidth")
    deadline = time.monotonic() + 90
    while len(results(root)) < 5:
        assert time.monotonic() < deadline, process.poll()
        time.sleep(0.05)
    process.kill()
    process.wait()
    before, trained = results(root), Counter(fakes.calls())
    assert set(trained.values()) == {1}
    fakes.actions({})
    process = start(root, "bandwidth")
    _, said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    assert fakes.calls() == ["train bandwidth-constant/seed0"]
    after = results(root)
    assert {key: after[key] for key in before} == before
    assert len(after) == len(plan.runs()) == 6


def test_two_sweeps_at_once_train_a_cell_twice_or_collide(fakes, tmp_path: Path) -> None:
    """hydra#1817, hydra#2925: sweeps started in the same moment used one folder. Here they share the work."""
    root = tmp_path / "runs"
    both = [start(root, "bandwidth,key-extractor"), start(root, "bandwidth,long-term-mask")]
    ends = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert set(Counter(fakes.calls()).values()) == {1}
    assert len(results(root)) == 2 * 5


def test_an_error_comes_late_and_without_its_traceback(make_plan, sweep, fakes, tmp_path: Path) -> None:
    """hydra#2284: what failed is told while the others still run, and its traceback is in its own log."""
    plan = make_plan(["bandwidth"], seeds=[0])
    fakes.actions({"mosaic-v2/seed0": "raise"})
    outcome, board = sweep(plan)
    ends = [(e.job.label, e.values["state"]) for e in board.events if e.kind == "done"]
    assert ends[0] == ("mosaic-v2/seed0", "failed")
    assert [state for _, state in ends[1:]] == ["finished", "finished"]
    log = RunFolder.locate(tmp_path / "runs", plan.runs()[0].config).log_path.read_text()
    assert "Traceback" in log
    assert "RuntimeError: broken on purpose" in log
    assert outcome.exit_code == 1


def test_a_sweep_goes_on_for_hours_after_its_first_failure(make_plan, inline_sweep, fakes) -> None:
    """hydra#2824: --fail-fast starts nothing new."""
    plan = make_plan(["bandwidth"], seeds=[0, 1])
    fakes.actions({run.label: "fail" for run in plan.runs()})
    outcome, _ = inline_sweep(plan, max_failures=1)
    assert (len(fakes.calls()), outcome.gave_up, outcome.left) == (1, True, 5)


def test_paired_values_can_only_be_swept_as_a_full_grid(tmp_path: Path) -> None:
    """hydra#1918, hydra#2851: axes that belong together are zipped."""
    own = tmp_path / "own.yaml"
    own.write_text(
        "name: own\nquestion: q\nbaseline: {}\ncombine: zip\n"
        "axes: {training.learning_rate: [0.001, 0.002, 0.004], data.batch: [16, 32, 64]}\n"
    )
    arms = matrix.load(own).arms
    pairs = [(arm.set["training.learning_rate"], arm.set["data.batch"]) for arm in arms]
    assert pairs == [(0.001, 16), (0.002, 32), (0.004, 64)]


def test_failed_cells_count_as_visited_and_cannot_be_run_again(make_plan, inline_sweep, fakes, tmp_path: Path) -> None:
    """wandb#1879, wandb#6594, optuna#3256: a failure is neither forgotten nor taken for a result."""
    plan = make_plan(["long-term-mask"], seeds=[0])
    fakes.actions({"mosaic-v2/seed0": "fail"})
    for expected in (["train long-term-mask-fixed/seed0", "train mosaic-v2/seed0"], []):
        outcome, _ = inline_sweep(plan)
        assert fakes.calls() == expected
        assert [(f["label"], f["state"]) for f in outcome.failures] == [("mosaic-v2/seed0", "failed")]
        assert outcome.exit_code == 1
    fakes.actions({})
    outcome, _ = inline_sweep(plan, retry_failed=True)
    assert (outcome.exit_code, fakes.calls()) == (0, ["train mosaic-v2/seed0"])
    run = RunFolder.locate(tmp_path / "runs", plan.runs()[0].config)
    assert (run.status["attempt"], run.status["earlier"][0]["state"]) == (2, "failed")


def test_resume_skips_exactly_what_crashed(make_plan, sweep, fakes) -> None:
    """ClawBench#297: a run whose process died without a word is run again, without being asked."""
    plan = make_plan(["long-term-mask"], seeds=[0])
    fakes.actions({"mosaic-v2/seed0": "kill-again"})
    outcome, _ = sweep(plan)
    assert [f["state"] for f in outcome.failures] == ["lost"]
    fakes.calls()
    fakes.actions({})
    outcome, _ = sweep(plan)
    assert (outcome.exit_code, fakes.calls()) == (0, ["train mosaic-v2/seed0"])


def test_how_a_run_is_carried_out_makes_it_another_run(make_plan) -> None:
    """curifactory#5: device, cadences and names are no part of a run's identity; what is trained is."""
    words = ["operation.log_every=1", "operation.checkpoint_every=7", "operation.keep=9", "operation.device=cpu"]
    one, other = make_plan(["bandwidth"]), make_plan(["bandwidth"], overrides=words)
    assert [run.key for run in one.runs()] == [run.key for run in other.runs()]
    changed = make_plan(["bandwidth"], overrides=["training.clip=0.5"])
    assert not {run.key for run in one.runs()} & {run.key for run in changed.runs()}


def test_the_spread_over_seeds_has_to_be_worked_out_by_hand(make_plan, inline_sweep, fakes, tmp_path: Path) -> None:
    """wandb#5634, aim#334, clearml#499: every score comes as mean and standard deviation over its seeds."""
    from mmctl.sweeps import manifest
    from mmctl.sweeps.results import collect

    plan = make_plan(["long-term-mask"], seeds=[0, 1, 2])
    inline_sweep(plan)
    found = collect(plan, tmp_path / "runs", manifest.write(plan, tmp_path / "runs", {}))
    arm = found["ablations"][0]["arms"][0]
    score = arm["scores"]["recall/accuracy@1x"]
    values = [0.8, 0.81, 0.82]
    assert score["n"] == 3
    assert score["mean"] == pytest.approx(sum(values) / 3)
    assert score["sd"] == pytest.approx(0.01)


def test_the_disk_is_full_when_the_last_run_ends(make_plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """open_lm#154: room for the whole sweep is looked for before its first run."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000_000))
    preflight.check_disk(tmp_path / "not" / "there", 9_000_000, 3)
    with pytest.raises(MmctlError, match=r"disk: the 6 missing runs need about 190\.7 MiB .* 9\.5 MiB are free"):
        preflight.check_disk(tmp_path / "not" / "there", 200_000_000, 6)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arm", "says"),
    [
        ("set: {training.stepz: 3}", 'did you mean "training.steps"'),
        ("set: {model.bandwidth: constnat}", 'did you mean "constant"'),
        ("sett: {training.steps: 3}", "no such key"),
        ("evaluate: {delay: 0}", "expected at least 1"),
    ],
)
def test_a_dry_run_that_checks_nothing_and_keys_that_are_swallowed(
    arm: str, says: str, make_plan, tmp_path: Path
) -> None:
    """soup#627, soup#642: the plan that a dry run shows is made by the very loader that trains."""
    own = tmp_path / "own.yaml"
    own.write_text(f"name: own\nquestion: q\nbaseline: {{}}\narms: [{{name: a}}, {{name: b, {arm}}}]\n")
    with pytest.raises(UsageError) as error:
        make_plan([str(own)])
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_two_workers_compile_into_one_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """triton#11512: no two living workers share a cache folder, of one sweep or of two; the next sweep finds it
    again."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    one, two = CacheSlots(), CacheSlots()
    taken = [slots.take() for slots in (one, two, one)]
    folders = [folder for each in taken for folder in each.values()]
    assert len(set(folders)) == 6
    assert all(Path(folder).is_relative_to(tmp_path) for folder in folders)
    two.close()
    assert CacheSlots().take() == taken[1]
    (mine,) = tmp_path.iterdir()
    assert mine.stat().st_mode & 0o777 == 0o700
    mine.chmod(0o777)  # anybody could put compiled code there: it is not used
    assert not any(Path(f).is_relative_to(mine) for f in CacheSlots().take().values())


def test_a_workers_run_becomes_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mlflow#15713: MLFLOW_RUN_ID in the environment makes the child be the parent; workers do not see it."""
    from mmctl.sweeps.launchers import Resources
    from mmctl.sweeps.launchers.local import LocalLauncher

    monkeypatch.setenv("MLFLOW_RUN_ID", "the-parent")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///kept.db")
    with LocalLauncher(Resources(2, threads=3), tmp_path) as launcher:
        seen = launcher.environment(0)
    assert "MLFLOW_RUN_ID" not in seen
    assert seen["MLFLOW_TRACKING_URI"] == "sqlite:///kept.db"
    assert seen["OMP_NUM_THREADS"] == "3"


def test_what_reproduces_a_run_of_a_sweep_is_not_recorded(make_plan, inline_sweep, fakes, tmp_path: Path) -> None:
    """Known gap: provenance.json held the worker's own arguments, overrides.txt nothing."""
    from mmctl.config import identity, load

    plan = make_plan(["bandwidth"], seeds=[1])
    inline_sweep(plan)
    for run in plan.runs():
        folder = RunFolder.locate(tmp_path / "runs", run.config)
        command = folder.provenance()["command"]
        assert command[:3] == ["mmctl", "train", "smoke"]
        again = dataclasses.replace(load("smoke", command[3:]))
        assert (identity(again), again.seed) == run.key
        assert (folder.path / "overrides.txt").read_text().splitlines() == command[3:]
