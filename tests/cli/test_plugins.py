"""Users' own models and tasks from a file of theirs, as the README tells it, and everything that can be wrong with
one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from inprocess import mmctl

from mmctl import plugins
from mmctl.config import from_dict, identity, load, to_dict
from mmctl.errors import MmctlError, UsageError
from mmctl.runs import RunFolder

MODEL = '''
from dataclasses import dataclass

from mmctl.models.transformer import Transformer, TransformerConfig


@dataclass
class ScaledConfig(TransformerConfig):
    name: str = "scaled"
    scale: float = 2.0
    """The residual stream is multiplied by this before the classifier."""


class Scaled(Transformer):
    Config = ScaledConfig

    def hidden(self, tokens_BT, *, documents=None, delay=None):
        return self.config.scale * super().hidden(tokens_BT, documents=documents, delay=delay)


MODELS = {"scaled": Scaled}
'''
TASK = """
from dataclasses import dataclass

import numpy as np

from mmctl.data.task import IGNORE, Batch, Task, TaskConfig, at_least


@dataclass
class CopyConfig(TaskConfig):
    symbols: int = 32

    def validate(self, prefix):
        at_least(self, prefix, symbols=2)


class Copy(Task):
    name = "copy"
    dimension = "in-context"
    Config = CopyConfig

    def sample(self, rng, count, length, split):
        half = length // 2
        first = 256 + rng.integers(0, self.config.symbols, (count, half))
        targets = np.full((count, 2 * half), IGNORE, dtype=np.int64)
        targets[:, half - 1 : -1] = first
        return Batch(np.concatenate([first, first], axis=1), targets)


