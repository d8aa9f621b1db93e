"""Forgetting: the definitions against numbers made by hand, and the evaluation-time change on a model."""

from __future__ import annotations

import pytest
import torch

from mmctl import models
from mmctl.config import load
from mmctl.errors import UsageError
from mmctl.evaluation import evaluate
from mmctl.evaluation.changes import Changes, make
from mmctl.evaluation.forgetting_rules import forget_threshold, line, ratio, recall_threshold

SMALL = ["model.name=mamba2", "model.layers=1", "model.width=16", "model.heads=2", "model.state=4", "data.length=16"]
SMALL += ["data.mixture={stream: 1}", "training.precision=float32", "evaluation.examples=4"]
SMALL += ["evaluation.minimum_examples=4", "evaluation.lengths=[1, 4]"]


def test_ratio_compares_the_largest_losses() -> None:
    assert ratio([0.1, 0.5, 0.2], [0.4, 1.5]) == pytest.approx(3)
    assert ratio([0.5], [0.1]) == pytest.approx(0.2)
    assert ratio([], [1.0]) is None
    assert ratio([1.0], []) is None
    assert ratio([0.0, 0.0], [1.0]) is None


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(2.0, 32), (1.5, 64), (1.0, None), (5.0, 16)],
)
def test_threshold_is_the_smallest_length_within_the_rule(rule: float, expected: int | None) -> None:
    assert forget_threshold({64: 1.1, 16: 3.0, 32: 2.0}, rule) == expected


def test_recall_threshold_ends_at_the_first_context_that_fails() -> None:
    assert recall_threshold({16: 1.0, 32: 0.96, 64: 0.95, 128: 1.0}) == 32  # 95% is not above 95%
    assert recall_threshold({16: 0.9, 32: 1.0}) is None
    assert recall_threshold({}) is None


def test_line_by_least_squares() -> None:
    exact = line([1, 2, 4], [7, 9, 13])
    assert exact is not None
    assert (exact.slope, exact.intercept, exact.r2) == pytest.approx((2, 5, 1))
    rough = line([0, 1, 2], [0, 3, 0])
    assert rough is not None
    assert (rough.slope, rough.intercept, rough.r2) == pytest.approx((0, 1, 0), abs=1e-12)
    flat = line([1, 2, 3], [16, 16, 16])
    assert flat is not None
    assert flat.slope == pytest.approx(0, abs=1e-12)
    assert flat.r2 is None
    assert line([1, 2], [1, 2]) is None
    assert line([1, 1, 1], [1, 2, 3]) is None


def test_the_change_forgets_and_leaves_the_weights_as_they_were() -> None:
    config = load("smoke", SMALL)
    model = models.build(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plain = evaluate(model, config, "new-knowledge")["scores"]
    for settings in ({"window": 4}, {"decay": 0.5}, {"insert": 0.1}):
        changes = Changes.of({"forgetting": settings})
        changes.check(config)
        found = evaluate(model, config, "new-knowledge", changes=changes)
        assert found["changes"]["forgetting"] == {"window": None, "decay": 1.0, "insert": 1.0, **settings}
        assert found["scores"]["stream/loss@4x"]["value"] != plain["stream/loss@4x"]["value"]
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert evaluate(model, config, "new-knowledge")["scores"] == plain  # and undone
    wide = evaluate(model, config, "new-knowledge", changes=Changes.of({"forgetting": {"window": 64}}))
    for name, score in plain.items():  # a window over the whole sequence forgets nothing
        assert wide["scores"][name]["value"] == pytest.approx(score["value"], abs=1e-6)


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        ([], {}, "forgetting: changes nothing: give window, decay or insert"),
        ([], {"window": 0}, "forgetting.window=0: expected at least 1"),
        ([], {"decay": 1.5}, r"forgetting.decay=1\.5: expected a factor in \(0, 1\]"),
        ([], {"insert": 0.0}, r"forgetting.insert=0\.0: expected a factor above 0"),
        (["model.name=transformer"], {"window": 4}, 'model "transformer" has no state to forget: expected mamba2'),
    ],
)
def test_what_cannot_be_changed_is_refused_before_training(
    words: list[str], settings: dict[str, object], message: str
) -> None:
    given = [w for w in SMALL if not words or not w.startswith("model.")]
    with pytest.raises(UsageError, match=message):
        make("forgetting", settings).check(load("smoke", [*given, *words]))
