"""The mirror on a real MLflow server with a real PostgreSQL: many writers at once, and every way a server can be
away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_run import scores, small, wait_for
from tracking_server import Gate, mlflow_server, postgresql

from mmctl.runs import Mirror, RunFolder, mirror, store
from mmctl.runs.mirror import catch_up, sync
from mmctl.runs.parents import parent_run

WRITERS = 6


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgresql() as address:
        yield address


@pytest.fixture(scope="module")
def server(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(database, tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    monkeypatch.setattr(store, "_stores", {})
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)  # what mmctl itself sets is what is tested


def everything(root: Path) -> dict[str, dict[str, Any]]:
    """What the store holds about each run, by name, without what names this one store."""
    opened = store.connect(root)
    found = opened.client.search_runs([opened.experiment])
    names = {run.info.run_id: run.info.run_name for run in found}
    return {
        run.info.run_name: {
            "status": run.info.status,
            "started": run.info.start_time,
            "ended": run.info.end_time,
            "params": run.data.params,
            "tags": {k: names.get(v, v) for k, v in run.data.tags.items() if k != "mlflow.user"},
            "files": store.files_there(opened, run.info.run_id),
            "metrics": {
                key: [(m.step, m.value, m.timestamp) for m in opened.client.get_metric_history(run.info.run_id, key)]
                for key in run.data.metrics
            },
        }
        for run in found
    }


WRITE = """
import os, sys
from pathlib import Path
import mlflow
import mlflow.store.tracking.rest_store  # everything is imported before the six part
from small_run import small
from mmctl.runs import Mirror, RunFolder
root, parent = Path(sys.argv[1]), sys.argv[2]
children = []
for seed in range(int(sys.argv[3])):
    if child := os.fork():
        children.append(child)
        continue
    run = RunFolder.create(root, small(f"seed={seed}"))
    with run.lock():
        run.set_state("running")
        follower = Mirror.start(run, parent)
        for step in range(1, 61):
            run.append_metrics(step, {f"value{k}": step + k / 20 for k in range(10)})
        run.write_result({"train_loss": 0.1})
        run.set_state("finished")
        os._exit(0 if follower.finish("finished") else 1)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_six_processes_write_at_once_and_each_number_arrives_once(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    parent = parent_run(root, "sweep")
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(root), parent.run_id, str(WRITERS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    parent.metrics({"effect": 0.5})
    parent.finish()
    found = everything(root)
    assert len(found) == WRITERS + 1
    for name in found.keys() - {"sweep"}:
        row = found[name]
        assert row["status"] == "FINISHED"
        assert row["tags"]["mlflow.parentRunId"] == "sweep"
        assert len(row["metrics"]) == 11
        for k in range(10):
            assert [m[:2] for m in row["metrics"][f"value{k}"]] == [(s, s + k / 20) for s in range(1, 61)]
        assert {"config.yaml", "provenance.json", "result.json"} <= row["files"].keys()


def test_the_database_itself_is_a_store_and_sync_makes_the_same_there(
    database: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    parent = parent_run(root, "sweep", {"mmctl.kind": "ablation"})
    run = RunFolder.create(root, small())
    with run.lock():
        run.set_state("running")
        follower = Mirror.start(run, parent.run_id, {"arm": "adaptive"})
        for step in range(1, 31):
            run.append_metrics(step, {"loss": 1 / step, "tokens": 64 * step})
        run.write_evaluation("new-knowledge", scores({"recall/accuracy@1x": 0.75}))
        run.write_result({"train_loss": 0.5})
        run.set_state("finished")
        assert follower.finish("finished")
    (root / "figure.png").write_bytes(b"png")
    parent.metrics({"effect": 0.25})
    parent.artifacts([root / "figure.png"], "figures")
    parent.finish()
    original = everything(root)
    assert original["sweep"]["files"] == {"figures/figure.png": 3}

    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "rebuilt")
    assert sync(root).skipped == {}
    again = everything(root)
    for name, row in original.items():
        assert {key: again[name][key] for key in row} == row
    assert again.keys() == original.keys()
    assert "s3cret-word" not in "".join(p.read_text() for p in root.rglob("*.json"))


def test_a_server_that_is_down_hangs_and_comes_back_gets_each_number_once(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate(int(server.rpartition(":")[2]))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", gate.address)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(mirror, "FLUSH_EVERY", 0.05)
    monkeypatch.setattr(mirror, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr("mmctl.runs.probe.ANSWER_WITHIN", 0.5)
    root = tmp_path / "runs"
    run = RunFolder.create(root, small())
    with run.lock():
        run.set_state("running")
        follower = Mirror.start(run)  # it is down when the run starts
        slowest = 0.0
        for step, mode in enumerate(("shut", "pass", "hang", "pass", "shut", "pass"), 1):
            gate.set(mode)
            began = time.monotonic()
            run.append_metrics(step, {"loss": float(step)})
            slowest = max(slowest, time.monotonic() - began)
            if mode == "pass":
                wait_for(lambda step=step: follower._upload is not None and follower._upload.last_step == step)
            else:
                wait_for(lambda: follower._failing)
        run.set_state("finished")
        assert follower.finish("finished")
    assert slowest < 0.5  # the run itself waits for nothing
    row = everything(root)[run.label]
    assert row["status"] == "FINISHED"
    assert [m[:2] for m in row["metrics"]["loss"]] == [(s, float(s)) for s in range(1, 7)]
    said = capsys.readouterr().err.splitlines()
    assert [("training goes on" in line, "back again" in line) for line in said] == [(True, False), (False, True)] * 3
    assert "Connection refused" in said[0]
    assert "timed out" in said[2]


def test_what_a_run_could_not_send_is_sent_when_the_sweep_ends(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate(int(server.rpartition(":")[2]))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", gate.address)
    root = tmp_path / "runs"
    run = RunFolder.create(root, small())
    with run.lock():
        run.set_state("running")
        run.append_metrics(1, {"loss": 1.0})
        run.write_result({"train_loss": 1.0})
        run.set_state("finished")
        assert not Mirror.start(run).finish("finished")
    with pytest.raises(store.StoreError, match="refused"):
        catch_up(root, [run])
    gate.set("pass")
    catch_up(root, [run])
    assert everything(root)[run.label]["status"] == "FINISHED"
    gate.set("shut")
    catch_up(root, [run])  # nothing is missing: the store is not even asked
    capsys.readouterr()