TASKS = {"copy": Copy}
"""
QUICK = (
    "model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=16", "data.length=64", "data.mixture={recall: 1}",
    "training.steps=1", "training.warmup=0", "evaluation.examples=2", "evaluation.minimum_examples=2",
    "evaluation.lengths=[1]", "operation.mlflow=false",
)  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "own_model.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "own_task.py"
    path.write_text(TASK)
    return path


def test_a_new_model_in_one_file_is_trained_and_evaluated(model: Path, tmp_path: Path) -> None:
    """The README's walkthrough; the training in a process as a user starts it."""
    words = ("train", "smoke", "--plugin", model.name, "model.name=scaled", "model.scale=3", *QUICK)
    trained = subprocess.run(
        [sys.executable, "-m", "mmctl", *words], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert trained.returncode == 0, trained.stderr
    run = next(RunFolder.all(tmp_path / "runs"))
    assert run.name == "scaled"
    recorded = run.config_dict()
    sha256 = plugins._sha256(model)
    assert recorded["plugins"] == [{"plugin": "own_model.py", "sha256": sha256}]
    assert recorded["model"]["scale"] == 3.0
    (about,) = run.provenance()["plugins"]
    assert about == {
        "plugin": "own_model.py", "sha256": sha256, "path": str(model), "models": ["scaled"], "tasks": [],
    }  # fmt: skip
    done = mmctl("eval", "scaled/seed0", "--json")
    assert done.code == 1
    assert "needs the plugin own_model.py" in done.err
    done = mmctl("eval", "scaled/seed0", "--json", "--plugin", model.name)
    assert done.code == 0, done.err
    assert json.loads(done.out)[0]["scores"]["recall/accuracy@1x"]["n"] == 2


def test_a_file_may_be_named_as_a_module_too(model: Path) -> None:
    plugins.load(["own_model"])
    config = load("smoke", ["model.name=scaled", *QUICK])
    recorded = to_dict(config)
    assert recorded["plugins"][0]["plugin"] == "own_model"
    plugins._loaded.clear()
    del sys.modules["mmctl.models"].MODELS["scaled"]
    plugins.load(["own_model.py"])
    assert identity(from_dict(recorded)) == identity(config)


def test_a_run_that_needs_a_plugin_says_which(model: Path, tmp_path: Path) -> None:
    plugins.load([str(model)])
    config = load("smoke", ["model.name=scaled", *QUICK])
    run = RunFolder.create(tmp_path / "runs", config)
    plugins._loaded.clear()
    with pytest.raises(MmctlError, match=r"config\.yaml: needs the plugin own_model\.py: give it with --plugin or in"):
        run.config()
    done = mmctl("runs", "show", "scaled", "--json")  # reading what is recorded needs no plugin
    assert json.loads(done.out)["config"]["model"]["scale"] == 2.0


def test_other_source_is_another_run_and_is_refused_for_an_old_one(model: Path) -> None:
    plugins.load([str(model)])
    config = load("smoke", ["model.name=scaled", *QUICK])
    first, recorded = identity(config), to_dict(config)
    assert from_dict(recorded) == config
    plugins._loaded.clear()
    for module in ("mmctl.models",):
        del sys.modules[module].MODELS["scaled"]
    model.write_text(MODEL + "\n# changed\n")
    plugins.load([str(model)])
    assert identity(load("smoke", ["model.name=scaled", *QUICK])) != first
    with pytest.raises(UsageError, match=r"made with other source of the plugin own_model\.py \(SHA-256 "):
        from_dict(recorded)


def test_runs_that_use_nothing_of_a_plugin_stay_the_same_runs(model: Path, task: Path) -> None:
    words = ["data.mixture={recall: 1}"]
    before = identity(load("smoke", words)), to_dict(load("smoke", words))
    plugins.load([str(model), str(task)])
    assert (identity(load("smoke", words)), to_dict(load("smoke", words))) == before
    assert load("lab", ["data.mixture={recall: 1}"]).data.mixture == {"recall": 1.0}


def test_a_task_of_ones_own_has_keys_a_suite_and_a_place_in_mixtures(task: Path) -> None:
    from mmctl.data import build_task
    from mmctl.evaluation import SUITES

    plugins.load([str(task)])
    config = load("smoke", ["data.mixture={copy: 1, recall: 1}", "data.tasks.copy.symbols=8"])
    assert config.data.tasks.copy.symbols == 8
    assert config.data.tasks_in_mixture() == ["recall", "copy"]
    assert SUITES["in-context"][-1] == "copy"
    assert build_task("copy", config.data).config.symbols == 8
    assert from_dict(to_dict(config)) == config
    done = mmctl("train", "smoke", "data.mixture={copy: 1}", "data.tasks.copy.symbols=1", "--dry-run")
    assert (done.code, done.err) == (2, "mmctl: data.tasks.copy.symbols=1: expected at least 2\n")
    done = mmctl("data", "inspect", "smoke", "data.mixture={copy: 1}", "--json")
    assert json.loads(done.out)["tasks"]["copy"]["dimension"] == "in-context"


def test_workers_and_commands_to_repeat_know_the_plugin(model: Path, tmp_path: Path) -> None:
    """A sweep over a model of one's own, in a worker process."""
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nquestion: Does the scale matter?\nseeds: [0]\nbaseline: {set: {model.name: scaled}}\n"
        "arms:\n  - {name: two}\n  - {name: three, set: {model.scale: 3.0}}\n"
    )
    done = mmctl("ablate", "mine.yaml", "--plugin", "own_model.py", *QUICK, "--json", "--jobs", "1")
    assert done.code == 0, done.err
    results = json.loads(done.out)
    arms = results["ablations"][0]["arms"]
    assert [list(arm["runs"]) for arm in arms] == [["0"], ["0"]]
    assert all(run["state"] == "finished" for arm in arms for run in arm["runs"].values())
    manifest = json.loads(next((tmp_path / "runs" / "sweeps").glob("*/manifest.json")).read_text())
    assert f"--plugin {model}" in manifest["command"]


