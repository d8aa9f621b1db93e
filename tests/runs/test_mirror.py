"""The tracking store shows what the run folders hold, once, and its trouble is never the run's trouble."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_run import scores, small, wait_for

from mmctl.runs import Mirror, RunFolder, mirror, store
from mmctl.runs.mirror import sync
from mmctl.runs.parents import parent_run


@pytest.fixture
def root(store_root: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A root of this test's own runs whose store is the session's, in an experiment of this test's own."""
    own = store_root / request.node.name
    own.mkdir(parents=True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store_root}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    monkeypatch.setattr(store, "_stores", {})
    return own


def finished(root: Path, *overrides: str, steps: int = 30, loss: float = 0.5) -> RunFolder:
    run = RunFolder.create(root, small(*overrides))
    with run.lock():
        run.set_state("running")
        for step in range(1, steps + 1):
            run.append_metrics(step, {"loss": loss / step, "tokens": 64 * step})
        run.write_evaluation("new-knowledge", scores({"recall/accuracy@1x": 0.75}))
        run.write_result({"train_loss": loss, "parameters": 1234, "diagnostics": {"a": 1.0}})
        run.set_state("finished")
    return run


def everything(root: Path) -> dict[str, dict[str, Any]]:
    """All runs of the root's experiment by name: status, params, tags, and every metric with its whole history."""
    opened = store.connect(root)
    return {
        run.info.run_name: {
            "id": run.info.run_id,
            "status": run.info.status,
            "started": run.info.start_time,
            "ended": run.info.end_time,
            "params": run.data.params,
            "tags": {k: v for k, v in run.data.tags.items() if not k.startswith("mlflow.user")},
            "artifacts": files_of(opened.client, run.info.run_id),
            "metrics": {
                key: [(m.step, m.value, m.timestamp) for m in opened.client.get_metric_history(run.info.run_id, key)]
                for key in run.data.metrics
            },
        }
        for run in opened.client.search_runs([opened.experiment])
    }


def files_of(client: Any, run_id: str, place: str | None = None) -> list[str]:
    found: list[str] = []
    for entry in client.list_artifacts(run_id, place):
        found += files_of(client, run_id, entry.path) if entry.is_dir else [entry.path]
    return sorted(found)


def test_a_run_is_mirrored_with_its_numbers_files_and_parent(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)  # with the fluent interface this would make the child be that run
    parent = parent_run(root, "bandwidth", {"mmctl.kind": "ablation"})
    run = finished(root)
    assert Mirror.start(run, parent_run_id=parent.run_id, tags={"arm": "adaptive"}).finish("finished")
    parent.metrics({"effect": 0.25, "unknown": math.nan})
    figure = root / "figure.png"
    figure.write_bytes(b"png")
    parent.artifacts([figure], "figures")
    parent.finish()

    found = everything(root)
    row = found[run.label]
    assert row["status"] == "FINISHED"
    assert [(step, value) for step, value, _ in row["metrics"]["loss"]] == [(s, 0.5 / s) for s in range(1, 31)]
    assert row["metrics"]["new-knowledge/recall/accuracy_at_1x"][0][:2] == (30, 0.75)
    assert row["metrics"]["result/parameters"][0][1] == 1234
    assert row["params"]["model.bandwidth"] == "adaptive"
    assert row["params"]["identity"] == run.identity
    assert row["params"]["training.steps"] == "20"
    assert len(row["params"]) < 40
    assert row["tags"]["mlflow.parentRunId"] == parent.run_id == found["bandwidth"]["id"]
    assert row["tags"]["arm"] == "adaptive"
    assert row["artifacts"] == [
        "config.yaml",
        "eval/new-knowledge.json",
        "overrides.txt",
        "provenance.json",
        "result.json",
    ]
    assert found["bandwidth"]["status"] == "FINISHED"
    assert found["bandwidth"]["artifacts"] == ["figures/figure.png"]
    assert [v for _, v, _ in found["bandwidth"]["metrics"]["effect"]] == [0.25]
    assert "unknown" not in found["bandwidth"]["metrics"]
    assert "MLFLOW_RUN_ID" not in os.environ


def test_a_resumed_run_continues_in_its_row_and_logs_no_step_twice(root: Path) -> None:
    run = RunFolder.create(root, small())
    run.set_state("running")
    for step in range(1, 21):
        run.append_metrics(step, {"loss": 1 / step})
    run.set_state("interrupted", "SIGTERM")
    assert Mirror.start(run).finish("interrupted", "SIGTERM")
    first = everything(root)[run.label]
    assert (first["status"], first["tags"]["mmctl.reason"]) == ("KILLED", "SIGTERM")

    time.sleep(0.01)
    run.truncate_metrics(10)  # the checkpoint was of step 10: rows 11 to 20 are written again, at a later time
    run.set_state("running")
    follower = Mirror.start(run)
    for step in range(11, 31):
        run.append_metrics(step, {"loss": 1 / step})
    assert follower.finish("finished")
    second = everything(root)
    assert list(second) == [run.label]
    assert second[run.label]["id"] == first["id"]
    assert second[run.label]["status"] == "FINISHED"
    assert [step for step, _, _ in second[run.label]["metrics"]["loss"]] == list(range(1, 31))
    assert second[run.label]["tags"]["mmctl.attempt"] == "2"


