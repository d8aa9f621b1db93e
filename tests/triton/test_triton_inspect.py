"""`mmctl.kernels.inspect` when a compiler fails or dies: one line that names the case, exit code 1, the rest still
done."""

from __future__ import annotations

import csv
import functools
import json
import os
import signal

import pytest

from mmctl.kernels import inspect
from mmctl.kernels.triton_cases import Case, cases
from mmctl.kernels.triton_jobs import Failed, outcomes

ROW = {
    "kernel": "some_kernel", "registers": 40, "spill_stores": 0, "spill_loads": 0, "shared_memory": 1024, "limit": 101376,
    "tensor_memory": 0, "wgmma": 0, "tcgen05": 0, "mma": 4, "serialized": False, "float64": False, "atomics": False,
}  # fmt: skip


def work(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 4:
        os.write(2, b"some noise\nLLVM ERROR: cannot select\nstack dump\n")
        os.abort()
    if number == 5:
        os._exit(7)
    if number == 6:
        raise ValueError("first line\nsecond line")
    return number * number


@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_a_process_that_dies_costs_its_own_task_and_no_other(jobs):
    found = dict(outcomes(work, range(1, 9), jobs, context="fork"))
    assert set(found) == set(range(1, 9))
    assert [found[n] for n in (1, 2, 7, 8)] == [1, 4, 49, 64]
    assert found[3] == Failed("its process died of SIGKILL (often: out of memory)")
    assert found[4] == Failed("its process died of SIGABRT: LLVM ERROR: cannot select")
    assert found[5] == Failed("its process exited with 7")
    assert found[6] == Failed("ValueError: first line")


def test_no_task_is_no_process():
    assert list(outcomes(work, [], 2, context="fork")) == []


def compile_or_die(case: Case):
    if case.width == 32 and case.operation == "key_scan":
        os.abort()
    return [{**vars(case), **ROW, "failures": ["spills"] if case.width == 64 else []}]


@pytest.fixture
def quick(monkeypatch, capsys):
    """Run the command without compiling; returns (exit code, stdout, stderr)."""
    monkeypatch.setattr(inspect, "examine", compile_or_die)
    monkeypatch.setattr(inspect, "outcomes", functools.partial(outcomes, context="fork"))

    def run(*words):
        code = inspect.main([*words])
        return code, *capsys.readouterr()

    return run


def test_a_compiler_that_dies_is_one_line_naming_the_case_and_exit_code_1(quick, tmp_path):
    table = tmp_path / "made" / "table.csv"
    words = ("--arch", "100", "--dtype", "bf16", "--width", "16,32", "--quick", "--jobs", "2", "--csv", str(table))
    code, out, err = quick(*words)
    assert code == 1
    expected = "inspect: key_scan, sm_100, bf16, width 32, with documents: its process died of SIGABRT"
    assert err.splitlines() == [expected]
    # The nine other cases are reported, on the screen and in the file, with their versions.
    assert sum("some_kernel" in line for line in out.splitlines()) == 9
    assert "9 kernels, 1 failed gates or compilations" in out
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    assert all(row["torch"] and row["triton"] and row["arch"] == "100" for row in rows)


def test_a_failed_gate_is_exit_code_1_and_in_the_json(quick):
    code, out, err = quick("--arch", "90", "--dtype", "fp16", "--width", "64", "--quick", "--json")
    report = json.loads(out)
    assert (code, err, report["failed"], report["crashes"]) == (1, "", 5, [])
    code, out, _ = quick("--arch", "90", "--dtype", "fp16", "--width", "128", "--quick", "--json")
    assert (code, json.loads(out)["failed"]) == (0, 0)


def test_every_architecture_dtype_and_width_is_examined_by_default():
    options = inspect.arguments_of([])
    todo = list(cases(options.arch, options.dtype, options.width, options.quick))
    assert len(todo) == len(set(todo)) == 6 * 3 * 5 * 10
    assert {case.width for case in todo} == {16, 32, 64, 96, 128}
    assert {case.arch for case in todo} == {80, 86, 89, 90, 100, 120}


def test_one_operation_alone(quick):
    words = ("--arch", "90", "--dtype", "bf16", "--width", "16", "--json", "--operation", "state_space_scan,key_scan")
    code, out, _ = quick(*words)
    report = json.loads(out)
    assert code == 0
    assert [row["operation"] for row in report["kernels"]] == ["state_space_scan"] * 2 + ["key_scan"] * 2
    assert report[inspect.VARIANTS] == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--arch", "70"), "--arch: 70 is not one of 80, 86, 89, 90, 100, 120"),
        (("--dtype", "bf17"), "--dtype: bf17 is not one of bf16, fp16, fp32"),
        (("--width", "129"), "--width: 129 is not one of 1 to 128"),
        (("--width", "a"), "--width"),
        (("--jobs", "0"), "--jobs"),
        (
            ("--operation", "scan"),
            "--operation: scan is not one of memory_attention, key_scan, value_extract, state_space_scan",
        ),
    ],
    ids=str,
)
def test_wrong_input_is_one_clear_line(words, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        inspect.main(list(words))
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
