"""A SQLite store that is locked, deleted, read-only or damaged: the run goes on, one line says why, `sync` mends it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from small_run import scores, small, wait_for

from mmctl.errors import MmctlError
from mmctl.runs import Mirror, RunFolder, mirror, probe, store, system
from mmctl.runs.lock import say
from mmctl.runs.mirror import catch_up, sync
from mmctl.runs.parents import parent_run, parents
from mmctl.runs.upload import Upload


@pytest.fixture
def root(store_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with a store of its own, copied from the session's: making one takes seconds."""
    template = store_root / "mlflow.db"
    monkeypatch.setattr(store, "_stores", {})
    if not template.exists():
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        store.connect(store_root)
    (tmp_path / "runs").mkdir()
    shutil.copy(template, tmp_path / "runs" / "mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "faults")
    monkeypatch.setattr(mirror, "FLUSH_EVERY", 0.02)
    monkeypatch.setattr(mirror, "LONGEST_PAUSE", 0.1)
    return tmp_path / "runs"


def started(root: Path, *overrides: str) -> RunFolder:
    run = RunFolder.create(root, small(*overrides))
    run.set_state("running")
    run.append_metrics(1, {"loss": 1.0})
    return run


def rows(root: Path) -> dict[str, Any]:
    """(status, steps of the loss, files) of every run by name."""
    opened = store.connect(root)
    return {
        run.info.run_name: (
            run.info.status,
            [m.step for m in opened.client.get_metric_history(run.info.run_id, "loss")] if run.data.metrics else [],
            sorted(store.files_there(opened, run.info.run_id)),
        )
        for run in opened.client.search_runs([opened.experiment])
    }


def sent(follower: Mirror, step: int) -> None:
    wait_for(lambda: follower._upload is not None and follower._upload.last_step == step)


OWN = ["config.yaml", "overrides.txt", "provenance.json"]


def test_a_store_that_another_process_locks_gets_everything_once_it_is_free(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow.store.db import utils

    run = started(root)
    follower = Mirror.start(run)
    sent(follower, 1)
    upload = follower._upload
    assert upload is not None
    real = utils.sql.text  # MLflow waits 20 s for a lock; a test need not
    monkeypatch.setattr(utils.sql, "text", lambda t: real(t.replace("busy_timeout = 20000", "busy_timeout = 200")))
    with contextlib.closing(sqlite3.connect(root / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        run.append_metrics(2, {"loss": 0.5})
        wait_for(lambda: follower._failing)
        other.execute("ROLLBACK")
    run.append_metrics(3, {"loss": 0.25})
    assert follower.finish("finished")
    assert rows(root)[run.label][:2] == ("FINISHED", [1, 2, 3])
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "database is locked; training goes on" in said[0]
    assert "back again" in said[1]


def test_a_store_deleted_while_a_run_goes_on_is_made_again_with_all_of_it(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = started(root, "seed=1")
    other.set_state("interrupted", "SIGTERM")
    assert Mirror.start(other).finish("interrupted", "SIGTERM")
    run = started(root)
    follower = Mirror.start(run)
    sent(follower, 1)
    fresh = root / "fresh.db"
    shutil.copy(root / "mlflow.db", fresh)
    with contextlib.closing(sqlite3.connect(fresh)) as database:
        for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
            database.execute(f"DELETE FROM {table}")
        database.commit()
    fresh.rename(root / "mlflow.db")  # as if it was deleted and made by somebody else; making one takes seconds
    shutil.rmtree(root / "mlflow-artifacts", ignore_errors=True)
    run.append_metrics(2, {"loss": 0.5})
    sent(follower, 2)
    assert follower.finish("finished")
    assert rows(root) == {run.label: ("FINISHED", [1, 2], OWN)}
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert f"was deleted or replaced; {run.label} is sent there anew" in said[0]
    sync(root)
    assert rows(root)[other.label] == ("KILLED", [1], OWN)


@pytest.mark.parametrize("damage", ["overwritten", "cut", "half made"])
def test_a_damaged_store_is_set_aside_and_made_again_by_sync(
    root: Path, damage: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, store_root: Path
) -> None:
    file = root / "mlflow.db"
    whole = file.read_bytes()
    if damage == "overwritten":
        file.write_bytes(b"not a database at all" * 1000)
    elif damage == "cut":
        file.write_bytes(whole[: len(whole) // 3])
    else:
        with contextlib.closing(sqlite3.connect(file)) as database:
            database.execute("DROP TABLE alembic_version")
    run = started(root)
    follower = Mirror.start(run)
    began = time.monotonic()
    wait_for(lambda: follower._failing)
    assert not follower.finish("finished")
    assert time.monotonic() - began < 30
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "training goes on" in line

    real, said = store._open, []

    def quick(root: Path, uri: str) -> Any:  # the new database, without the seconds that its making takes
        assert not file.exists()
        shutil.copy(store_root / "mlflow.db", file)
        return real(root, uri)

    monkeypatch.setattr(store, "_open", quick)
    run.set_state("finished")
    assert sync(root, said.append).skipped == {}
    assert "set aside as mlflow.db.damaged-" in said[0]
    assert rows(root)[run.label][:2] == ("KILLED", [1])  # it never wrote a result
    assert [p.stat().st_size > 0 for p in root.glob("mlflow.db.damaged-*")] == [True]


def test_a_store_that_cannot_be_written_is_said_in_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store.connect(root)  # the experiment is made while it still can be
    monkeypatch.setattr(store, "_stores", {})
    monkeypatch.chdir(root)  # MLflow takes "file:" for a folder and makes it
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///file:{root}/mlflow.db?mode=ro&uri=true")
    run = started(root)
    follower = Mirror.start(run)
    wait_for(lambda: follower._failing)
    assert not follower.finish("finished")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "attempt to write a readonly database; training goes on" in said[0]
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    catch_up(root, [run])
    run.set_state("failed", "said so")
    catch_up(root, [run])
    assert rows(root)[run.label][:2] == ("FAILED", [1])


def test_what_a_store_has_lost_comes_back_by_sync_and_nothing_twice(root: Path) -> None:
    run = started(root)
    for step in (2, 3, 4):
        run.append_metrics(step, {"loss": 1 / step, "norm": 1.0 * step})
    run.write_evaluation("new-knowledge", scores({"recall/accuracy@1x": 0.75}))
    run.write_result({"train_loss": 0.25})
    run.set_state("finished")
    figure = run.path.parent / "figure.png"
    figure.write_bytes(b"png")
    follower = Mirror.start(run)
    follower.artifacts([figure])
    assert follower.finish("finished")
    before = rows(root)
    assert before[run.label][2] == sorted([*OWN, "eval/new-knowledge.json", "figure.png", "result.json"])
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database:
        database.execute("DELETE FROM metrics WHERE step IN (2, 3)")
        database.commit()
    for lost in ("figure.png", "eval/new-knowledge.json", "config.yaml"):
        (found,) = (
            (root / "mlflow-artifacts").rglob(lost) if "/" not in lost else root.glob(f"mlflow-artifacts/*/*/{lost}")
        )
        found.unlink()
    sync(root)
    assert rows(root) == before


def test_a_run_that_the_store_refuses_does_not_keep_the_others_from_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = started(root, "seed=1"), started(root, "seed=2")
    good.set_state("failed", "x")
    bad.set_state("failed", "x")
    opened = store.connect(root)
    real = type(opened.client).create_run

    def create_run(self: Any, experiment: str, start: Any, tags: Any, name: str) -> Any:
        if name == bad.label:
            raise ValueError("a value it does not take")
        return real(self, experiment, start, tags, name)

    monkeypatch.setattr(type(opened.client), "create_run", create_run)
    done = sync(root)
    assert done.runs == [good.label]
    assert "a value it does not take" in done.skipped[bad.label]


def test_a_run_made_twice_by_a_late_answer_is_one_run_again(root: Path) -> None:
    run = started(root)
    opened = store.connect(root)
    uid = run.provenance()["id"]
    for _ in range(2):
        opened.client.create_run(opened.experiment, tags={"mmctl.run": uid}, run_name=run.label)
    run.set_state("failed", "x")
    assert Mirror.start(run).finish("failed", "x")
    assert len(opened.client.search_runs([opened.experiment])) == 1
    assert rows(root)[run.label][:2] == ("FAILED", [1])


def test_a_reason_of_an_earlier_attempt_does_not_stay(root: Path) -> None:
    run = started(root)
    run.set_state("interrupted", "SIGTERM")
    assert Mirror.start(run).finish("interrupted", "SIGTERM")
    run.set_state("running")
    run.write_result({"train_loss": 1.0})
    run.set_state("finished")
    assert Mirror.start(run).finish("finished")
    opened = store.connect(root)
    (there,) = opened.client.search_runs([opened.experiment])
    assert there.data.tags["mmctl.state"] == "finished"
    assert "mmctl.reason" not in there.data.tags


def test_a_sweep_that_was_killed_is_not_running_after_sync(root: Path) -> None:
    parent = parent_run(root, "sweep")
    opened = store.connect(root)
    assert opened.client.get_run(parent.run_id).info.status == "RUNNING"
    parent._update(lambda record: record["owner"].update(pid=2**22 + 1))
    sync(root)
    assert opened.client.get_run(parent.run_id).info.status == "KILLED"
    assert [p.name for p in parents(root)] == ["sweep"]


def test_system_metrics_are_optional_rows_of_the_folder_and_come_back_by_sync(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmctl.config import identity

    assert identity(small("operation.system_metrics=true")) == identity(small())
    monkeypatch.setattr(system, "SAMPLE_EVERY", 0.05)
    run = started(root)
    follower = Mirror.start(run, system_metrics=True)
    wait_for(lambda: (run.path / system.FILE).exists() and (run.path / system.FILE).read_bytes().count(b"\n") >= 3)
    run.set_state("failed", "x")
    assert follower.finish("failed", "x")
    written = [line for line in (run.path / system.FILE).read_text().splitlines() if line]

    def steps() -> list[int]:
        opened = store.connect(root)
        (there,) = opened.client.search_runs([opened.experiment])
        key = "system/process_memory_usage_megabytes"
        points = opened.client.get_metric_history(there.info.run_id, key)
        assert all(10 < p.value < 1e6 for p in points)
        return [p.step for p in points]

    assert steps() == list(range(len(written)))
    follower = Mirror.start(run)  # a later attempt without them
    assert follower.finish("failed", "x")
    assert steps() == list(range(len(written)))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "faults again")
    monkeypatch.setattr(store, "_stores", {})
    sync(root)
    assert steps() == list(range(len(written)))


def test_copying_takes_at_most_a_hundredth_of_the_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    clock = iter([0.0, 10.0, 10.5, 11.0, 11.001])
    monkeypatch.setattr(mirror, "FLUSH_EVERY", 5.0)
    monkeypatch.setattr(mirror.time, "thread_time", lambda: next(clock))
    follower = Mirror(started(root))

    def copy(ending: Any) -> None:
        follower._upload = follower  # type: ignore[assignment]

    def wait(pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 3:
            follower._complete = True

    monkeypatch.setattr(follower, "_copy", copy)
    monkeypatch.setattr(follower._wake, "wait", wait)
    follower._follow()
    assert pauses == [5.0, pytest.approx(50.0), 5.0]  # the first one opens the store; 0.5 s; 1 ms


def test_a_long_backlog_is_sent_a_request_at_a_time_and_the_rest_at_the_end(root: Path) -> None:
    run = started(root)
    for step in range(2, 41):
        run.append_metrics(step, {"loss": 1 / step, **{f"value{k}": float(k) for k in range(99)}})
    upload = Upload(store.connect(root), run)
    upload.attach()
    seen = []
    while upload.last_step < 40:
        upload.metrics(one_batch=True)
        seen.append(upload.last_step)
    assert seen == [9, 18, 27, 36, 40]  # 900 numbers each: 1 + 8 * 100, then 9 * 100
    assert rows(root)[run.label][1] == list(range(1, 41))


def test_a_signal_during_the_last_copy_is_raised_once_the_store_knows_the_end(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = started(root)
    run.set_state("failed", "x")
    follower = Mirror.start(run)
    real, calls = follower._thread.join, []

    def join(timeout: float | None = None) -> None:
        calls.append(timeout)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(60)

    monkeypatch.setattr(follower._thread, "join", join)
    with pytest.raises(KeyboardInterrupt):
        follower.finish("failed", "x")
    assert calls[1] is not None
    assert calls[1] <= mirror.LAST_SECONDS
    assert rows(root)[run.label][0] == "FAILED"
    assert capsys.readouterr().err == ""


def test_lines_on_stderr_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("run \x1b[2J\x1b]0;title\x07 \u202e gone\nnext")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.strip().isprintable()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_runs_that_cannot_be_written_is_one_line(root: Path) -> None:
    root.chmod(0o500)
    try:
        with pytest.raises(MmctlError):
            parent_run(root, "sweep")
    finally:
        root.chmod(0o700)


def test_a_store_that_is_only_locked_counts_as_whole(root: Path) -> None:
    with contextlib.closing(sqlite3.connect(root / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        probe.check(f"sqlite:///{root}/mlflow.db")
    assert probe.damage(root / "mlflow.db") is None
    assert probe.damage(root / "none.db") is None
