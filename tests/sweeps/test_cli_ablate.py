"""`mmctl ablate` as typed: errors in one line, a dry run that writes nothing, and one small real sweep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_runs import SMALL

RUN = """
import sys
import typer
from mmctl.cli.ablate import ablate
from mmctl.errors import MmctlError

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(ablate)
try:
    app()
except MmctlError as error:
    print(f"mmctl: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


def ablate(*words: str, runs: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, *words, "--runs", str(runs)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_importing_the_command_imports_nothing_heavy() -> None:
    code = "import sys, mmctl.cli.ablate; print([m for m in ('torch', 'mlflow', 'omegaconf', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bandwith"], '"bandwith": no such ablation; did you mean "bandwidth"?'),
        (["bandwidth", "--fail-fast", "--max-failures", "2"], "give one of them"),
        (["bandwidth", "--only", "constnt"], 'did you mean "constant"?'),
        (["bandwidth", "training.stepz=3", "--dry-run"], 'did you mean "training.steps"?'),
    ],
)
def test_usage_errors_are_one_line_exit_2_and_nothing_written(words: list[str], says: str, tmp_path: Path) -> None:
    done = ablate(*words, runs=tmp_path / "runs")
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    done = ablate("long-term-removal", "bandwidth", "--dry-run", "--json", *SMALL, runs=tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["runs"], plan["cells"], plan["missing"]) == (9, 3, 9)
    shared = plan["plan"][0]
    assert shared["ablations"] == ["long-term-removal/kept", "long-term-removal/removed", "bandwidth/adaptive"]
    assert shared["state"] == "planned"
    assert shared["parameters"] > 100_000
    assert shared["training_tokens"] == 2 * 16 * 128
    assert not (tmp_path / "runs").exists()
    shown = ablate("bandwidth", "--dry-run", "--seeds", "1", *SMALL, runs=tmp_path / "runs")
    assert "bandwidth-constant-matched" in shown.stdout
    assert "missing: 3 runs" in shown.stdout
    assert "MiB of disk" in shown.stdout


def test_a_small_real_sweep_and_its_rerun(tmp_path: Path) -> None:
    """Two real trainings of a few steps, the removal evaluated, a report; then again, with nothing left to do."""
    own = tmp_path / "own.yaml"
    own.write_text(
        "name: own\nquestion: q\nbaseline: {set: {model.name: mosaic-v2}}\n"
        "arms: [{name: kept}, {name: removed, evaluate: {remove_long_term: true}},"
        " {name: constant, set: {model.bandwidth: constant}}]\n"
        "claims:\n  - {id: c, statement: s, metric: recall/accuracy@1x, treatment: removed, control: kept,"
        " expected: less, margin: 0.02, published: {source: p, metric: m, value: none}}\n"
        "figures: [flops-accuracy]\n"
    )
    words = [str(own), "--seeds", "0,", *SMALL, "evaluation.lengths=[1]"]
    done = ablate(*words, "--json", runs=tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    arms = {a["name"]: a for a in results["ablations"][0]["arms"]}
    assert arms["kept"]["identity"] == arms["removed"]["identity"] != arms["constant"]["identity"]
    assert arms["kept"]["scores"]["train_loss"]["n"] == 1
    assert "recall/accuracy@1x" in arms["removed"]["scores"]
    assert "train_loss" not in arms["removed"]["scores"]
    folder = tmp_path / "runs" / "sweeps" / results["sweep"]
    assert {p.name for p in folder.iterdir() if p.is_file()} == {
        "manifest.json",
        "results.json",
        "numbers.csv",
        "report.md",
        "report.html",
    }
    assert list((folder / "figures").glob("flops-accuracy*.png"))
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").glob("*/seed0/**/*.json")}
    assert written

    done = ablate(*words, runs=tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert "2 runs already finished" in done.stderr
    assert "own/c" in done.stdout
    assert f"report: {folder / 'report.md'}" in done.stdout
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").glob("*/seed0/**/*.json")} == written
