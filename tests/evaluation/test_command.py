"""`mmctl eval` on a run folder, from the command line to the files it leaves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from fakes import quick_config
from typer.testing import CliRunner

from mmctl.cli.evaluate import MOST_REASONS, evaluate, split_arguments, with_overrides
from mmctl.errors import MmctlError, UsageError
from mmctl.evaluation.changes import Changes
from mmctl.evaluation.suites import settings_mark

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(evaluate)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs "tiny" (mosaic-v2, finished), "half" (the same, not finished) and "former" (transformer)."""
    from mmctl import models
    from mmctl.runs import RunFolder

    root = tmp_path_factory.mktemp("runs")
    for name, model, finished, steps in (
        ("tiny", "mosaic-v2", True, 3),
        ("half", "mosaic-v2", False, 4),
        ("former", "transformer", True, 5),
    ):
        config = quick_config(
            f"name={name}",
            f"model.name={model}",
            "model.layers=1",
            "evaluation.examples=8",
            "data.mixture={icl: 1, recall: 1}",
            "operation.mlflow=false",
            f"training.steps={steps}",  # its own identity
        )
        torch.manual_seed(0)
        run = RunFolder.create(root, config, [])
        weights = models.build(config).state_dict()
        with run.lock():
            run.save_checkpoint(3, {"tensors": {"model": weights, "optimizer": {}}, "state": {"step": 3}})
            if finished:
                run.write_result({"train_loss": 1.0})
    return root


