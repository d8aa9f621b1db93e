"""How many runs go at once, on which devices, in how much memory; what cannot work is refused before it starts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mmctl.config import load
from mmctl.errors import MmctlError, OutOfMemory, UsageError
from mmctl.runs import memory
from mmctl.sweeps import preflight, resources

GIB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """(cores, free, whole, devices, device memory, torch sees CUDA): the machine that preflight believes to be on."""

    def pretend(
        cores: int = 8,
        free: int = 64 * GIB,
        whole: int = 64 * GIB,
        devices: tuple[str, ...] = (),
        device_free: int = 80 * GIB,
    ) -> None:
        monkeypatch.setattr(preflight, "cores", lambda: cores)
        monkeypatch.setattr(memory, "available", lambda: free)
        monkeypatch.setattr(memory, "whole", lambda: whole)
        monkeypatch.setattr(preflight, "visible_devices", lambda: list(devices))
        monkeypatch.setattr(preflight, "device_memory", lambda device: (80 * GIB, device_free))
        monkeypatch.setattr(preflight, "_on_devices", lambda cells: bool(devices))

    return pretend


def test_jobs_share_the_cores_by_the_threads_of_a_run(make_plan, machine) -> None:
    machine(cores=8)
    plan = make_plan(["bandwidth"])
    assert preflight.resources(plan)[0].jobs == 8
    four = make_plan(["bandwidth"], overrides=["training.threads=4"])
    found, notes = preflight.resources(four)
    assert (found.jobs, found.threads, notes) == (2, 4, [])
    found, notes = preflight.resources(four, jobs=6)
    assert (found.jobs, notes) == (6, ["6 jobs of 4 threads share 8 cores"])
    machine(cores=64)
    assert preflight.resources(plan)[0].jobs == len(plan.runs()) == 9


def test_memory_lowers_jobs_and_refuses_what_never_fits_in_one_line(make_plan, machine) -> None:
    plan = make_plan(["bandwidth"], seeds=[0, 1, 2])
    need = memory.estimate(plan.runs()[0].config).total + memory.PROCESS
    machine(free=int(2.5 * need))
    found, notes = preflight.resources(plan)
    assert found.jobs == 2
    assert len(notes) == 1
    assert "2 at once instead of 8" in notes[0]
    machine(free=1000)
    assert preflight.resources(plan)[0].jobs == 1  # what others hold now, they may have given back by then
    machine(whole=memory.PROCESS + 40 * 2**20)
    with pytest.raises(MmctlError, match=r"memory: \S+ needs about .* this machine has 40\.0 MiB") as error:
        preflight.resources(plan)
    assert "\n" not in str(error.value)
    # A step that is too large is offered in parts, and the parts fit.
    huge = make_plan(
        ["bandwidth"], overrides=["data.batch=4096", "evaluation.batch_tokens=128", "evaluation.lengths=[1]"]
    )
    machine(whole=memory.PROCESS + GIB)
    with pytest.raises(MmctlError, match=r"training\.accumulation=\d+ would fit") as error:
        preflight.resources(huge)
    setting = next(word for word in str(error.value).split() if word.startswith("training.accumulation="))
    smaller = [setting, "data.batch=4096", "evaluation.batch_tokens=128", "evaluation.lengths=[1]"]
    assert memory.estimate(load("smoke", smaller)).total <= GIB


def test_each_worker_sees_its_own_device(make_plan, machine) -> None:
    plan = make_plan(["bandwidth"])
    machine(devices=("0", "1", "2", "3"))
    assert (preflight.resources(plan)[0].jobs, preflight.resources(plan)[0].gpus) == (4, 1)
    assert preflight.resources(plan, gpus=2)[0].jobs == 2
    assert preflight.resources(plan, jobs=8)[0].gpus == 0.5
    assert preflight.resources(plan, gpus=0.5)[0].jobs == 8
    for gpus, jobs, says in (
        (8, 0, "4 CUDA devices"),
        (1, 5, "carry 4"),
        (1.5, 0, "expected 0"),
        (0.7, 0, "expected 0"),
    ):
        with pytest.raises(UsageError, match=says):
            preflight.resources(plan, jobs=jobs, gpus=gpus)
    named = make_plan(["bandwidth"], overrides=["operation.device=cuda:1"]) if _cuda() else None
    assert named is None or preflight.resources(named)[0].gpus == 0
    machine()
    with pytest.raises(UsageError, match="on the CPU"):
        preflight.resources(plan, gpus=1)


def _cuda() -> bool:
    import torch

    return torch.cuda.device_count() > 1


def test_a_device_is_shared_by_as_many_runs_as_its_memory_holds(make_plan, machine) -> None:
    plan = make_plan(["bandwidth"])
    need = memory.estimate(plan.runs()[0].config).total
    machine(devices=("0", "1"), device_free=int(2.5 * need))
    found, notes = preflight.resources(plan, gpus=0.25)
    assert (found.gpus, found.jobs) == (0.5, 4)
    assert "2 on each instead of 4" in notes[0]


@pytest.mark.parametrize(
    ("devices", "gpus", "jobs", "seen"),
    [
        (["0", "1"], 1, 2, ["0", "1"]),
        (["GPU-a", "GPU-b", "GPU-c", "GPU-d"], 2, 2, ["GPU-a,GPU-b", "GPU-c,GPU-d"]),
        (["3"], 0.5, 2, ["3", "3"]),
        (["0", "1"], 1 / 3, 4, ["0", "0", "0", "1"]),
    ],
)
def test_devices_of_the_places(devices: list[str], gpus: float, jobs: int, seen: list[str]) -> None:
    assert resources.assign(devices, gpus, jobs) == seen


@pytest.mark.parametrize(
    ("text", "seen"), [("0,2", ["0", "2"]), ("", []), ("1,-1,2", ["1"]), ("GPU-a, 3", ["GPU-a", "3"]), ("none", [])]
)
def test_the_devices_a_process_may_use(text: str, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert resources.visible_devices() == seen


DRIVER = """#!/bin/sh
case "$1" in
  *uuid*) echo "0, GPU-aa, 81559, 80000"; echo "1, GPU-bb, 81559, 1024";;
  *) echo 0; echo 1;;
