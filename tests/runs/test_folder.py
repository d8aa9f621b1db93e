"""The run folder: made whole, found whatever its name, its state told from what is really there."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_run import small

from mmctl.config import Config, to_dict
from mmctl.errors import MmctlError, UsageError
from mmctl.runs import RunFolder, names, preflight, provenance, runs_root, status
from mmctl.runs.lock import SILENT_AFTER, Locked
from mmctl.runs.process import Owner


def payload(value: float) -> dict:
    return {"tensors": {"model": {"w": torch.full((4,), value)}, "optimizer": {}}, "state": {"step": int(value)}}


def test_a_new_run_holds_what_is_needed_to_repeat_it(run: RunFolder, config: Config) -> None:
    assert run.state() == "planned"
    assert to_dict(run.config()) == to_dict(config)
    assert (run.path / "overrides.txt").read_text() == "training.steps=20\n"
    found = run.provenance()
    assert found["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert {"id", "command", "git", "machine"} <= found.keys()
    run.add_provenance(kernel_path="native")
    assert run.provenance()["kernel_path"] == "native"
    assert run.provenance()["id"] == found["id"]


def test_a_run_is_found_by_what_it_is_and_not_by_its_name(run: RunFolder) -> None:
    root = run.path.parents[1]
    for same in (
        small("name=other"),
        small("operation.log_every=1", "operation.device=cpu"),
        small("evaluation.examples=7"),
    ):
        found = RunFolder.locate(root, same)
        assert found is not None
        assert found.path == run.path
    assert RunFolder.locate(root, small("seed=1")) is None
    assert RunFolder.locate(root, small("training.learning_rate=0.1")) is None
    assert RunFolder.locate(root / "nowhere", small()) is None


def test_the_same_run_is_not_made_twice_even_under_another_name(run: RunFolder) -> None:
    for name in (run.name, "another"):
        with pytest.raises(MmctlError, match=f"run {run.label} exists already"):
            RunFolder.create(run.path.parents[1], small(f"name={name}"))
    assert len(list(RunFolder.all(run.path.parents[1]))) == 1
    assert not list(run.path.parents[1].rglob("*.tmp"))


CREATE = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from small_run import small
from mmctl.config import identity
from mmctl.errors import MmctlError
from mmctl.runs import RunFolder
config = small(f"name=n{sys.argv[3]}")
rename = os.rename
os.rename = lambda *paths: (time.sleep(1), rename(*paths))  # wide open: between looking and taking the place
identity(config)
print("ready", flush=True)
sys.stdin.readline()
try:
    RunFolder.create(Path(sys.argv[1]), config)
    print("made")
except MmctlError as error:
    print("refused")
"""


def test_of_processes_that_make_the_same_run_at_once_exactly_one_succeeds(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", CREATE, str(tmp_path), here]
    started = [
        subprocess.Popen([*command, str(k)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for k in range(3)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0].strip() for process in started]
    assert sorted(said) == ["made", "refused", "refused"]
    assert len(list(RunFolder.all(tmp_path))) == 1


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=120))
def test_no_name_leaves_the_root(name: str) -> None:
    root = Path("/root of runs")
    path = names.folder_of(root, name, "0123abcd", 3)
    assert path.parents[1] == root
    assert os.path.normpath(path) == str(path)
    assert not path.parent.name.startswith((".", "-"))
    assert len(path.parent.name) <= names.LONGEST + 9
    place = names.Place.of(path)
    assert place is not None
    assert (place.name, place.identity, place.seed) == (names.safe_name(name), "0123abcd", 3)
    assert names.safe_name(place.name) == place.name


@pytest.mark.parametrize("name", ["../../etc", "/etc/passwd", "..", "a/b", ".hidden", "", "-rf", "a\nb", "ü" * 300])
def test_a_hostile_name_makes_a_run_inside_the_root(tmp_path: Path, name: str) -> None:
    config = small()
    config.name = name
    run = RunFolder.create(tmp_path / "runs", config)
    assert run.path.resolve().parents[1] == (tmp_path / "runs").resolve()
    assert RunFolder.locate(tmp_path / "runs", config) is not None
    assert run.config().seed == 0