def test_a_job_carries_its_plugins_to_workers_that_share_no_environment(model: Path, tmp_path: Path) -> None:
    """As a cluster's scheduler starts them: the job's message is all they get."""
    from mmctl.sweeps.launchers.job import Job, perform

    plugins.load([str(model)])
    config = load("smoke", ["model.name=scaled", *QUICK])
    message = json.loads(json.dumps(Job(1, "train", "x", to_dict(config), tmp_path / "r", [], {}, []).message()))
    plugins._loaded.clear()
    del sys.modules["mmctl.models"].MODELS["scaled"]
    os.environ.pop(plugins.VARIABLE)
    plugins._read_from_environment = ""
    outcome = perform(message, lambda progress: None)
    assert (outcome["state"], outcome["reason"]) == ("finished", None)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("x = 1\n", "registers nothing; expected MODELS = {name: class} or TASKS = {name: class}"),
        ("import nothing_of_that_name\n", "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_that_name' (own"),
        ("x = 1\ny = 1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero (own.py, line 2)"),
        ("def f(:\n", "cannot be imported: SyntaxError: invalid syntax (own.py, line 1)"),
        ("MODELS = [1]\n", "MODELS: expected a mapping of names to classes"),
        ("MODELS = {'m': 1}\n", "MODELS: expected a mapping of names to classes"),
        ("MODELS = {'m': int}\n", 'model "m": int is no subclass of mmctl.models.base.Model'),
        ("TASKS = {'t': int}\n", 'task "t": int is no subclass of mmctl.data.task.Task'),
        ("from mmctl.models.base import Model\nMODELS = {'m': Model}\n", 'model "m": Model has no costs(config, ask)'),
        ("from mmctl.data.task import Task\nTASKS = {'t': Task}\n", 'task "t": Task has no sample(rng, count, length'),
        ("TASKS = {'a-b': int}\n", "'a-b' is no name for a task"),
        ("MODELS = {'../x': int}\n", "'../x' is no name for a model"),
        (MODEL.replace('"scaled": S', '"mosaic-v2": S'), 'the model "mosaic-v2" comes with mmctl itself already'),
        (TASK.replace('"copy": C', '"recall": C'), 'the task "recall" comes with mmctl itself already'),
        (TASK.replace('name = "copy"', 'name = "other"'), 'task "copy": Copy.name is not "copy"'),
        (TASK.replace('"in-context"', '"elsewhere"'), 'task "copy": Copy.dimension: expected persistent, new-knowledge, in-'),
        (TASK.replace("@dataclass\n", "").replace("(TaskConfig)", ""), "Copy.Config is no dataclass derived from TaskConfig"),
    ],
)  # fmt: skip
def test_a_plugin_that_is_wrong_is_one_line_and_registers_nothing(tmp_path: Path, content: str, told: str) -> None:
    from mmctl.data import TASKS
    from mmctl.models import MODELS

    (tmp_path / "own.py").write_text(content)
    before = dict(MODELS), dict(TASKS)
    done = mmctl("train", "smoke", "--plugin", "own.py", "--dry-run")
    assert done.code == 2
    assert done.err.startswith("mmctl: --plugin own.py: ")
    assert told in done.err
    assert done.err.count("\n") == 1
    assert (dict(MODELS), dict(TASKS)) == before


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("own_modle.py", 'no such file; did you mean "own_model.py"?'),
        ("own_modle", 'no such module here or on Python\'s path; did you mean "own_model"?'),
        ("no.such.module", "no module no here or on Python's path"),
        ("a b", "expected a dotted module name or the path of a .py file"),
        ("~nobody-of-that-name/x.py", "nobody-of-that-name"),
        (".", "expected a dotted module name"),
    ],
)
def test_a_plugin_that_is_not_there_is_one_line(model: Path, word: str, told: str) -> None:
    done = mmctl("train", "smoke", "--plugin", word, "--dry-run")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert told in done.err


def test_names_are_taken_once_and_the_same_plugin_is_no_duplicate(model: Path, tmp_path: Path) -> None:
    plugins.load([str(model)])
    assert plugins.load([str(model), model.name]) == plugins.loaded() * 2
    other = tmp_path / "own_other.py"
    other.write_text(MODEL)
    with pytest.raises(UsageError, match=r'the model "scaled" comes with own_model\.py already'):
        plugins.load([str(other)])
    (tmp_path / "sub").mkdir()
    namesake = tmp_path / "sub" / "own_model.py"
    namesake.write_text(MODEL)
    with pytest.raises(UsageError, match=r"another plugin is called own_model\.py"):
        plugins.load([str(namesake)])


def test_the_environment_names_plugins_too_and_a_package_is_hashed_whole(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("from own_package.part import MODELS\n")
    (package / "part.py").write_text(MODEL)
    monkeypatch.setenv(plugins.VARIABLE, os.pathsep.join(["own_package", str(task)]))
    assert load("smoke", ["model.name=scaled"]).model.scale == 2.0
    assert [p.name for p in plugins.loaded()] == ["own_package", "own_task.py"]
    before = plugins._sha256(package / "__init__.py")
    assert plugins.loaded()[0].sha256 == before
    (package / "part.py").write_text(MODEL + "\n")
    assert plugins._sha256(package / "__init__.py") != before
