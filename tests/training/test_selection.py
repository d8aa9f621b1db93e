"""Choosing the checkpoint on validation sequences: the best weights, the same after a kill, and never by a reported
number."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_overrides

from mmctl.config import Config, identity, load
from mmctl.data.mixture import Mixture
from mmctl.errors import MmctlError, UsageError
from mmctl.evaluation import find_evaluation
from mmctl.evaluation.scoring import evaluate, examples
from mmctl.runs import RunFolder, clean
from mmctl.training import selection as selecting
from mmctl.training import work
from mmctl.training.ranks import ALONE, Interrupted
from mmctl.training.run import execute, load_trained
from mmctl.training.selection import Selection

SELECT = ["training.select=recall/loss", "training.select_every=2", "training.select_examples=8"]
CPU = torch.device("cpu")


def tiny_selecting(*extra: str) -> Config:
    typed = {word.partition("=")[0] for word in extra}
    return load("smoke", [*(w for w in [*tiny_overrides(), *SELECT] if w.partition("=")[0] not in typed), *extra])


def rigged(monkeypatch: pytest.MonkeyPatch, by_step: dict[int, float], accuracy: bool = True) -> dict[int, Any]:
    """Validation that says what `by_step` does; the weights of each step it was asked about."""
    seen: dict[int, Any] = {}

    class Rigged(Selection):
        def validate(self, step: int, model: Any, *rest: Any) -> dict[str, float]:
            seen[step] = {k: v.clone() for k, v in model.state_dict().items()}
            self.now = step
            return super().validate(step, model, *rest)

        def _measure(self, model: Any, device: Any) -> Any:
            from mmctl.data.task import Ratio

            return Ratio(np.array([by_step[self.now]]), np.array([1]), accuracy)

    monkeypatch.setattr("mmctl.training.loop.Selection", Rigged)
    return seen


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize(
    ("scores", "accuracy", "best", "reached"),
    [
        ({2: 0.1, 4: 0.6, 6: 0.9, 8: 0.9, 10: 0.2, 12: 0.3}, True, 6, 4),
        ({2: 3.0, 4: 0.4, 6: 2.0, 8: 0.3, 10: 0.3, 12: 0.9}, False, 8, 4),
        ({2: float("nan"), 4: 0.1, 6: 0.2, 8: float("inf"), 10: 0.0, 12: 0.1}, True, 6, None),
    ],
    ids=["accuracy", "loss", "not-finite"],
)
def test_the_best_weights_are_kept_evaluated_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: dict, accuracy: bool, best: int, reached: int | None
) -> None:
    seen = rigged(monkeypatch, scores, accuracy)
    config = tiny_selecting("training.select_target=0.5")
    outcome = execute(config, tmp_path)
    assert outcome.state == "finished", outcome.reason
    run = RunFolder.open(outcome.path)
    result = run.result()
    assert result["selected"] == {"by": "recall/loss", "step": best, "score": scores[best], "reached": reached}
    assert result["diagnostics"]["selected-step"] == best
    assert result["diagnostics"]["validation-score"] == scores[best]
    assert result["diagnostics"].get("steps-to-target") == reached
    assert result["steps"] == 12
    model, _, step = load_trained(run)
    assert step == best
    assert same(model.state_dict(), seen[best])
    assert not same(model.state_dict(), seen[12])
    last, _, step = load_trained(run, step=12)
    assert step == 12
    assert same(last.state_dict(), seen[12])
    reported = find_evaluation(run, config, "new-knowledge")
    assert reported is not None
    again = evaluate(model, config, "new-knowledge")
    assert reported[1]["scores"]["recall/loss@1x"]["value"] == again["scores"]["recall/loss@1x"]["value"]
    validated = {row["step"]: row["validation/recall/loss"] for row in run.metrics() if "validation/recall/loss" in row}
    assert validated == pytest.approx(scores, nan_ok=True)


def test_training_ends_at_the_target_and_a_restart_goes_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigged(monkeypatch, {2: 0.1, 4: 0.8, 6: 0.9})
    config = tiny_selecting("training.select_target=0.5", "training.select_stop=true")
    monkeypatch.setattr(work, "evaluate", _killed)
    stopped = execute(config, tmp_path)
    assert stopped.state == "interrupted"
    run = RunFolder.open(stopped.path)
    assert run.checkpoint_steps()[-1] == 4
    monkeypatch.undo()
    outcome = execute(config, tmp_path)
    assert outcome.state == "finished", outcome.reason
    result = run.result()
    assert result["steps"] == 4
    assert result["tokens"] == 4 * 4 * 32
    assert result["selected"]["reached"] == 4
    assert "train_loss" not in result  # there was no last tenth
    assert load_trained(run)[2] == 4


@pytest.mark.parametrize(("stop", "ended"), [("true", 4), ("false", 12)])
def test_while_a_run_is_evaluated_its_status_has_the_step_it_ended_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str, ended: int
) -> None:
    rigged(monkeypatch, {2: 0.1, 4: 0.8, 6: 0.9, 8: 0.9, 10: 0.9, 12: 0.9})
    config = tiny_selecting("training.select_target=0.5", f"training.select_stop={stop}")
    monkeypatch.setattr(work, "BEAT", 0.01)
    monkeypatch.setattr("mmctl.runs.folder.HEARTBEAT_EVERY", 0.0)
    shown = []

    def slow(*arguments: Any, **settings: Any) -> Any:
        time.sleep(0.2)
        run = RunFolder.locate(tmp_path, config)
        assert run is not None
        shown.append(run.status["step"])
        return evaluate(*arguments, **settings)

    monkeypatch.setattr("mmctl.evaluation.evaluate", slow)
    run = RunFolder.open(execute(config, tmp_path).path)
    for path in (run.path / "eval").glob("*.json"):
        path.unlink()
    assert not execute(config, tmp_path).skipped  # of a finished run, too
    assert len(shown) >= 2
    assert set(shown) == {ended}


def test_what_frees_disk_leaves_the_best_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = rigged(monkeypatch, {2: 0.1, 4: 0.9, 6: 0.2, 8: 0.3, 10: 0.2, 12: 0.3})
    run = RunFolder.open(execute(tiny_selecting("operation.keep=3"), tmp_path).path)
    assert len(run.checkpoint_steps()) == 3
    items = list(clean.find(tmp_path, [run]))
    assert {item.kind for item in items} >= {"checkpoint"}
    assert not clean.delete(items, tmp_path).left
    assert run.checkpoint_steps() == [12]
    model, _, step = load_trained(run)
    assert step == 4
    assert same(model.state_dict(), seen[4])


def _killed(*_: Any, **__: Any) -> None:
    raise Interrupted(15)


def test_interrupted_anywhere_and_resumed_it_chooses_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    v1 = ("model.ffn_width", "model.window", "model.delay_min", "model.delay_max")
    words = [w for w in tiny_overrides() if not w.startswith(v1)]
    config = load("smoke", [*words, *SELECT, "model.name=mosaic-v1", "model.dropout=0.2"])
    assert execute(config, tmp_path / "undisturbed").state == "finished"
    whole = _state(tmp_path / "undisturbed")
    signal = type(ALONE).signal
    for stop in (1, 2, 5, 11):
        root = tmp_path / str(stop)
        answers = [*[None] * (stop - 1), 15]
        monkeypatch.setattr(type(ALONE), "signal", lambda self, received, answers=answers: answers.pop(0))
        assert execute(config, root).state == "interrupted"
        monkeypatch.setattr(type(ALONE), "signal", signal)
        assert execute(config, root).state == "finished"
        assert _state(root) == whole


def _state(root: Path) -> tuple[list[str], list[dict], dict]:
    (path,) = root.glob("*/seed*")
    run = RunFolder.open(path)
    place = run.checkpoints / f"step_{run.latest_checkpoint()}"
    weights = [hashlib.sha256((place / f"{g}.safetensors").read_bytes()).hexdigest() for g in ("model", "best")]
    rows = [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in run.metrics()]
    return weights, rows, {k: v for k, v in run.result().items() if k != "seconds"}


def test_validation_sequences_are_neither_trained_on_nor_reported() -> None:
    config = tiny_selecting("data.mixture={recall: 1}", "training.select_examples=64")
    validation = {row.tobytes() for b in Selection(config).batches for row in b.tokens}
    assert len(validation) == 64
    mixture = Mixture(config.data, config.seed)
    trained = {row.tobytes() for step in range(1, 13) for row in mixture.batch(step).tokens}
    held_out = {row.tobytes() for step in range(4) for row in mixture.batch(step, split="held-out").tokens}
    reported = {
        row.tobytes() for seed in range(4) for b in examples(Selection(config).task, 32, seed, 64) for row in b.tokens
    }
    assert not validation & (trained | held_out | reported)
    other = {
        row.tobytes()
        for b in Selection(tiny_selecting("data.mixture={recall: 1}", "seed=1")).batches
        for row in b.tokens
    }
    assert not validation & other


def test_regbench_is_validated_on_automata_that_training_does_not_have() -> None:
    config = load("regbench", ["data.length=200", "training.select_examples=32", "training.precision=float32"])
    trained = {row[:100].tobytes() for step in range(1, 20) for row in Mixture(config.data, 0).batch(step).tokens}
    assert len(trained) <= 100
    assert not trained & {row[:100].tobytes() for b in Selection(config).batches for row in b.tokens}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["training.select=recal/accuracy"], 'did you mean "recall"'),
        (["training.select=recall/accurac"], 'did you mean "accuracy"'),
        (["training.select=recall"], "no such score"),
        (["training.select=icl/accuracy"], "of a task in data.mixture"),
        (["training.select=facts/accuracy"], "afresh"),
        (["training.select=null", "training.select_target=0.9"], "is for training.select"),
        (["training.select_stop=true"], "select_target to stop at"),
        (["training.select_target=.nan"], "finite"),
        (["training.select_every=0"], "at least 1"),
    ],
)
def test_what_cannot_be_selected_by_is_said_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        tiny_selecting(*words)
    assert said in str(raised.value), raised.value
    assert "\n" not in str(raised.value)


def test_a_score_that_no_validation_sequence_has_is_an_error_not_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmctl import models

    config = tiny_selecting()
    chosen, model = Selection(config), models.build(config)
    for batch in chosen.batches:
        batch.targets[:] = -100
    with pytest.raises(MmctlError, match="none of the 8 validation sequences"):
        chosen.validate(2, model, CPU)


def test_selecting_is_part_of_the_identity_and_not_selecting_is_not() -> None:
    plain = load("smoke", tiny_overrides())
    assert identity(load("smoke", [*tiny_overrides(), "training.select=null", "training.select_every=25"])) == identity(
        plain
    )
    found = {identity(c) for c in (plain, tiny_selecting(), tiny_selecting("training.select_every=3"))}
    assert len(found) == 3


def test_diagnostics_of_a_run_that_chose_nothing_are_none() -> None:
    assert selecting.diagnostics({"steps": 3}) == {}