def test_runs_are_found_by_what_a_person_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    first, second = (RunFolder.create(root, small(f"seed={k}", "name=adaptive")) for k in range(2))
    other = RunFolder.create(root, small("name=constant", "model.bandwidth=constant"))
    monkeypatch.chdir(tmp_path)
    for text in ("constant", other.identity, other.label, str(other.path), f"{other.path}/", "runs/" + other.label):
        assert RunFolder.find(root, text).path == other.path
    assert RunFolder.find(root, str(other.path.parent)).path == other.path
    for text in ("adaptive/seed1", f"{second.identity}/seed1", second.label):
        assert RunFolder.find(root, text).path == second.path
    with pytest.raises(UsageError, match=rf'"adaptive" is ambiguous: {first.label}, {second.label}; type one of them'):
        RunFolder.find(root, "adaptive")
    with pytest.raises(UsageError, match='did you mean "constant"'):
        RunFolder.find(root, "constnat")
    with pytest.raises(UsageError, match="has no seed7; there are: seed0, seed1"):
        RunFolder.find(root, "adaptive/seed7")
    with pytest.raises(UsageError, match="there are no runs in"):
        RunFolder.find(tmp_path / "nothing", "adaptive")
    for text in ("", "  ", ".."):
        with pytest.raises(UsageError):
            RunFolder.find(root, text)


def test_metrics_come_back_and_what_lies_beyond_a_step_is_cut(run: RunFolder) -> None:
    for step in range(1, 6):
        run.append_metrics(step, {"loss": math.nan if step == 2 else step / 3, "gradient_norm": math.inf})
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4, 5]
    assert math.isnan(run.metrics()[1]["loss"])
    assert run.metrics()[2]["loss"] == 1.0
    assert run.last_metrics()["loss"] == 5 / 3
    before = run.metrics()[:3]
    with open(run.path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 6, "lo')
    assert run.last_metrics()["step"] == 5
    run.truncate_metrics(3)
    assert str(run.metrics()) == str(before)
    run.append_metrics(4, {"loss": 9.0})
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4]
    run.truncate_metrics(0)
    assert run.metrics() == []


def test_finished_means_that_the_result_is_there_and_parses(run: RunFolder) -> None:
    run.set_state("running")
    with pytest.raises(MmctlError, match="is running: it has no result yet"):
        run.result()
    run.write_result({"train_loss": 0.5, "bad": math.nan})
    assert run.finished  # whatever status.json says: a kill may have come between the two
    assert run.state() == "finished"
    assert run.result() == {"train_loss": 0.5, "bad": "nan"}
    (run.path / "result.json").write_text('{"train_loss": 0.')
    assert not run.finished
    run.set_state("finished")
    assert run.state() == "lost"


WORK = """
import sys, time
from mmctl.runs import RunFolder
run = RunFolder.open(sys.argv[1])
with run.lock():
    run.set_state("running", device="cpu")
    run.append_metrics(1, {"loss": 1.0})
    print("running", flush=True)
    time.sleep(60)
"""


