"""The figure of kernel speeds: every measured point of the CSV and no other, and one line where there is no such
CSV."""

from __future__ import annotations

import csv

import pytest

from mmctl.bench.kernel_report import FIELDS
from mmctl.errors import MmctlError, UsageError
from mmctl.plots import kernel_speed

MACHINE = {"matmul_tflops": 100.0, "copy_gbytes": 1000.0, "device": "a device", "precision": "bfloat16"}


@pytest.fixture
def table(tmp_path):
    rows = [
        {"case": "long", "phase": "both", "contender": "ours", "tflops": 60.0, "status": "measured"},
        {"case": "long", "phase": "both", "contender": "peer", "tflops": 50.0, "status": "measured"},
        {"case": "long", "phase": "forward", "contender": "ours", "tflops": 70.0, "status": "measured"},
        {"case": "long", "phase": "both", "contender": "wrong", "status": "refused: out is off by 1 (at most 0.01)"},
        {"case": "key-scan", "phase": "both", "contender": "ours", "gbytes": 800.0, "status": "measured"},
        {"case": "step", "phase": "step", "contender": "ours", "milliseconds": 3.0, "status": "measured"},
    ]
    path = tmp_path / "kernel-speed.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*FIELDS, *MACHINE])
        writer.writeheader()
        writer.writerows({"tokens": 512, "width": 64, **row, **MACHINE} for row in rows)
    return path


def test_every_measured_point_and_no_other(table):
    found = kernel_speed.collect(table)
    assert [(p.case, p.contender, p.value, p.ceiling) for p in found] == [
        ("long", "ours", 60.0, 100.0),
        ("long", "peer", 50.0, 100.0),
        ("key-scan", "ours", 800.0, 1000.0),
        ("step", "ours", 3.0, None),
    ]
    drawn = kernel_speed.plot(found)
    long, scan, step = drawn.axes
    # Two contenders and the ceiling; one and the ceiling; one alone.
    assert [len(axes.lines) for axes in (long, scan, step)] == [3, 2, 1]
    assert [axes.get_ylabel() for axes in drawn.axes] == ["TFLOP/s", "GB/s", "milliseconds"]
    assert list(long.lines[0].get_ydata()) == [60.0]


def test_it_is_saved_with_its_numbers(table, tmp_path):
    paths = kernel_speed.draw(table, tmp_path / "out")
    assert {p.name for p in paths.values()} == {f"kernel-speed-figure.{kind}" for kind in ("png", "pdf", "csv", "json")}
    with paths["csv"].open() as file:
        assert [row["value"] for row in csv.DictReader(file)] == ["60.0", "50.0", "800.0", "3.0"]


def test_a_benchmark_in_which_nothing_was_measured_is_no_failure(table, tmp_path):
    lines = table.read_text().splitlines()
    table.write_text("\n".join([lines[0], lines[4]]) + "\n")
    assert kernel_speed.draw(table, tmp_path)["png"].stat().st_size > 0


def test_what_is_no_such_table_is_one_line(tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(MmctlError, match=r"other\.csv: not the CSV of mmctl bench kernels"):
        kernel_speed.collect(tmp_path / "other.csv")
    with pytest.raises(UsageError, match=r"none\.csv: No such file"):
        kernel_speed.collect(tmp_path / "none.csv")
    with pytest.raises(MmctlError, match="not from a sweep"):
        kernel_speed.draw_sweep(tmp_path, tmp_path)
