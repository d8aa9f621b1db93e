"""`mmctl ablate --status`: what a sweep's run folders say, while it runs and after."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmctl.errors import MmctlError, UsageError
from mmctl.runs import RunFolder
from mmctl.sweeps import manifest, matrix, profiles, progress, selection


def test_every_state_is_shown_with_progress_loss_and_time_left(make_plan, fakes, tmp_path: Path) -> None:
    import fake_runs

    root = tmp_path / "runs"
    plan = make_plan(["bandwidth"], seeds=[0, 1])
    runs = plan.runs()
    fake_runs.execute(runs[0].config, root)
    running, failed, lost = (RunFolder.create(root, run.config) for run in runs[1:4])
    running.set_state("running")
    for step in (10, 20):
        running.append_metrics(step, {"loss": 3.5 - step / 10, "seconds": step / 2.0})
    failed.set_state("running")
    failed.set_state("failed", "no\ndisk")
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    lost.set_state("running")
    record = json.loads((lost.path / "status.json").read_text())
    (lost.path / "status.json").write_text(json.dumps(record | {"pid": gone.pid, "start": 1.0}))

    asked = progress.of_plan(plan)
    assert {one.steps for one in asked} == {2}
    seen = progress.look(plan.name, [dataclasses.replace(one, steps=100) for one in asked], root)
    rows = seen["runs"]
    assert [row["state"] for row in rows] == ["finished", "running", "failed", "lost", "planned", "planned"]
    assert {k: v for k, v in seen["counts"].items() if v} == dict(finished=1, running=1, planned=2, lost=1, failed=1)
    one = rows[1]
    assert (one["step"], one["steps"], one["loss"], one["seconds_left"]) == (20, 100, 1.5, 40.0)
    assert one["where"] == f"{record['host']}:{os.getpid()}"
    assert (rows[0]["seconds"], rows[2]["reason"]) == (12.5, "no\ndisk")
    # One worker: what is left of its run, and three more as long as the finished one (12.5 s).
    assert seen["seconds_left"] == 40.0 + 3 * 12.5
    assert json.loads(json.dumps(seen, allow_nan=False)) == seen
    assert progress.heading(seen).endswith(
        "6 runs: 1 finished, 1 running, 2 planned, 1 lost, 1 failed, about 1:18 left"
    )
    table = progress.table(seen)
    assert table.row_count == 6
    assert list(table.columns[3].cells)[1].plain == "20/100 (20%)"
    assert list(table.columns[7].cells)[2].plain == "no disk"
    few = progress.table(seen, most=2)
    assert [cell.plain for cell in few.columns[2].cells] == ["running", "lost"]
    assert "4 more" in str(few.caption)


def test_a_finished_run_has_its_results_loss_or_where_a_model_was_chosen_the_last_one_logged(
    make_plan, fakes, tmp_path: Path
) -> None:
    plan = make_plan(["bandwidth"], seeds=[0])
    for run, result in zip(
        plan.runs(), ({"train_loss": 1.25}, {"selected": {"step": 5}}, {"train_loss": None}), strict=False
    ):
        folder = RunFolder.create(tmp_path, run.config)
        folder.append_metrics(10, {"loss": 2.5})
        with folder.lock():
            folder.write_result({"steps": 10, **result})
    rows = progress.look(plan.name, progress.of_plan(plan), tmp_path)["runs"]
    assert [(row["state"], row["loss"]) for row in rows] == [("finished", 1.25), ("finished", 2.5), ("finished", None)]


def test_a_sweep_is_found_by_its_folder_without_making_its_plan_again(make_plan, tmp_path: Path) -> None:
    plan = make_plan(["bandwidth"], seeds=[0, 3])
    fixed = manifest.write(plan, tmp_path, {})
    asked = progress.of_manifest(fixed, tmp_path)
    assert [(a.cell, a.identity, a.seed) for a in asked] == [(r.cell.name, *r.key) for r in plan.runs()]
    with pytest.raises(MmctlError, match="its cells cannot be read"):
        progress.of_manifest({"cells": [{"name": "x"}]}, tmp_path)


def test_of_two_manifests_the_first_one_counts(make_plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sweeps that begin in the same second both find no manifest; the second must not rewrite the first one's."""
    plan = make_plan(["long-term-mask"], seeds=[0])
    path = manifest.folder(plan, tmp_path) / "manifest.json"
    make = manifest._content

    def slow(*arguments: object) -> dict[str, object]:
        made = make(*arguments)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**made, "created": "by another", "finished_before": []}))
        return made

    monkeypatch.setattr(manifest, "_content", slow)
    assert manifest.write(plan, tmp_path, {})["created"] == "by another"


@pytest.mark.parametrize(
    ("names", "only", "skip", "arms"),
    [
        (["bandwidth"], ["model.bandwidth=adaptive"], [], ["adaptive"]),
        (["bandwidth"], [], ["bandwidth=adaptive,constant"], ["constant-matched"]),
        (["long-term-mask"], ["model.long_term_mask=stochastic"], [], ["stochastic"]),
        (["long-term-removal"], ["remove_long_term=false"], [], ["kept"]),
        (["own"], ["model.window=32"], [], ["plain", "small"]),
        (["own"], [], ["data.batch=16"], ["small"]),
    ],
)
def test_only_and_skip_by_the_value_an_arm_has_whether_it_says_so_or_not(
    names: list[str], only: list[str], skip: list[str], arms: list[str], tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "name: own\nquestion: q\nbaseline: {}\n"
        "arms: [{name: plain}, {name: wide, set: {model.window: 64}}, {name: small, set: {data.batch: 8}}]\n"
    )
    found = matrix.find([str(own) if name == "own" else name for name in names])
    chosen = selection.select(found, only, skip, profiles.profile("smoke"))
    assert [arm.name for m in chosen for arm in m.arms] == arms


def test_a_value_that_no_arm_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match='did you mean "bandwidth=adaptive"'):
        selection.select(matrix.find(["bandwidth"]), ["bandwidth=adaptve"], [], profiles.profile("smoke"))