def test_running_becomes_lost_when_its_process_is_killed_and_is_taken_over(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    process = subprocess.Popen([sys.executable, "-c", WORK, str(run.path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    assert run.state() == "running"
    assert run.status["pid"] == process.pid
    with pytest.raises(Locked, match=f"{run.label} is in use by pid {process.pid} on"), run.lock():
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert run.state() == "lost"
    with run.lock():
        run.set_state("running")
        assert run.state() == "running"
        assert run.status["attempt"] == 2
        run.set_state("interrupted", "SIGINT")
    assert f"took over the lock of pid {process.pid}" in capsys.readouterr().err
    assert (run.state(), run.status["reason"]) == ("interrupted", "SIGINT")


def test_a_run_on_another_machine_is_lost_when_its_heart_has_stopped(run: RunFolder) -> None:
    run.set_state("running", **Owner("elsewhere", 1, 2.0, "x").record())
    assert run.state() == "running"
    run.set_state("running", **Owner("elsewhere", 1, 2.0, "x").record(), heartbeat=time.time() - SILENT_AFTER - 1)
    assert run.state() == "lost"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"state": "dancing"}', b'{"state": "running", "attempt": "x", "heartbeat": []}', b"\xff"],
)
def test_a_damaged_status_is_no_error(run: RunFolder, content: bytes) -> None:
    (run.path / "status.json").write_bytes(content)
    assert run.state() in ("planned", "lost")
    run.append_metrics(1, {"loss": 1.0})
    assert run.state() == "lost"
    run.heartbeat(3)
    run.set_state("running")
    assert run.state() == "running"


def test_a_state_there_is_not_is_refused(run: RunFolder) -> None:
    for state in ("lost", "done"):
        with pytest.raises(ValueError, match="expected one of planned, running"):
            run.set_state(state)
    assert run.status["state"] == "planned"
    assert set(status.WRITTEN) == set(status.STATES) - {"lost"}


def test_checkpoints_keep_what_the_configuration_says_and_name_the_run_when_damaged(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.latest_checkpoint() is None
    with pytest.raises(MmctlError, match="no checkpoint in"):
        run.load_checkpoint()
    for step in (1, 2, 3):
        run.save_checkpoint(step, payload(step))
    assert run.checkpoint_steps() == [2, 3]  # operation.keep is 2
    assert run.load_checkpoint()["step"] == 3
    (run.path / "checkpoints" / "step_3" / "model.safetensors").write_bytes(b"")
    assert run.latest_checkpoint() == 2
    assert run.load_checkpoint()["tensors"]["model"]["w"][0] == 2.0
    said = capsys.readouterr().err
    assert said.startswith(f"{run.label}: checkpoint ")
    assert "using step 2 instead" in said


def test_evaluations_and_the_log(run: RunFolder) -> None:
    assert run.evaluation("in-context") is None
    run.write_evaluation("in-context+m=16", {"scores": {}})
    assert run.evaluations() == {"in-context+m=16": {"scores": {}}}
    with pytest.raises(ValueError, match="no name for an evaluation"):
        run.write_evaluation("../escape", {})
    (run.path / "eval" / "in-context.json").write_text("{")
    with pytest.raises(MmctlError, match=r"in-context\.json: damaged"):
        run.evaluation("in-context")
    run.log("one")
    run.log("two \udcff\n")
    assert run.log_path.read_text().splitlines()[0] == "one"


def test_configuration_is_read_and_never_evaluated(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMCTL_TEST_SECRET", "s3cret")
    path = run.path / "config.yaml"
    path.write_text(path.read_text().replace("name: mosaic-v2\n", "name: ${oc.env:MMCTL_TEST_SECRET}\n", 1))
    assert "s3cret" not in json.dumps(run.config_dict())
    path.write_text("name: [")
    with pytest.raises(MmctlError, match=r"config\.yaml: damaged"):
        run.config()


def test_provenance_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMCTL_TEST_SECRET", "s3cret")
    arguments = [
        "mmctl",
        "--store",
        "https://me:s3cret@host/x",
        "--api-key=s3cret",
        "token: s3cret",
        "evaluation.batch_tokens=64",
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    found = provenance.collect()
    assert "s3cret" not in json.dumps(found["command"] + [found["machine"], found["versions"]])
    assert found["command"][-1] == "evaluation.batch_tokens=64"
    assert found["command"][2] == "https://***@host/x"


def test_preflight_says_what_is_short(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    preflight.check(run.path, parameters=1000, keep=2)
    with pytest.raises(
        MmctlError, match=r"needs .* TiB more for 3 checkpoints of .* \(2 kept, one being written\), .* are free"
    ):
        preflight.check(run.path, parameters=10**14, keep=2)
    with pytest.raises(MmctlError, match=r"cannot write in .*nowhere: No such file"):
        preflight.check(run.path / "nowhere", parameters=1, keep=1)
    assert not list(run.path.glob(".*.tmp"))
    size = run.save_checkpoint(1, {"tensors": {"model": {"w": torch.zeros(10_000)}}, "state": {}})
    assert preflight.used(size) < preflight.checkpoint_bytes(10_000)


def test_the_root_is_the_option_else_the_variable_else_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MMCTL_RUNS", raising=False)
    assert runs_root() == tmp_path / "runs"
    monkeypatch.setenv("MMCTL_RUNS", "elsewhere")
    assert runs_root() == tmp_path / "elsewhere"
    assert runs_root("/given") == Path("/given")