def run(*arguments: object, code: int = 0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if code == 0 and result.exception:
        raise result.exception
    assert result.exit_code == code
    return result


def files(root: Path, name: str) -> set[str]:
    return {p.stem for p in root.glob(f"{name}-*/seed0/eval/*.json")}


def test_scores_are_printed_and_kept(root: Path) -> None:
    result = run("tiny", "--runs", root, "--json")
    evaluations = {e["suite"]: e for e in json.loads(result.stdout)}
    assert set(evaluations) == {"new-knowledge", "in-context"}  # persistent has no task in this mixture
    assert files(root, "tiny") == {"new-knowledge", "in-context"}
    kept = next(root.glob("tiny-*/seed0/eval/in-context.json"))
    assert json.loads(kept.read_text())["scores"] == evaluations["in-context"]["scores"]
    table = run("tiny", "--runs", root, "--suite", "in-context").stdout
    assert "icl/accuracy-last-quarter" in table


def test_evaluation_time_changes_go_to_files_of_their_own(root: Path) -> None:
    run("tiny", "--runs", root, "-s", "in-context", "--remove-long-term")
    run("tiny", "--runs", root, "-s", "in-context", "m=16")
    run("tiny", "--runs", root, "-s", "in-context", "evaluation.examples=9")
    assert {
        "in-context+remove-long-term",
        "in-context+m=16",
        "in-context+examples=9",
    } <= files(root, "tiny")
    changed = json.loads(next(root.glob("tiny-*/seed0/eval/in-context+m=16.json")).read_text())
    assert changed["changes"] == {"remove_long_term": False, "delay": 16}


def test_where_the_last_query_looks_is_measured_beside_the_suites_and_of_the_trained_model_alone(root: Path) -> None:
    words = ("former", "--runs", root, "evaluation.attention=16")
    result = run(*words)
    assert "attention/flatness-far" in result.stdout
    assert {"attention+near=16", "in-context"} <= files(root, "former")
    before = files(root, "former")
    found = json.loads(run(*words, "-s", "attention", "--json").stdout)
    assert [e["suite"] for e in found] == ["attention"]
    assert files(root, "former") == before
    both = json.loads(run(*words, "-s", "attention", "-s", "in-context", "--json").stdout)
    assert [e["suite"] for e in both] == ["attention", "in-context"]


def test_a_run_in_progress_keeps_its_final_evaluation_free(root: Path) -> None:
    run("half", "--runs", root, "-s", "in-context")
    assert files(root, "half") == {"in-context+step=3"}


def test_tasks_that_were_not_trained_on_are_measured_when_asked_for(root: Path) -> None:
    (evaluation,) = json.loads(run("tiny", "--runs", root, "-s", "persistent", "--untrained", "--json").stdout)
    assert evaluation["untrained"] == ["facts", "text"]
    (named,) = json.loads(run("tiny", "--runs", root, "--tasks", "text", "--json").stdout)
    assert named["untrained"] == ["text"]
    assert {name.partition("/")[0] for name in named["scores"]} == {"text"}
    (longer,) = json.loads(
        run(
            "tiny",
            "--runs",
            root,
            "--tasks",
            "induction",
            "data.tasks.induction.markers=3",
            "evaluation.lengths=[2]",
            "--json",
        ).stdout
    )
    assert list(longer["tasks"]) == ["induction@2x"]
    assert {"persistent+untrained+tasks=text", "persistent+untrained"} <= files(root, "tiny")
    assert "text/loss@1x" in evaluation["scores"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere",), "nowhere"),
        (("tiny", "-s", "in-contxt"), 'did you mean "in-context"'),
        (("tiny", "m=0"), "m=0: expected a whole number of at least 1"),
        (("tiny", "m=many"), "m=many"),
        (("tiny", "--tasks", "recal"), 'did you mean "recall"'),
        (("tiny", "--tasks", "recall", "-s", "persistent"), "belongs to suite new-knowledge"),
        (("tiny", "data.tasks.recall.pairs=3"), "was trained on recall"),
        (("tiny", "--shots", "3"), "belong to --suite ruler"),
        (("tiny", "-s", "ruler", "--shots", "3"), "--suite ruler has no such option"),
        (("tiny", "-s", "ruler", "-s", "in-context"), "is measured alone"),
        (("tiny", "-s", "ruler", "--length", "many"), '--length "many"'),
        (("tiny", "-s", "ruler", "--tasks", "qa_3"), "qa_2"),
        (("tiny", "-s", "ruler", "--data", "esay=x"), 'did you mean "essay"'),
        (("tiny", "-s", "ruler", "--position", "swep"), 'did you mean "sweep"'),
        (("tiny", "-s", "classification"), "expects one data set"),
        (("tiny", "training.steps=3"), '"training.steps": mmctl eval takes'),
        (("tiny", "evaluation.exampels=3"), 'did you mean "evaluation.examples"'),
        (("tiny", "evaluation.examples=x"), "evaluation.examples=x"),
        (("tiny", "loose"), '"loose": expected key=value'),
        (("tiny", "--device", "cuda:99"), "cuda:99"),
        (("former", "--remove-long-term"), "no long-term memory"),
        (("former", "m=4"), "no long-term memory"),
        (("tiny", "-s", "attention"), "expected evaluation.attention=N"),
        (("tiny", "-s", "attention", "evaluation.attention=4", "m=4"), "as it was trained, without changes"),
        (("tiny", "--remove-long-term", "evaluation.attention=4"), "as it was trained, without changes"),
        (("tiny", "-s", "in-context", "evaluation.attention=4"), "measured by --suite attention"),
        (("tiny", "--tasks", "icl", "evaluation.attention=4"), "measured by --suite attention"),
        (("tiny", "-s", "ruler", "evaluation.attention=4"), "measured by --suite attention"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(root: Path, arguments: tuple[str, ...], told: str) -> None:
    before = sorted(root.rglob("eval/*"))
    result = CliRunner().invoke(app, [*arguments, "--runs", str(root)])
    assert isinstance(result.exception, MmctlError)
    assert told in str(result.exception)
    assert "\n" not in str(result.exception)
    assert sorted(root.rglob("eval/*")) == before


def test_arguments_are_m_and_evaluation_keys_only() -> None:
    assert split_arguments(["evaluation.seed=3", "m=16"]) == (Changes(delay=16), ["evaluation.seed=3"])
    assert split_arguments([]) == (Changes(), [])
    with pytest.raises(UsageError, match="twice"):
        split_arguments(["m=1", "m=2"])


def test_other_settings_are_marked_and_the_same_ones_are_not() -> None:
    config = quick_config()
    assert settings_mark(config, with_overrides(config, [])) == ""
    assert settings_mark(config, with_overrides(config, ["evaluation.batch_tokens=99"])) == ""
    other = with_overrides(config, ["evaluation.seed=5", "evaluation.lengths=[1,16]"])
    assert settings_mark(config, other) == "+lengths=1-16+seed=5"
    assert with_overrides(config, []) == config
    many = settings_mark(
        config, with_overrides(config, ["evaluation.seed=5", "evaluation.lengths=[1,2,3,4,5,6,7,8,9,10]"])
    )
    assert re.fullmatch(r"\+settings=[0-9a-f]{8}", many)  # a file's name has an end


def test_help_needs_neither_torch_nor_mlflow() -> None:
    code = "import sys, mmctl.cli.evaluate; sys.exit(bool({'torch', 'mlflow', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_scores_reach_mlflow_and_the_runs_state_there_stays(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    from mmctl.cli.evaluate import mirror
    from mmctl.runs import RunFolder
    from mmctl.runs.store import clean_key

    store = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    run("tiny", "--runs", root, "-s", "in-context", "m=4")
    folder = RunFolder.find(root, "tiny")
    config = folder.config()
    mirror(folder, config)
    assert not (tmp_path / "mlflow.db").exists()  # operation.mlflow=false
    config.operation.mlflow = True
    folder.set_state("finished")
    mirror(folder, config)
    client = mlflow.MlflowClient(store)
    experiments = [e.experiment_id for e in client.search_experiments()]
    (tracked,) = client.search_runs(experiments)
    assert tracked.info.status == "FINISHED"
    evaluation = folder.evaluation("in-context+m=4")
    assert evaluation is not None
    assert len(evaluation["scores"]) > 4
    for name, score in evaluation["scores"].items():
        assert tracked.data.metrics[clean_key(f"in-context+m=4/{name}")] == score["value"]


def test_a_run_in_progress_is_left_to_its_own_mirror(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmctl.cli.evaluate import mirror
    from mmctl.runs import RunFolder

    monkeypatch.setattr("mmctl.runs.Mirror.start", lambda *a: pytest.fail("a second mirror was started"))
    folder = RunFolder.find(root, "half")
    config = folder.config()
    config.operation.mlflow = True
    monkeypatch.setattr(folder.__class__, "state", lambda self: "running")
    mirror(folder, config)


def test_m_that_leaves_nothing_to_read_is_no_score(root: Path) -> None:
    length = with_overrides_length(root)
    evaluations = json.loads(run("tiny", "--runs", root, "-s", "in-context", f"m={length}", "--json").stdout)
    scores, skipped = evaluations[0]["scores"], evaluations[0]["skipped"]
    assert "nothing to read" in skipped["icl@1x"]
    assert scores
    assert not any(name.endswith("@1x") for name in scores)
    failed = run("tiny", "--runs", root, "-s", "in-context", "m=1000000", code=1)
    assert isinstance(failed.exception, MmctlError)
    assert "nothing could be measured" in str(failed.exception)
    assert str(failed.exception).count("nothing to read") <= MOST_REASONS
    assert "in-context+m=1000000" not in files(root, "tiny")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("in-contxt", "in-context"), ("ruller", "ruler"), ("atention", "attention"), ("lm_eval", "lm-eval")],
)
def test_a_wrong_suite_is_named_with_the_nearest_of_all_there_are(wrong: str, right: str, root: Path) -> None:
    failed = run("tiny", "--runs", root, "-s", wrong, code=1)
    assert isinstance(failed.exception, UsageError)
    assert str(failed.exception) == f'suite "{wrong}": no such suite; did you mean "{right}"?'


def with_overrides_length(root: Path) -> int:
    from mmctl.runs import RunFolder

    return RunFolder.find(root, "tiny").config().data.length


@pytest.mark.parametrize("device", ["tpu", "cuda:²", "cuda:99", "cuda:-1", ""])
def test_a_device_that_is_not_there_is_not_called_a_damaged_checkpoint(root: Path, device: str) -> None:
    failed = run("tiny", "--runs", root, "--device", device, code=1)
    assert isinstance(failed.exception, UsageError)
    assert f'operation.device="{device}"' in str(failed.exception)


def test_a_finished_run_is_never_measured_on_an_earlier_checkpoint(root: Path, tmp_path: Path) -> None:
    import shutil

    from mmctl.runs import RunFolder

    source = RunFolder.find(root, "tiny").path
    copy = tmp_path / source.parent.name / "seed0"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("eval"))
    (copy / "eval").mkdir()
    folder = RunFolder.open(copy)
    payload = folder.load_checkpoint(3)
    folder.save_checkpoint(4, payload | {"step": 4}, keep=2)
    folder.write_result({"train_loss": 1.0, "steps": 4})
    weights = copy / "checkpoints" / "step_4" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    failed = run(copy, code=1)
    assert "step_4 is damaged" in str(failed.exception)
    assert not list((copy / "eval").iterdir())
    # One that is not finished is measured on what there is, and its file says which step that was.
    (copy / "result.json").unlink()
    evaluation = json.loads(run(copy, "-s", "in-context", "--json").stdout)[0]
    assert evaluation["step"] == 3
    assert [p.stem for p in (copy / "eval").iterdir()] == ["in-context+step=3"]


def test_another_corpus_is_not_taken_for_held_out_text(tmp_path: Path) -> None:
    from mmctl.training.run import execute

    text = tmp_path / "corpus.txt"
    text.write_text("".join(f"line {i} of the corpus\n" for i in range(2000)))
    config = quick_config(
        f"data.text={text}", "data.mixture={text: 1, facts: 1}", "model.layers=1", "training.steps=1",
        "evaluation.examples=2", "evaluation.minimum_examples=2", "evaluation.lengths=[1]", "operation.mlflow=false",
    )  # fmt: skip
    outcome = execute(config, tmp_path / "runs")
    assert outcome.state == "finished", outcome.reason
    kept = (outcome.path / "eval" / "persistent.json").read_bytes()
    text.write_text("".join(f"line {i} of another corpus\n" for i in range(2000)))
    failed = run(outcome.path, code=1)
    assert isinstance(failed.exception, MmctlError)
    assert "not the one it was trained on" in str(failed.exception)
    assert (outcome.path / "eval" / "persistent.json").read_bytes() == kept
    run(outcome.path, "-s", "in-context", "--untrained", "evaluation.examples=3")


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_truncated_configuration_is_not_filled_up_with_defaults(root: Path, tmp_path: Path, cut: int) -> None:
    import shutil

    from mmctl.runs import RunFolder

    source = RunFolder.find(root, "tiny").path
    copy = tmp_path / source.parent.name / "seed0"
    shutil.copytree(source, copy)
    lines = (copy / "config.yaml").read_text().splitlines(keepends=True)
    (copy / "config.yaml").write_text("".join(lines[: len(lines) * cut // 13]))
    failed = run(copy, code=1)
    assert isinstance(failed.exception, MmctlError)
    assert "config.yaml" in str(failed.exception)


def test_untrained_tasks_and_other_settings_keep_files_of_their_own(root: Path, tmp_path: Path) -> None:
    """The run's own evaluation was replaced by one on tasks it was not trained on, and the other way round."""
    import shutil

    source = next(root.glob("tiny-*"))
    shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("eval"))
    run("tiny", "--runs", tmp_path)
    own = {p.stem: p.read_bytes() for p in tmp_path.rglob("eval/*.json")}
    assert set(own) == {"new-knowledge", "in-context"}
    run("tiny", "--runs", tmp_path, "-s", "persistent", "--untrained")
    run("tiny", "--runs", tmp_path, "-s", "new-knowledge", "-s", "in-context", "evaluation.examples=9")
    run("tiny", "--runs", tmp_path, "-s", "persistent", "--remove-long-term", "--untrained")
    marked = files(tmp_path, "tiny") - set(own)
    assert {"persistent+untrained", "persistent+remove-long-term+untrained"} <= marked
    assert sum(stem.endswith("+examples=9") for stem in marked) == 2
    for stem, content in own.items():
        assert next(tmp_path.glob(f"tiny-*/seed0/eval/{stem}.json")).read_bytes() == content


def test_training_again_with_other_settings_adds_an_evaluation_and_both_are_found(tmp_path: Path) -> None:
    from dataclasses import replace

    from mmctl.evaluation import find_evaluation, stem_in
    from mmctl.runs import RunFolder
    from mmctl.sweeps import evaluating, scores
    from mmctl.training.run import execute

    config = quick_config(
        "model.layers=1", "data.mixture={recall: 1}", "training.steps=1", "evaluation.examples=4",
        "evaluation.minimum_examples=4", "evaluation.lengths=[1]", "operation.mlflow=false",
    )  # fmt: skip
    outcome = execute(config, tmp_path)
    assert outcome.state == "finished", outcome.reason
    folder = RunFolder.open(outcome.path)
    first = (folder.path / "eval" / "new-knowledge.json").read_bytes()
    other = replace(config, evaluation=replace(config.evaluation, examples=6))
    assert execute(other, tmp_path).path == folder.path  # the same run
    assert {p.stem for p in (folder.path / "eval").iterdir()} == {"new-knowledge", "new-knowledge+examples=6"}
    assert (folder.path / "eval" / "new-knowledge.json").read_bytes() == first
    assert execute(other, tmp_path).skipped
    assert execute(config, tmp_path).skipped
    for asked, stem, number in ((config, "new-knowledge", 4), (other, "new-knowledge+examples=6", 6)):
        assert stem_in(folder, asked, "new-knowledge") == stem
        found = find_evaluation(folder, asked, "new-knowledge")
        assert found is not None
        assert (found[0], found[1]["settings"]["examples"]) == (stem, number)
        assert evaluating.missing(folder, asked, Changes()) == []
        read = scores.read(folder, asked, Changes())["recall/accuracy@1x"]
        assert (read.source, read.n) == (f"eval/{stem}.json", number)
    third = replace(config, evaluation=replace(config.evaluation, examples=8))
    assert evaluating.missing(folder, third, Changes()) == ["new-knowledge"]


def test_a_finished_run_prints_the_evaluations_asked_for_and_no_others(root: Path, tmp_path: Path) -> None:
    import contextlib
    import io

    from mmctl.cli.train import train
    from mmctl.runs import RunFolder

    words = ["smoke", "data.length=64", "model.layers=1", "data.mixture={recall: 1}", "training.steps=1", "training.warmup=0",
             "evaluation.examples=4", "evaluation.minimum_examples=4", "evaluation.lengths=[1]", "operation.mlflow=false"]  # fmt: skip

    def printed() -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(typer.Exit):
            train(list(words), runs=tmp_path)
        return out.getvalue()

    assert "new-knowledge" in printed()
    folder = next(RunFolder.all(tmp_path))
    evaluation = folder.evaluation("new-knowledge")
    assert evaluation is not None
    folder.write_evaluation("new-knowledge+m=4", evaluation | {"changes": {"remove_long_term": False, "delay": 4}})
    again = printed()
    assert "already finished" in again
    assert again.count("recall/accuracy") == 1
    assert "m = 4" not in again
