"""Fine-tuning as an evaluation-time change: what it trains on, that it is put back, that more steps go on from fewer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmctl import models
from mmctl.config import load
from mmctl.data.mixture import Mixture
from mmctl.errors import MmctlError, UsageError
from mmctl.evaluation import evaluate
from mmctl.evaluation.changes import Changes, make
from mmctl.evaluation.scoring import examples
from mmctl.training import fine_tuning
from mmctl.training.fine_tuning import FineTuning, fine_tune

torch.set_num_threads(1)


def config(name: str = "mosaic-v2", **words: Any) -> Any:
    typed = {
        "model.name": name, "model.layers": 1, "model.width": 16, "model.heads": 2, "model.ffn_width": 16,
        "data.length": 48, "data.batch": 8, "data.mixture": "{recall: 1, icl: 1}", "training.precision": "float32",
        "evaluation.lengths": "[1,2]", "evaluation.examples": 4, "evaluation.minimum_examples": 2,
        "evaluation.resamples": 100, "operation.device": "cpu", **words,
    }  # fmt: skip
    if name in ("mamba2", "mosaic-v1"):
        del typed["model.ffn_width"]
    return load("smoke", [f"{key}={value}" for key, value in typed.items()])


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(some: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in some.items())


def test_weights_are_changed_inside_and_bitwise_put_back() -> None:
    c = config()
    model = models.build(c).eval()
    before, asked = weights(model), FineTuning(steps=2, length=2)
    with asked.applied(model, c) as notes:
        inside = weights(model)
        assert not model.training
        assert all(p.grad is None for p in model.parameters())
    assert not same(before, inside)
    assert same(before, weights(model))
    told = notes()  # type: ignore[misc]
    assert told["length"] == 96
    assert told["batch"] == 4  # as many tokens as a training step has
    assert told["tokens"] == 2 * 4 * 96
    assert told["learning_rate"] == pytest.approx(0.1 * c.training.learning_rate)
    with pytest.raises(KeyError), asked.applied(model, c):
        raise KeyError
    assert same(before, weights(model))


def test_it_is_deterministic_and_more_steps_go_on_from_fewer() -> None:
    c = config()
    made = []
    for steps in (1, 3, 3):
        model = models.build(c)
        made.append((fine_tune(model, c, FineTuning(steps=steps, length=2)), weights(model)))
    assert made[0][0]["losses"] == made[1][0]["losses"][:1]
    assert made[1][0]["losses"] == made[2][0]["losses"]
    assert same(made[1][1], made[2][1])
    model = models.build(c)
    assert fine_tune(model, c, FineTuning(steps=1, length=2, seed=1))["losses"] != made[0][0]["losses"]


def test_a_model_with_dropout_is_tuned_with_it_and_read_without() -> None:
    made = []
    for rate in (0.0, 0.5):
        c = config("mosaic-v1", **{"model.dropout": rate, "model.persistent_slots": 8})
        model = models.build(c)
        made.append(fine_tune(model, c, FineTuning(steps=2, length=2))["losses"])
        assert model.noise is None
    assert made[0] != made[1]


def test_it_is_made_once_for_the_suites_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    c, calls = config(), []
    original = fine_tuning.fine_tune
    monkeypatch.setattr(fine_tuning, "fine_tune", lambda *a: calls.append(a[2].steps) or original(*a))
    model = models.build(c)
    found = []
    for asked in (FineTuning(steps=2), FineTuning(steps=2), FineTuning(steps=1), FineTuning(steps=2)):
        with asked.applied(model, c):
            found.append(weights(model))
    assert calls == [2, 1, 2]
    assert same(found[0], found[1])
    assert same(found[0], found[3])
    with torch.no_grad():
        next(model.parameters()).add_(1)  # another model than before: nothing known is right for it
    with FineTuning(steps=2).applied(model, c):
        assert calls == [2, 1, 2, 2]


@pytest.mark.parametrize("name", ["mosaic-v2", "transformer", "mamba2"])
def test_scores_are_those_of_a_model_trained_on(name: str) -> None:
    """Inside an evaluation, at every multiple; the same as of a model that was fine-tuned by hand, and the loss it is
    trained on falls."""
    c = config(name)
    model = models.build(c).eval()
    changes = Changes.of({"fine_tuning": {"steps": 12, "length": 2, "rate": 1.0}})
    plain, tuned = (evaluate(model, c, "in-context", changes=changed) for changed in (Changes(), changes))
    assert {"icl/loss@1x", "icl/loss@2x"} <= set(tuned["scores"])
    assert tuned["scores"]["icl/loss@2x"]["value"] < plain["scores"]["icl/loss@2x"]["value"]
    fine_tune(model, c, make("fine_tuning", {"steps": 12, "length": 2, "rate": 1.0}))  # type: ignore[arg-type]
    assert evaluate(model, c, "in-context")["scores"] == tuned["scores"]
    assert len(tuned["change_notes"]["fine_tuning"]["losses"]) == 12


def test_what_it_trains_on_is_neither_evaluated_nor_trained_on_before(monkeypatch: pytest.MonkeyPatch) -> None:
    c = config(**{"data.tasks.facts.facts": 20})
    seen: list[Any] = []
    original = Mixture.batch

    def batch(self: Mixture, step: int, split: Any = "train") -> Any:
        made = original(self, step, split)
        seen.append((split, made))
        return made

    monkeypatch.setattr(Mixture, "batch", batch)
    fine_tune(models.build(c), c, FineTuning(steps=3, length=2))
    assert [split for split, _ in seen] == ["train"] * 3
    rows = {tuple(row) for _, made in seen for row in made.tokens[:, :40].tolist()}
    assert len(rows) == 12
    tasks = Mixture(c.data, c.seed).tasks
    held = {tuple(r[:40]) for t in tasks for b in examples(t, 96, 0, 64) for r in b.tokens.tolist()}
    trained = {tuple(r[:40]) for step in range(1, 9) for r in original(Mixture(c.data, c.seed), step).tokens.tolist()}
    assert not rows & held
    assert not rows & trained


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "fine_tuning.steps=0: expected a whole number of at least 1"),
        ({"length": 0}, "fine_tuning.length=0"),
        ({"batch": -1}, "fine_tuning.batch=-1"),
        ({"seed": -1}, "fine_tuning.seed=-1"),
        ({"rate": 0.0}, "fine_tuning.rate=0.0: expected a finite number above 0"),
        ({"rate": float("inf")}, "fine_tuning.rate=inf"),
    ],
)
def test_what_cannot_be_is_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        FineTuning(**settings).check(config())
    assert str(error.value).startswith(words)


def test_a_length_that_the_corpus_cannot_give_is_said(tmp_path: Any) -> None:
    (tmp_path / "short.txt").write_text("a few words\n" * 100)
    c = config(**{"data.mixture": "{text: 1}", "data.text": tmp_path / "short.txt"})
    FineTuning(length=2).check(c)
    with pytest.raises(
        UsageError, match=r"fine_tuning\.length=100: expected at most \d+ \(\d+ x 48 tokens\): "
    ) as error:
        FineTuning(length=100).check(c)
    longest = int(str(error.value).partition("at most ")[2].partition(" ")[0])
    assert longest > 1
    FineTuning(length=longest).check(c)
    Mixture(FineTuning(length=longest).data(c), 0)  # what is said to be possible is
    for length in (longest + 1, 10**12):
        with pytest.raises(UsageError, match=rf"fine_tuning\.length={length}: expected at most {longest} "):
            FineTuning(length=length).check(c)


def test_where_no_length_is_possible_none_is_named(tmp_path: Any) -> None:
    c = config(**{"data.mixture": "{text: 1}", "data.text": tmp_path / "short.txt"})
    (tmp_path / "short.txt").write_text("a few words\n" * 8)
    with pytest.raises(UsageError, match=r"fine_tuning\.length=8: (?!expected)"):
        FineTuning().check(c)


def test_divergence_is_one_line_and_the_weights_come_back() -> None:
    c = config()
    model = models.build(c)
    before = weights(model)
    with (
        pytest.raises(MmctlError, match=r"fine_tuning: the (loss|gradient) is not finite at step"),
        FineTuning(steps=40, length=2, rate=1e30).applied(model, c),
    ):
        pass
    assert same(before, weights(model))
