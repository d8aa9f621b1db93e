"""`mmctl.load_runs`: runs and scores as a pandas table."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pandas
import pytest
from small_run import scores, small

import mmctl
from mmctl.errors import UsageError
from mmctl.runs import RunFolder
from mmctl.runs.table import ABOUT, SCORES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    done = RunFolder.create(tmp_path, small("name=adaptive"))
    done.set_state("running")
    done.write_evaluation("new-knowledge", scores({"recall/accuracy@1x": 0.75, "recall/loss@1x": 0.5}))
    changed = scores({"recall/accuracy@2x": 0.25}) | {"changes": {"remove_long_term": True, "delay": None}}
    done.write_evaluation("new-knowledge+remove-long-term", changed)
    done.write_result({"train_loss": 0.5, "steps": 20, "tokens": 640, "diagnostics": {"alpha": math.inf}})
    done.set_state("finished")
    stopped = RunFolder.create(tmp_path, small("name=former", "model.name=transformer", "seed=3"))
    stopped.append_metrics(5, {"loss": math.nan})
    stopped.set_state("diverged", "the loss is not finite")
    return tmp_path


def test_a_row_a_run(root: Path) -> None:
    table = mmctl.load_runs(root)
    assert tuple(table.columns[: len(ABOUT)]) == ABOUT
    done, stopped = (table.iloc[n] for n in range(2))
    assert (done["name"], done["seed"], done["state"], done["train_loss"]) == ("adaptive", 0, "finished", 0.5)
    assert (done["model.bandwidth"], done["training.steps"], done["result.tokens"]) == ("adaptive", 20, 640)
    assert done["result.diagnostics.alpha"] == math.inf
    assert (stopped["state"], stopped["reason"], stopped["model.position"]) == (
        "diverged",
        "the loss is not finite",
        "rope",
    )
    assert pandas.isna(stopped["model.bandwidth"])  # a key its model does not have
    assert pandas.isna(stopped["result.tokens"])
    assert str(table["when"].dt.tz) == "UTC"


def test_a_row_a_score(root: Path) -> None:
    table = mmctl.load_runs(root, scores=True)
    assert tuple(table.columns[-len(SCORES) :]) == SCORES
    assert table[
        ["evaluation", "task", "score", "multiple", "length", "value", "low", "high", "n"]
    ].values.tolist() == [
        ["new-knowledge", "recall", "accuracy", 1, 64, 0.75, 0.65, 0.85, 4],
        ["new-knowledge", "recall", "loss", 1, 64, 0.5, 0.4, 0.6, 4],
        ["new-knowledge+remove-long-term", "recall", "accuracy", 2, 128, 0.25, 0.15, 0.35, 4],
    ]
    assert table["remove_long_term"].tolist() == [False, False, True]
    assert table["chance"].tolist()[0] == 0.1
    assert table["chance"].isna().tolist() == [False, True, True]  # a loss has none; at 2x none is recorded
    assert (table["model.bandwidth"] == "adaptive").all()


def test_filters(root: Path) -> None:
    assert mmctl.load_runs(root, {"model.bandwidth": "adaptive"})["name"].tolist() == ["adaptive"]
    assert mmctl.load_runs(root, {"seed": 3, "model.position": "rope"})["name"].tolist() == ["former"]
    assert mmctl.load_runs(root, ["training.learning_rate=4e-3"], state="diverged")["name"].tolist() == ["former"]
    assert mmctl.load_runs(root, {"model.delay": None}, name="ad")["name"].tolist() == ["adaptive"]
    with pytest.raises(UsageError, match=r'did you mean "model\.bandwidth"'):
        mmctl.load_runs(root, {"model.bandwith": "x"})
    with pytest.raises(UsageError, match='did you mean "finished"'):
        mmctl.load_runs(root, state="finshed")


def test_no_runs_are_an_empty_table_and_no_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMCTL_RUNS", str(tmp_path / "none"))
    assert mmctl.load_runs().shape == (0, len(ABOUT))
    assert list(mmctl.load_runs(tmp_path, scores=True).columns[-len(SCORES) :]) == list(SCORES)
    with pytest.raises(UsageError, match="no such folder of runs"):
        mmctl.load_runs(tmp_path / "none")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"scores": 1, "changes": {}}', b'{"scores": {"x": 1}, "changes": {}}']
)
def test_a_damaged_file_costs_its_columns(root: Path, content: bytes) -> None:
    run = RunFolder.find(root, "adaptive")
    (run.path / "eval" / "new-knowledge.json").write_bytes(content)
    assert len(mmctl.load_runs(root, scores=True)) == 1
    (run.path / "config.yaml").write_bytes(content)
    assert len(mmctl.load_runs(root)) == 2


def test_importing_mmctl_is_light() -> None:
    code = "import sys, mmctl; print(sorted({'torch', 'mlflow', 'pandas', 'numpy', 'omegaconf'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
