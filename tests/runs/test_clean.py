"""`mmctl runs clean` and what decides which runs are meant: keys, state, age."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from small_run import scores, small

from mmctl.errors import UsageError
from mmctl.runs import RunFolder, clean
from mmctl.runs.filters import Filters, age, same, select
from mmctl.runs.lock import Lock
from mmctl.runs.process import Owner

DEAD = 4_000_000
"""No process: beyond the largest pid."""


def with_checkpoints(root: Path, *overrides: str, best: int = 10, result: bool = True) -> RunFolder:
    run = RunFolder.create(root, small(*overrides))
    with run.lock():
        run.set_state("running")
        run.append_metrics(40, {"loss": 0.5})
        for step in (10, 20, 30, 40):
            run.save_checkpoint(step, {"tensors": {}, "state": {}}, keep=4, best=step == best)
        run.write_evaluation("new-knowledge", scores({"recall/accuracy@1x": 0.75}))
        if result:
            run.write_result({"train_loss": 0.5, "steps": 40})
        run.set_state("finished" if result else "failed")
    return run


def paths(root: Path, **filters: str) -> set[str]:
    return {str(i.path.relative_to(root)) for i in clean.find(root, select(root, Filters.of(**filters)))}


def tree(run: RunFolder) -> dict[str, bytes]:
    return {str(p.relative_to(run.path)): p.read_bytes() for p in run.path.rglob("*") if p.is_file()}


def test_best_and_last_of_a_finished_run_stay_and_the_newest_two_of_one_that_will_resume(tmp_path: Path) -> None:
    done, failed = with_checkpoints(tmp_path), with_checkpoints(tmp_path, "seed=1", result=False)
    assert paths(tmp_path) == {f"{done.label}/checkpoints/step_{s}" for s in (20, 30)} | {
        f"{failed.label}/checkpoints/step_20"
    }
    before = tree(done)
    items = list(clean.find(tmp_path, [done, failed]))
    assert sum(i.bytes for i in items) == sum(
        p.stat().st_size for i in items for p in i.path.rglob("*") if p.is_file()
    ) > 0  # fmt: skip
    cleaned = clean.delete(items, tmp_path)
    assert (len(cleaned.done), cleaned.left) == (3, [])
    assert done.checkpoint_steps() == [10, 40]
    assert failed.checkpoint_steps() == [10, 30, 40]
    kept = {k: v for k, v in before.items() if "/step_20/" not in k and "/step_30/" not in k}
    assert {k: v for k, v in tree(done).items() if k != "lock"} == {k: v for k, v in kept.items() if k != "lock"}
    assert paths(tmp_path) == set()


def test_a_damaged_last_checkpoint_keeps_the_one_before(tmp_path: Path) -> None:
    run = with_checkpoints(tmp_path)
    (run.path / "checkpoints" / "step_40" / "state.json").write_text("")
    assert paths(tmp_path) == {f"{run.label}/checkpoints/step_20"}


def test_leftovers_and_the_locks_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    run = with_checkpoints(tmp_path)
    clean.delete(clean.find(tmp_path, [run]), tmp_path)
    old = time.time() - 3600
    leftovers = [
        tmp_path / f".import.{DEAD}-0a1b.tmp",
        run.path.parent / f".seed3.{DEAD}-0a1b.tmp",
        run.path / f".status.json.{DEAD}-0a1b.tmp",
        run.path / "eval" / f".x.json.{DEAD}-0a1b.tmp",
    ]
    for path in leftovers:
        path.mkdir()
        os.utime(path, (old, old))
    (run.checkpoints / "step_50.tmp").mkdir()
    living = run.path / f".metrics.{os.getpid()}-0a1b.tmp"
    living.touch()
    os.utime(living, (old, old))
    young = run.path / f".result.json.{DEAD}-0a1b.tmp"
    young.touch()
    dead = Owner(Owner.me().host, DEAD, 1.0, Owner.me().boot)
    (run.path / "lock").write_text(json.dumps(dead.record()))
    expected = {str(p.relative_to(tmp_path)) for p in leftovers}
    expected |= {f"{run.label}/checkpoints/step_50.tmp", f"{run.label}/lock"}
    assert paths(tmp_path) == expected
    items = list(clean.find(tmp_path, [run]))
    assert next(i.why for i in items if i.kind == "lock") == f"held by {dead}, which is gone"
    cleaned = clean.delete(items, tmp_path)
    assert (len(cleaned.done), cleaned.left) == (6, [])
    assert Lock(run.path / "lock").owner() is None
    assert (run.path / "lock").exists()  # deleting it would let two owners hold two inodes
    assert living.exists()
    assert young.exists()
    assert paths(tmp_path) == set()


def test_nothing_of_a_running_run_is_touched_even_if_it_began_after_the_look(tmp_path: Path) -> None:
    run = with_checkpoints(tmp_path)
    items = list(clean.find(tmp_path, [run]))
    (run.path / "result.json").unlink()
    with run.lock():
        run.set_state("running")
        assert paths(tmp_path) == set()
        before = tree(run)
        cleaned = clean.delete(items, tmp_path)
        assert cleaned.done == []
        assert {reason for _, reason in cleaned.left} == {f"{run.label} is in use by {Owner.me()}"}
        assert tree(run) == before


def test_what_became_the_last_or_the_best_since_stays(tmp_path: Path) -> None:
    run = with_checkpoints(tmp_path)
    items = list(clean.find(tmp_path, [run]))
    (run.checkpoints / "best.json").write_text(json.dumps({"step": 20}))
    cleaned = clean.delete(items, tmp_path)
    assert [i.step for i in cleaned.done] == [30]
    assert [(i.step, reason) for i, reason in cleaned.left] == [(20, "it is the last or the best one by now")]


# Which runs are meant


@pytest.fixture
def many(tmp_path: Path) -> Path:
    RunFolder.create(tmp_path, small("name=adaptive"))
    RunFolder.create(tmp_path, small("name=constant", "model.bandwidth=constant", "training.learning_rate=1e-3"))
    former = RunFolder.create(tmp_path, small("model.name=transformer", "seed=4"))
    former.set_state("failed", "no luck")
    return tmp_path


def names(root: Path, *words: str, **more: str) -> list[str]:
    return [run.name for run in select(root, Filters.of(words, **more))]


def test_runs_are_chosen_by_any_key_or_the_end_of_one(many: Path) -> None:
    assert names(many) == ["adaptive", "constant", "transformer"]
    assert names(many, "model.bandwidth=adaptive") == ["adaptive"]
    assert names(many, "bandwidth=constant") == ["constant"]
    assert names(many, "training.learning_rate=0.001") == ["constant"]
    assert names(many, "learning_rate=1e-3") == ["constant"]
    assert names(many, "model.delay=null") == ["adaptive", "constant"]  # the transformer has no such key
    assert names(many, "model.long_term=true", "seed=0") == ["adaptive", "constant"]
    assert names(many, "seed=4") == ["transformer"]
    assert names(many, "evaluation.lengths=[1,2,4,8]") == ["adaptive", "constant", "transformer"]
    assert names(many, "evaluation.suites=[new-knowledge]", name="const") == ["constant"]
    assert names(many, state="failed") == ["transformer"]
    assert names(many, "bandwidth=none") == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model.bandwith=x"], '"model.bandwith": no run has such a key; did you mean "model.bandwidth"'),
        (["traning.steps=2"], 'did you mean "training.steps"'),
        (["bandwidth"], '"bandwidth": expected key=value'),
        (["seed=1", "seed=2"], '"seed" is given twice'),
        (["lengths=1", "=2"], '"=2": expected key=value'),
        (["batch=1"], ""),
    ],
)
def test_a_wrong_filter_names_what_was_probably_meant(many: Path, words: list[str], told: str) -> None:
    if told:
        with pytest.raises(UsageError) as caught:
            names(many, *words)
        assert told in str(caught.value)
    else:
        assert names(many, *words) == []


def test_ages(many: Path) -> None:
    assert [age(t) for t in ("90s", "1.5h", "7d", "2w")] == [90, 5400, 604800, 1209600]
    for text in ("7", "d", "-7d", "7 days", "", "1e3d", "nan"):
        with pytest.raises(UsageError, match="expected a number and a unit"):
            age(text)
    assert names(many, older_than="1h") == []
    run = RunFolder.find(many, "adaptive")
    record = run.status
    for key in ("created", "heartbeat"):
        record[key] = time.time() - 8 * 86400
    (run.path / "status.json").write_text(json.dumps(record))
    assert names(many, older_than="7d") == ["adaptive"]
    assert names(many, older_than="9d") == []


def test_values_are_compared_as_what_they_are() -> None:
    assert same(True, "True")
    assert not same(True, "1")
    assert same(0.001, "1e-3")
    assert same(16, "16.0")
    assert not same(16, "16x")
    assert same(None, "null")
    assert same([1, 2], "[1, 2]")
    assert same([1, 2], "1,2")
    assert not same([1, 2], "1")
    assert same("16", "16")


def test_seeds_of_one_configuration_are_parsed_once_and_damage_costs_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmctl.runs.filters import configurations

    runs = [RunFolder.create(tmp_path, small(f"seed={seed}", f"name=n{seed}")) for seed in range(4)]
    (runs[3].path / "config.yaml").write_text("{")
    calls, real = [], RunFolder.config_dict
    monkeypatch.setattr(RunFolder, "config_dict", lambda self: calls.append(self.seed) or real(self))
    known = configurations(runs)
    assert {label: (c["seed"], c["name"], c["training.steps"]) for label, c in known.items()} == {
        run.label: (run.seed, f"n{run.seed}", 20) for run in runs[:3]
    }
    assert calls == [0, 3]
