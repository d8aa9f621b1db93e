"""What holds for every command: a wrong option names the nearest one, and --json gives JSON and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inprocess import mmctl
from small_run import scores, small

from mmctl.runs import RunFolder


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "--seeed", "1"], '"--seeed": no such option of mmctl train; did you mean "--seed"?'),
        (["ablate", "--profle", "smoke"], '"--profle": no such option of mmctl ablate; did you mean "--profile"?'),
        (["runs", "list", "--statee", "x"], '"--statee": no such option of mmctl runs list; did you mean "--state"?'),
        (["runs", "list", "--zzz"], '"--zzz": no such option of mmctl runs list; options: --'),
        (["doctor", "--jsn"], 'did you mean "--json"?'),
        (["data", "inspect", "--heldout"], 'did you mean "--held-out"?'),
        (["plot", "attention-distribution", "--ouut"], 'did you mean "--out"?'),
        (["--verson"], '"--verson": no such option of mmctl; did you mean "--version"?'),
        (["runs", "lst"], "Did you mean 'list'?"),
        (["trian"], "Did you mean 'train'?"),
        (["plot", "lss"], 'did you mean "loss"'),
        (["runs", "show"], "mmctl: RUN: is missing; see mmctl runs show --help"),
        (["plot", "shots"], "RUN...: is missing; see mmctl plot shots --help"),
        (["data", "inspect", "--tokens", "x"], "--tokens"),
    ],
)
def test_a_wrong_option_or_command_names_the_nearest(words: list[str], told: str) -> None:
    done = mmctl(*words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert told in done.err


@pytest.mark.parametrize(
    "words",
    [
        ["train", "smoke", "--dry-run"],
        ["ablate", "bandwidth", "--dry-run"],
        ["flops", "smoke"],
        ["runs", "list"],
        ["runs", "show", "one"],
        ["runs", "compare", "one", "two"],
        ["runs", "clean"],
        ["runs", "export", "one", "a.tar.gz"],
        ["data", "inspect", "smoke", "data.mixture={recall: 1}"],
    ],
    ids=" ".join,
)
def test_json_is_json_and_nothing_else(words: list[str], tmp_path: Path) -> None:
    for name, more in (("one", ()), ("two", ("model.bandwidth=constant",))):
        run = RunFolder.create(tmp_path / "runs", small(f"name={name}", *more))
        run.write_evaluation("new-knowledge", scores({"recall/accuracy@1x": 0.5}))
        run.write_result({"train_loss": 0.5, "steps": 20})
    done = mmctl(*words, "--json")
    assert done.code == 0, done.err
    assert isinstance(json.loads(done.out), dict | list)
    json.loads(done.out, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))


def test_a_figures_paths_are_json_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure gets --json: what it prints are the paths of its files."""
    from mmctl.plots import FIGURES

    for name in FIGURES:
        assert "--json" in mmctl("plot", name, "--help").out, name
    monkeypatch.setattr("mmctl.plots.flops_accuracy.draw", lambda *a, **k: {"png": tmp_path / "a.png"})
    monkeypatch.setattr("mmctl.plots.sources.find_sweep", lambda root, sweep: tmp_path / "sweeps" / "s")
    done = mmctl("plot", "flops-accuracy", "--json")
    assert (done.code, json.loads(done.out)) == (0, {"files": [str(tmp_path / "a.png")]})
