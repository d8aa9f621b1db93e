"""What was evaluated before a score was what it is now: evaluated again where that is possible, and never read as new."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from fakes import Learner, quick_config

from mmctl.config import Config
from mmctl.data import BUILT_IN, build_task
from mmctl.data.icl import InContext
from mmctl.data.recall import Recall
from mmctl.errors import MmctlError
from mmctl.evaluation import evaluate, find_evaluation, lacks_evaluation, versions
from mmctl.evaluation.changes import AS_TRAINED
from mmctl.evaluation.suites import settings_dict
from mmctl.runs import RunFolder
from mmctl.sweeps import scores
from mmctl.training import work
from mmctl.training.run import execute

USUAL = {"accuracy", "loss"}
BY_SHOTS = {"accuracy-last-quarter", "accuracy-shotsN", "gain-per-doubling"}
SCORED: dict[str, tuple[int, set[str]]] = {
    "facts": (1, USUAL),
    "recall": (1, USUAL | {"accuracy-far"}),
    "icl": (2, USUAL | BY_SHOTS),
    "intents": (2, USUAL | BY_SHOTS),
    "text": (1, USUAL | {"bits-per-byte", "loss-quarterN"}),
    "docs_qa": (1, USUAL | {"accuracy-depthN", "bytes-right"}),
    "passkey": (1, USUAL | {"accuracy-depthN", "bytes-right"}),
    "regbench": (1, USUAL | {"total-variation"}),
    "induction": (1, USUAL),
    "stream": (1, USUAL | {"accuracy-passkey", "loss-end", "loss-partN"}),
}
"""Task -> version of its scores and their names. Whoever changes the names must raise the version: name the new score in
the task's `since`, with the next number. Without that, evaluations of finished runs pass for new ones that lack it."""


@pytest.mark.parametrize("task", BUILT_IN)
def test_another_set_of_scores_is_another_version(task: str) -> None:
    number, names = SCORED[task]
    assert versions.version(task) == number
    if task != "intents":  # it needs files; its scores by shots are those of icl
        found = build_task(task, quick_config().data).score_names(512)
        assert {re.sub(r"\d+", "N", name) for name in found} == names


@pytest.fixture
def run(tmp_path: Path) -> tuple[RunFolder, Config]:
    config = quick_config(
        "model.layers=1", "data.mixture={icl: 1, recall: 1}", "training.steps=2", "training.warmup=0",
        "operation.mlflow=false", "evaluation.examples=4", "evaluation.minimum_examples=4",
    )  # fmt: skip
    outcome = execute(config, tmp_path)
    assert outcome.state == "finished", outcome.reason
    return RunFolder.open(outcome.path), config


def made_before(folder: RunFolder) -> dict[str, Any]:
    """The in-context evaluation as it was before the score, and before versions were recorded."""
    evaluation = folder.evaluation("in-context")
    assert evaluation is not None
    del evaluation["scored"]
    evaluation["scores"] = {k: v for k, v in evaluation["scores"].items() if "gain-per-doubling" not in k}
    folder.write_evaluation("in-context", evaluation)
    return evaluation


def test_an_outdated_evaluation_is_made_again_and_said_and_others_are_left_alone(
    run: tuple[RunFolder, Config], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, config = run
    whole = (folder.path / "eval/in-context.json").read_text()
    other = (folder.path / "eval/new-knowledge.json").read_bytes()
    made_before(folder)
    assert lacks_evaluation(folder, config, "in-context")
    capsys.readouterr()
    assert not execute(config, folder.path.parents[1]).skipped
    said = capsys.readouterr().err
    assert f"mmctl: evaluations of {folder.label} are older than the score icl/gain-per-doubling: made again" in said
    again = json.loads((folder.path / "eval/in-context.json").read_text())
    assert again["scores"] == json.loads(whole)["scores"]
    assert again["scored"] == {"icl": 2}
    assert (folder.path / "eval/new-knowledge.json").read_bytes() == other
    assert execute(config, folder.path.parents[1]).skipped
    assert "older" not in capsys.readouterr().err


@pytest.mark.parametrize("lost", ["all checkpoints", "a file of the last"])
def test_without_the_checkpoint_it_is_kept_with_the_scores_it_has_and_said(
    run: tuple[RunFolder, Config], capsys: pytest.CaptureFixture[str], lost: str
) -> None:
    folder, config = run
    kept = made_before(folder)
    if lost == "all checkpoints":
        shutil.rmtree(folder.checkpoints)
    else:
        next(folder.checkpoints.glob("step_2/*.safetensors")).unlink()
    before = (folder.path / "eval/in-context.json").read_bytes()
    capsys.readouterr()
    assert execute(config, folder.path.parents[1]).skipped
    said = capsys.readouterr().err
    assert "kept without icl/gain-per-doubling, because no checkpoint is left to make them again" in said
    assert (folder.path / "eval/in-context.json").read_bytes() == before
    read = scores.read(folder, config, AS_TRAINED)
    assert {name for name in read if name.startswith("icl/")} == set(kept["scores"])


def test_a_score_whose_meaning_changed_is_not_read_from_an_older_evaluation(
    run: tuple[RunFolder, Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = run
    monkeypatch.setattr(Recall, "since", {"accuracy": 2})
    assert lacks_evaluation(folder, config, "new-knowledge")
    shutil.rmtree(folder.checkpoints)
    assert not lacks_evaluation(folder, config, "new-knowledge")
    found = find_evaluation(folder, config, "new-knowledge")
    assert found is not None
    assert {name.partition("@")[0] for name in found[1]["scores"]} == {"recall/accuracy-far", "recall/loss"}
    assert not any(name.startswith("recall/accuracy@") for name in scores.read(folder, config, AS_TRAINED))


def test_what_is_measured_now_records_the_version_of_every_task(monkeypatch: pytest.MonkeyPatch) -> None:
    made = evaluate(Learner(), quick_config(), "in-context")
    assert made["scored"] == {"icl": 2}
    assert versions.outdated(made) == []
    monkeypatch.setattr(InContext, "since", {**InContext.since, "loss": 3})
    assert versions.outdated(made) == ["icl/loss"]


@pytest.mark.parametrize("key", ["settings", "scores", "tasks", "scored"])
@pytest.mark.parametrize("content", [None, 5, "icl", [1, 2], {"icl": None}, {"icl": "two"}, {"icl": [1]}], ids=repr)
def test_an_evaluation_of_another_form_is_damaged_wherever_it_is_read(
    key: str, content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = quick_config("model.layers=1", "data.mixture={icl: 1}", "evaluation.examples=4")
    folder = RunFolder.create(tmp_path, config, [])
    settings = settings_dict(config, suite="in-context")
    whole = {"suite": "in-context", "settings": settings, "scores": {}, "tasks": {"icl@1x": {}}, "scored": {"icl": 2}}
    folder.write_evaluation("in-context", whole)
    assert not lacks_evaluation(folder, config, "in-context")
    folder.write_evaluation("in-context", whole | {key: content})
    assert lacks_evaluation(folder, config, "in-context")
    work.say_outdated(folder, config)
    assert capsys.readouterr().err == ""
    if key != "settings" or not isinstance(content, dict):  # other settings are another evaluation
        with pytest.raises(MmctlError, match=f'in-context.json: damaged, "{key}" is not') as caught:
            find_evaluation(folder, config, "in-context")
        assert "\n" not in str(caught.value)
