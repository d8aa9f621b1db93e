"""`mmctl runs`: what it prints, what a program reads, and that damage costs a cell and not the table."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_run import scores, small
from typer.testing import CliRunner

from mmctl.cli.runs import app, show
from mmctl.errors import MmctlError, UsageError
from mmctl.runs import RunFolder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    done = RunFolder.create(root, small("name=adaptive"))
    done.set_state("running")
    done.append_metrics(20, {"loss": 0.7})
    done.write_evaluation("new-knowledge", scores({"recall/accuracy@1x": 0.75}))
    done.save_checkpoint(20, {"tensors": {}, "state": {}})
    done.write_result({"train_loss": 0.6543, "steps": 20})
    done.set_state("finished")
    stopped = RunFolder.create(root, small("name=constant", "model.bandwidth=constant"))
    stopped.append_metrics(5, {"loss": 1.25})
    stopped.set_state("diverged", "the loss is not finite at step 6")
    RunFolder.create(root, small("seed=1"))
    return root


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list_shows_every_run(root: Path) -> None:
    lines = [
        line for line in call("list", "--runs", str(root)).splitlines() if "│" in line and "training loss" not in line
    ]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert [row[0] for row in cells] == ["adaptive", "constant", "mosaic-v2"]
    assert cells[0][2:6] == ["0", "finished", "20", "0.6543"]
    assert cells[1][3:6] == ["diverged", "5", "1.2500"]
    assert cells[2][2:6] == ["1", "planned", "", ""]


def test_list_filters_and_is_json_for_programs(root: Path) -> None:
    rows = json.loads(call("list", "--runs", str(root), "--json"))
    assert [(r["name"], r["seed"], r["state"], r["train_loss"]) for r in rows] == [
        ("adaptive", 0, "finished", 0.6543),
        ("constant", 0, "diverged", 1.25),
        ("mosaic-v2", 1, "planned", None),
    ]
    assert rows[1]["reason"] == "the loss is not finite at step 6"
    assert [r["name"] for r in json.loads(call("list", "--runs", str(root), "--json", "--state", "diverged"))] == [
        "constant"
    ]
    assert [r["name"] for r in json.loads(call("list", "--runs", str(root), "--json", "--name", "const"))] == [
        "constant"
    ]
    with pytest.raises(UsageError, match='"finshed": no such state; did you mean "finished"'):
        call("list", "--runs", str(root), "--state", "finshed")


def test_a_file_given_for_the_folder_of_runs_is_said(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("x")
    with pytest.raises(UsageError, match=r"notes\.txt: a file; expected the folder of runs"):
        call("list", "--runs", str(file))


def test_list_sorts_and_filters_by_settings(root: Path) -> None:
    def names(*words: str) -> list[str]:
        return [r["name"] for r in json.loads(call("list", *words, "--runs", str(root), "--json"))]

    assert names("model.bandwidth=adaptive") == ["adaptive", "mosaic-v2"]
    assert names("--sort", "train_loss") == ["adaptive", "constant", "mosaic-v2"]
    assert names("--sort", "train_loss", "--reverse") == ["constant", "adaptive", "mosaic-v2"]  # the missing one last
    assert names("--reverse") == ["mosaic-v2", "constant", "adaptive"]
    assert names("--sort", "seed", "--reverse")[0] == "mosaic-v2"
    assert names("--older-than", "1h") == []
    text = call("list", "bandwidth=constant", "--state", "finished", "--runs", str(root))
    assert text == f"no runs in state finished and with bandwidth=constant in {root}\n"
    with pytest.raises(UsageError, match='--sort "loss": no such column; did you mean "train_loss"'):
        call("list", "--sort", "loss", "--runs", str(root))


def test_an_ambiguous_name_is_shown_with_what_tells_its_runs_apart(root: Path, capsys: Any) -> None:
    RunFolder.create(root, small("seed=2", "model.bandwidth=constant"))
    with pytest.raises(UsageError, match=r'"mosaic-v2" is ambiguous: .*; type one of them in full, such as mosaic-v2-'):
        show("mosaic-v2", runs=str(root))
    told = capsys.readouterr().err
    assert "model.bandwidth=adaptive" in told
    assert "model.bandwidth=constant" in told
    assert "planned" in told


def test_clean_shows_first_and_deletes_when_told_to(root: Path) -> None:
    run = RunFolder.find(root, "adaptive")
    run.save_checkpoint(30, {"tensors": {}, "state": {}})
    (run.path / "result.json").write_text(json.dumps({"train_loss": 0.6543, "steps": 30}))
    shown = call("clean", "--runs", str(root))
    assert f"{run.label}/checkpoints/step_20" in shown
    assert "--yes does it" in shown
    assert run.checkpoint_steps() == [20, 30]
    found = json.loads(call("clean", "--runs", str(root), "--json"))
    assert (found["deleted"], [i["kind"] for i in found["items"]]) == (False, ["checkpoint"])
    assert call("clean", "--name", "constant", "--runs", str(root)) == f"nothing to clean in {root}\n"
    found = json.loads(call("clean", "--yes", "--runs", str(root), "--json"))
    assert (found["deleted"], found["left"]) == (True, [])
    assert run.checkpoint_steps() == [30]
    assert run.finished


def test_export_and_import_say_what_they_did(root: Path, tmp_path: Path) -> None:
    run = RunFolder.find(root, "adaptive")
    file = tmp_path / "a.tar.gz"
    found = json.loads(call("export", run.label, "constant", str(file), "--runs", str(root), "--json"))
    assert (found["runs"], list(found["left_out"].values())) == ([run.label], ["is diverged"])
    assert call("import", str(file), "--runs", str(tmp_path / "b")).startswith("1 runs imported into")
    assert json.loads(call("import", str(file), "--runs", str(tmp_path / "b"), "--json"))["already"] == [run.label]
    run.write_result({"train_loss": 0.5, "steps": 20})
    with pytest.raises(MmctlError, match="1 runs are in the way; nothing was imported"):
        call("import", str(file), "--runs", str(root))
    for words, told in (
        (["adaptive"], "and then the archive"),
        (["adaptive", "constant"], "the archive to write last"),
    ):
        with pytest.raises(UsageError, match=told):
            call("export", *words, "--runs", str(root))


def test_compare_prints_settings_costs_and_scores(root: Path) -> None:
    other = RunFolder.create(root, small("name=other", "model.bandwidth=constant-matched"))
    other.write_evaluation("new-knowledge", scores({"recall/accuracy@1x": 0.5}))
    other.write_result({"train_loss": 0.7, "steps": 20, "parameters": 1234})
    text = call("compare", "adaptive", "other", "--runs", str(root))
    for expected in ("model.bandwidth", "constant-matched", "1,234", "0.7500 [0.6500, 0.8500]", "-0.2500"):
        assert expected in text
    found = json.loads(call("compare", "adaptive", "other", "--score", "train", "--runs", str(root), "--json"))
    assert [row["score"] for row in found["scores"]] == ["train_loss"]


def test_an_empty_root_says_so_in_a_line(tmp_path: Path, root: Path) -> None:
    assert call("list", "--runs", str(tmp_path / "none")) == f"no runs in {tmp_path / 'none'}\n"
    assert call("sync", "--runs", str(tmp_path / "none")).startswith("no runs to mirror")
    assert call("list", "--runs", str(root), "--state", "lost").startswith("no runs in state lost in")
    assert json.loads(call("list", "--runs", str(tmp_path / "none"), "--json")) == []
    assert not (tmp_path / "none").exists()


def test_show_gives_scores_with_intervals_configuration_and_files(root: Path) -> None:
    text = call("show", "adaptive", "--runs", str(root))
    for expected in (
        "0.750 [0.650, 0.850]",
        "model.bandwidth",
        "finished",
        "checkpoints/step_20",
        "result.json",
        "0.6543",
    ):
        assert expected in text
    found = json.loads(call("show", "adaptive", "--runs", str(root), "--json"))
    assert found["config"]["model"]["bandwidth"] == "adaptive"
    assert found["evaluations"]["new-knowledge"]["scores"]["recall/accuracy@1x"]["interval"] == [0.65, 0.85]
    assert found["checkpoints"] == [20]
    assert found["files"]["result.json"] == (RunFolder.find(root, "adaptive").path / "result.json").stat().st_size
    with pytest.raises(UsageError, match='did you mean "adaptive"'):
        call("show", "adaptve", "--runs", str(root))


def test_numbers_that_are_not_finite_stay_valid_json(root: Path) -> None:
    run = RunFolder.find(root, "mosaic-v2")
    run.append_metrics(1, {"loss": math.nan})
    text = call("list", "--runs", str(root), "--json")
    rows = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    assert rows[2]["train_loss"] == "nan"


FILES = [
    "config.yaml",
    "status.json",
    "provenance.json",
    "result.json",
    "metrics.jsonl",
    "eval/new-knowledge.json",
    "lock",
]
DAMAGE = [
    b"",
    b"{",
    b"{}",
    b"[]",
    b"null",
    b'"x"',
    b"1\n",
    b"nan",
    b"\xff\n",
    b'{"scores": 1, "versions": 1, "state": [], "loss": []}\n',
]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_never_ends_in_a_traceback(root: Path, name: str) -> None:
    path = RunFolder.find(root, "adaptive").path / name
    for content in DAMAGE:
        path.write_bytes(content)
        rows = json.loads(call("list", "--runs", str(root), "--json"))
        assert [row["name"] for row in rows] == ["adaptive", "constant", "mosaic-v2"]
        for form in ([], ["--json"]):
            assert "adaptive" in call("show", "adaptive", "--runs", str(root), *form)


def test_sync_reports_what_it_did(root: Path, store_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store_root}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "command")
    store_root.mkdir(exist_ok=True)
    found: dict[str, Any] = json.loads(call("sync", "--runs", str(root), "--json"))
    assert [label.split("-")[0] for label in found["runs"]] == ["adaptive", "constant"]
    assert list(found["skipped"].values()) == ["not started yet"]
    assert "2 runs and 0 parents are up to date in sqlite:///" in call("sync", "--runs", str(root))


def test_help_imports_neither_torch_nor_mlflow() -> None:
    code = "import sys, mmctl.cli.runs, mmctl.runs; print([m for m in ('torch', 'mlflow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