def test_a_writer_killed_between_metrics_and_its_note_logs_no_step_twice(root: Path) -> None:
    run = finished(root)
    assert Mirror.start(run).finish("finished")
    opened = store.connect(root)
    run_id = everything(root)[run.label]["id"]
    opened.client.set_tag(run_id, "mmctl.last_step", "12")
    rows = run.metrics()
    run.truncate_metrics(12)
    for row in rows[12:]:
        run.append_metrics(row["step"], {"loss": row["loss"]})
    assert Mirror.start(run).finish("finished")
    assert [step for step, _, _ in everything(root)[run.label]["metrics"]["loss"]] == list(range(1, 31))


def test_divergence_is_a_tag_and_no_nan_or_infinity_is_sent(root: Path) -> None:
    run = RunFolder.create(root, small())
    run.set_state("running")
    run.append_metrics(1, {"loss": 1.0, "gradient_norm": math.inf})
    run.append_metrics(2, {"loss": math.nan, "gradient_norm": -math.inf})
    run.append_metrics(3, {"loss": math.inf, "gradient_norm": 2.0})
    assert Mirror.start(run).finish("diverged", "the loss is not finite at step 2")
    row = everything(root)[run.label]
    assert row["status"] == "FAILED"
    assert row["tags"]["diverged_at_step"] == "2"
    assert row["tags"]["mmctl.state"] == "diverged"
    assert {k: [v[:2] for v in values] for k, values in row["metrics"].items()} == {
        "loss": [(1, 1.0)],
        "gradient_norm": [(3, 2.0)],
    }


def test_rows_are_copied_while_the_run_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "FLUSH_EVERY", 0.02)
    store.connect(root)
    run = RunFolder.create(root, small())
    run.set_state("running")
    follower = Mirror.start(run)

    def copied(count: int) -> bool:
        return len(everything(root).get(run.label, {"metrics": {}})["metrics"].get("loss", [])) == count

    for step in range(1, 4):
        run.append_metrics(step, {"loss": 1.0 * step})
        wait_for(partial(copied, step))
        assert everything(root)[run.label]["status"] == "RUNNING"
    assert follower.finish("finished")


def test_sync_makes_the_same_store_again_and_twice_changes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = parent_run(root, "bandwidth")
    first, second = finished(root), finished(root, "seed=1", loss=0.25)
    Mirror.start(first, parent_run_id=parent.run_id, tags={"arm": "adaptive"}).finish("finished")
    Mirror.start(second, parent_run_id=parent.run_id).finish("finished")
    lost = RunFolder.create(root, small("seed=2"))
    lost.set_state("running", pid=2**22 + 1)
    RunFolder.create(root, small("seed=3"))  # planned: nothing to show
    parent.metrics({"effect": 0.5})
    parent.finish()
    done = sync(root)
    assert sorted(done.runs) == [first.label, second.label, lost.label]
    assert done.parents == ["bandwidth"]
    assert list(done.skipped.values()) == ["not started yet"]
    before = everything(root)
    assert before[lost.label]["status"] == "KILLED"
    sync(root)
    assert everything(root) == before

    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "rebuilt")
    monkeypatch.setattr(store, "_stores", {})
    sync(root)
    again = everything(root)
    ids = {row["id"] for row in before.values()}
    assert not ids & {row["id"] for row in again.values()}
    assert again[first.label]["tags"]["mlflow.parentRunId"] == again["bandwidth"]["id"]
    assert comparable(again) == comparable(before)