esac
"""


def test_what_the_driver_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    tool = tmp_path / "nvidia-smi"
    tool.write_text(DRIVER)
    tool.chmod(0o755)
    assert resources.visible_devices() == ["0", "1"]
    assert resources.device_memory("1") == (81559 * 2**20, 1024 * 2**20)
    assert resources.device_memory("GPU-aa") == (81559 * 2**20, 80000 * 2**20)
    assert resources.device_memory("7") is None
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert resources.visible_devices() == []


def test_the_estimate_is_near_what_a_step_takes() -> None:
    """Within a quarter above the exact peak of allocations, for the models that allocate most and least a token."""
    import torch

    from mmctl.bench.measure import peak_allocated
    from mmctl.bench.step import training_step

    for name in ("mosaic-v2", "transformer"):
        config = load(
            "smoke", [f"model.name={name}", "data.batch=4", "evaluation.suites=[]", "training.precision=float32"]
        )
        step, _, standing = training_step(config, 4, False, torch.device("cpu"))
        step()
        measured = standing() + peak_allocated(step, torch.device("cpu"))
        assert measured <= memory.estimate(config).total <= 1.3 * measured, name


def test_running_out_of_memory_is_told_with_the_setting_that_fits() -> None:
    import torch

    config = load("smoke")
    for error in (
        MemoryError(),
        OutOfMemory("out of memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ):
        assert memory.happened(error), error
    assert not memory.happened(RuntimeError("shapes do not match"))
    told = memory.reason(config)
    assert told.startswith("out of memory (about ")
    assert "training.accumulation=2 would need less: 8 sequences at a time, the same batch and step" in told
    halved = load("smoke", ["training.accumulation=2"])
    assert memory.estimate(halved).activations * 2 == memory.estimate(config).activations
    assert "smaller model" in memory.reason(load("smoke", ["training.accumulation=16"]))


def test_out_of_memory_fails_one_run_and_the_sweep_goes_on(make_plan, sweep, fakes) -> None:
    plan = make_plan(["long-term-mask"], seeds=[0])
    fakes.actions({"mosaic-v2/seed0": "memory"})
    began = time.monotonic()
    outcome, _ = sweep(plan)
    assert time.monotonic() - began < 60
    (failure,) = outcome.failures
    assert failure["state"] == "failed"
    assert failure["reason"].startswith("out of memory")
    calls = fakes.calls_file.read_text().split("\n")
    assert len({line.split()[2] for line in calls if line}) == 2  # the next run had a clean worker
