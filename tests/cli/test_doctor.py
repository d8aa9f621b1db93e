"""`mmctl doctor`: each check found right and wrong, one line of JSON for a program, exit 1 on a failure."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import namedtuple
from pathlib import Path

import pytest
from inprocess import mmctl
from small_run import SMALL

from mmctl.doctor import machine
from mmctl.errors import MmctlError
from mmctl.runs import RunFolder

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes seconds and is tested with the kernels; what is made of its outcome is tested here."""
    monkeypatch.setattr(machine, "COMPILE", "print('noise')\nprint('compiles')")


def checks(root: Path) -> dict[str, machine.Line]:
    return {line.check: line for line in machine.examine(root)}


def test_a_sound_machine_is_ok_and_nothing_is_left_behind(tmp_path: Path) -> None:
    done = mmctl("doctor", "--runs", tmp_path / "r", "--json")
    found = json.loads(done.out)
    states = {line["check"]: line["state"] for line in found["checks"]}
    assert set(states) == {
        "versions", "device", "triton", "kernels", "threads", "memory", "runs folder", "disk", "clock", "tracking store",
        "signals", "plugins",
    }  # fmt: skip
    assert [c for c in states if c not in ("threads", "memory", "disk", "signals") and states[c] != "ok"] == []
    assert (done.code, found["ok"], found["would_run"]) == (0, True, None)
    assert list(tmp_path.iterdir()) == []
    versions = next(line for line in found["checks"] if line["check"] == "versions")["values"]
    import torch

    assert versions["torch"] == torch.__version__
    text = mmctl("doctor", "--runs", tmp_path / "r").out
    assert f"{tmp_path / 'r'} is writable (to be made)" in text
    assert "sqlite:///" in text


def test_what_would_run_is_what_runs(tmp_path: Path) -> None:
    from mmctl.config import identity, load
    from mmctl.models import build

    words = [word for word in SMALL if not word.startswith("training.warmup")]
    done = mmctl("doctor", "smoke", *words, "--runs", tmp_path, "--json")
    found = json.loads(done.out)["would_run"]
    config = load("smoke", words)
    assert found["identity"] == identity(config)
    assert found["parameters"] == build(config).parameter_count()
    assert (found["device"], found["precision"], found["run"]) == ("cpu", "float32", None)
    assert set(found["kernels"]) == {"key_scan", "memory_attention", "value_extract"}
    run = RunFolder.create(tmp_path, config)
    assert f"{run.path} is planned" in mmctl("doctor", "smoke", *words, "--runs", tmp_path).out
    assert "torch's own operations" in mmctl("doctor", "smoke", "model.name=transformer", "--runs", tmp_path).out


def test_what_does_not_fit_fails_with_the_setting_that_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmctl.config import load
    from mmctl.runs.memory import estimate

    need = estimate(load("smoke"))
    monkeypatch.setattr("mmctl.runs.memory.available", lambda: need.total - 1)
    done = mmctl("doctor", "smoke", "--runs", tmp_path, "--json")
    lines = {line["check"]: line for line in json.loads(done.out)["would_run"]["checks"]}
    assert (done.code, lines["memory"]["state"]) == (1, "fail")
    assert "would fit" in lines["memory"]["todo"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 2**40, 2**20))
    done = mmctl("doctor", "smoke", "--runs", tmp_path, "--json")
    assert {line["check"]: line["state"] for line in json.loads(done.out)["would_run"]["checks"]}["disk"] == "fail"
    assert checks(tmp_path)["disk"].state == "warn"


def test_wrong_words_are_one_line(tmp_path: Path) -> None:
    done = mmctl("doctor", "smok")
    assert (done.code, done.out, done.err) == (2, "", 'mmctl: preset "smok": no such preset; did you mean "smoke"?\n')
    assert 'did you mean "training.steps"' in mmctl("doctor", "smoke", "training.step=3").err


def test_a_compiler_that_fails_is_a_warning_on_a_cpu_and_its_last_line_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "COMPILE", "raise OSError('no compiler\\nfound')")
    line = machine._triton(tmp_path)
    assert (line.state, line.found) == ("warn", "does not compile: found")
    assert "gcc" in line.todo
    monkeypatch.setattr(machine, "COMPILE", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert machine._triton(tmp_path).found == "does not compile: exit code -9"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert machine._triton(tmp_path).state == "fail"


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    done = mmctl("doctor", "--runs", file, "--json")
    found = {line["check"]: line for line in json.loads(done.out)["checks"]}["runs folder"]
    assert (done.code, found["state"], found["found"]) == (1, "fail", f"{file} is a file")
    monkeypatch.setattr("mmctl.runs.files.write_text", lambda *a, **k: (_ for _ in ()).throw(MmctlError("read-only")))
    line = checks(tmp_path / "r")["runs folder"]
    assert (line.state, line.found) == ("fail", "read-only")


def test_stores_that_do_not_answer_are_warnings_without_their_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:9")
    line = checks(tmp_path)["tracking store"]
    assert line.state == "warn"
    assert "hunter2" not in line.found
    assert "runs go on without it" in line.todo
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    assert "file store is closed" in checks(tmp_path)["tracking store"].found
    (tmp_path / "bad.db").write_bytes(b"no database" * 200)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/bad.db")
    assert checks(tmp_path)["tracking store"].state == "warn"


def test_signals_clock_threads_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        line = machine._signals(tmp_path)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert line.state == "warn"
    assert "SIGTERM" in line.found
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert "3600 s apart" in machine._clock(tmp_path).found
    monkeypatch.setattr(time, "time", lambda: 86400.0)
    assert machine._clock(tmp_path).state == "warn"
    monkeypatch.undo()
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert "OMP_NUM_THREADS=many is no number" in machine._threads(tmp_path).found
    monkeypatch.setattr(os, "getloadavg", lambda: (1e6, 0, 0))
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert machine._threads(tmp_path).state == "warn"
    monkeypatch.setattr(machine, "PACKAGES", ("torch", "a-package-of-no-name"))
    assert (machine._versions(tmp_path).state, machine._versions(tmp_path).todo) == ("fail", "pip install mmctl")


def test_a_check_that_breaks_is_a_failure_and_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(root: Path) -> machine.Line:
        raise RuntimeError("all wrong\nwith more lines")

    monkeypatch.setattr(machine, "_device", broken)
    found = checks(tmp_path)
    assert (found["device"].state, found["device"].found) == ("fail", "RuntimeError: all wrong")
    assert found["plugins"].state == "ok"


def test_devices_are_named_and_a_driver_that_torch_does_not_see_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a device here, what torch would say is put in its mouth."""
    import torch

    About = namedtuple("About", "name total_memory major minor")
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: True)
        patched.setattr(torch.cuda, "device_count", lambda: 2)
        patched.setattr(torch.cuda, "get_device_properties", lambda n: About(f"GPU {n}", 8 * 2**30, 9, 0))
        line = machine._device(tmp_path)
    assert (line.state, line.found) == ("ok", "cuda:0 GPU 0 (8.0 GiB), cuda:1 GPU 1 (8.0 GiB)")
    assert line.values["devices"][1]["capability"] == [9, 0]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = machine._device(tmp_path)
    assert (line.state, line.found) == ("warn", "CPU only, although torch is built for CUDA 13.0")