def comparable(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Without what names this one store: ids."""
    return {
        name: {k: v for k, v in row.items() if k not in ("id", "tags")}
        | {"tags": {k: v for k, v in row["tags"].items() if k != "mlflow.parentRunId"}}
        for name, row in rows.items()
    }


def test_sync_leaves_a_run_that_is_being_written_to_its_writer(root: Path) -> None:
    run = finished(root)
    other = RunFolder.open(run.path)
    with run.lock():
        done = sync(root)
    assert done.runs == []
    assert f"{other.label} is in use by pid {os.getpid()}" in done.skipped[other.label]


def test_a_store_that_is_down_is_said_once_and_nothing_else_happens(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@127.0.0.1:9")
    monkeypatch.setattr(mirror, "FLUSH_EVERY", 0.05)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    parent = parent_run(run.path.parents[1], "bandwidth")
    assert parent.run_id.startswith("pending-")
    follower = Mirror.start(run, parent_run_id=parent.run_id)
    run.append_metrics(1, {"loss": 1.0})
    wait_for(lambda: follower._failing)
    time.sleep(0.2)
    started = time.monotonic()
    assert not follower.finish("finished")
    assert time.monotonic() - started < 10
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2  # one line of the parent, one of the run
    assert all("Connection refused" in line and '"mmctl runs sync"' in line for line in said)
    assert "s3cret" not in "".join(said)
    assert "s3cret" not in "".join(p.read_text() for p in run.path.parents[1].rglob("*.json"))
    with pytest.raises(store.StoreError, match="Connection refused"):
        sync(run.path.parents[1])


def test_a_store_that_hangs_does_not_hold_up_a_run(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        started = time.monotonic()
        follower = Mirror.start(run)
        assert time.monotonic() - started < 0.5
        assert not follower.finish("finished", timeout=0.3)
        assert time.monotonic() - started < 2
        follower._thread.join(30)  # it gives up by itself: nothing may go on in the tests that follow
        assert not follower._thread.is_alive()
    assert "not done after 0.3 s" in capsys.readouterr().err


def test_a_store_that_comes_back_gets_everything(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mirror, "FLUSH_EVERY", 0.02)
    opened = store.connect(root)
    down = threading.Event()
    real = type(opened.client).log_batch

    def log_batch(self: Any, *arguments: Any, **more: Any) -> Any:
        if down.is_set():
            raise OSError("database is locked")
        return real(self, *arguments, **more)

    monkeypatch.setattr(type(opened.client), "log_batch", log_batch)
    run = RunFolder.create(root, small())
    run.set_state("running")
    run.append_metrics(1, {"loss": 1.0})
    follower = Mirror.start(run)
    wait_for(lambda: "loss" in everything(root).get(run.label, {"metrics": {}})["metrics"])
    down.set()
    run.append_metrics(2, {"loss": 2.0})
    wait_for(lambda: follower._failing)
    time.sleep(0.2)  # several attempts, one line
    down.clear()
    run.append_metrics(3, {"loss": 3.0})
    assert follower.finish("finished")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2, said
    assert "database is locked; training goes on" in said[0]
    assert "back again" in said[1]
    assert [v[:2] for v in everything(root)[run.label]["metrics"]["loss"]] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_parent_made_while_the_store_was_down_gets_its_children_later(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = os.environ["MLFLOW_TRACKING_URI"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    parent = parent_run(root, "bandwidth")
    run = finished(root)
    Mirror.start(run, parent_run_id=parent.run_id).finish("finished")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", real)
    sync(root)
    found = everything(root)
    assert found[run.label]["tags"]["mlflow.parentRunId"] == found["bandwidth"]["id"]
    capsys.readouterr()


@pytest.mark.parametrize("uri", ["./mlruns", "file:///tmp/mlruns", "/tmp/mlruns"])
def test_mlflows_file_store_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(store.StoreError, match="file store is closed; use sqlite"):
        store.connect(tmp_path)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_key_becomes_one_that_mlflow_takes(key: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(store.clean_key(key))


def test_scores_keep_readable_and_different_names() -> None:
    names = [
        "recall/accuracy@1x",
        "recall/accuracy@8x",
        "in-context+m=16/icl/accuracy@1x",
        "in-context/icl/accuracy@1x",
    ]
    cleaned = [store.clean_key(name) for name in names]
    assert cleaned[0] == "recall/accuracy_at_1x"
    assert len(set(cleaned)) == len(names)


START = """
import sys
from pathlib import Path
import mlflow  # before the start, so that the three meet at the database
from small_run import small
from mmctl.runs import Mirror, RunFolder
root, seed = Path(sys.argv[1]), sys.argv[2]
run = RunFolder.create(root, small(f"seed={seed}"))
print("ready", flush=True)
sys.stdin.readline()
with run.lock():
    run.set_state("running")
    follower = Mirror.start(run)
    for step in range(1, 21):
        run.append_metrics(step, {"loss": 1.0 / step})
    run.write_result({"train_loss": 0.1})
    run.set_state("finished")
    print(follower.finish("finished", timeout=110), flush=True)
"""


def test_processes_that_start_at_once_on_a_fresh_folder_all_succeed(tmp_path: Path) -> None:
    root, count = tmp_path / "runs", 3
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    for seed in range(count):  # own temporary folders, as jobs of a cluster have: MLflow's own lock lies in there
        (tmp_path / f"tmp{seed}").mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", START, str(root), str(seed)],
            cwd=tmp_path,
            env={**environment, "TMPDIR": str(tmp_path / f"tmp{seed}")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ends = [process.communicate(timeout=120) for process in processes]
    assert [out for out, _ in ends] == ["True\n"] * count, [err for _, err in ends]
    assert [err for _, err in ends] == [""] * count  # and nobody prints MLflow's or alembic's noise
    found = everything(root)
    assert len(found) == count
    assert all(row["status"] == "FINISHED" and len(row["metrics"]["loss"]) == 20 for row in found.values())
    assert (root / "mlflow.db").is_file()
    assert not list(tmp_path.rglob("mlruns"))
    assert all((root / "mlflow-artifacts" / row["id"]).is_dir() for row in found.values())
