"""Equal budgets: arms matched in parameters, FLOPs or tokens, and what is said of what remains."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmctl.errors import UsageError
from mmctl.sweeps import matching, matrix
from mmctl.sweeps.cells import cost
from mmctl.sweeps.plan import Plan, make_plan
from mmctl.sweeps.profiles import PROFILES


def plan(budget: str | None, *names: str) -> Plan:
    found = matrix.find(list(names))
    if budget is not None:
        found = matching.matched(found, budget)
    return make_plan(found, PROFILES["smoke"], budget=budget)


@pytest.mark.parametrize(("budget", "what"), [("params", "parameters"), ("flops", "flops")])
def test_every_arm_costs_what_the_arm_it_is_compared_with_costs(budget: str, what: str) -> None:
    made = plan(budget, "key-extractor", "transformer-masks", "generations")
    lines = matching.misses(made, budget)
    assert len(lines) == len([line for line in lines if f"; {what} " in line]) >= 4
    for found in made.matrices:
        for arm in found.arms:
            if arm.match is not None and arm.match.what == what:
                own, target = (cost(made.cell(found.name, n).config, what) for n in (arm.name, arm.match.of))
                assert own == pytest.approx(target, rel=0.01)
    assert made.command().count(f"--match {budget}") == 1
    assert f"--match {budget}" in made.command("key-extractor")


def test_mamba2_is_matched_by_layers_and_then_by_its_state() -> None:
    made = plan(None, "compression")
    for arm, what in (("mamba2", "parameters"), ("mamba2-flops", "flops")):
        own, target = (cost(made.cell("compression", n).config, what) for n in (arm, "mosaic"))
        assert own == pytest.approx(target, rel=0.005)
    assert (
        made.cell("compression", "mamba2").config.model.layers > made.cell("compression", "mosaic").config.model.layers
    )


def test_longer_training_is_a_multiple_of_the_profiles_steps_and_tokens_take_it_away() -> None:
    made = plan(None, "scale-of-data")
    steps = {arm: made.cell("scale-of-data", arm).config.training.steps for arm in ("transformer", "transformer-8x")}
    assert steps["transformer-8x"] == 8 * steps["transformer"]
    assert made.cell("scale-of-data", "transformer").name != made.cell("scale-of-data", "transformer-8x").name
    equal = plan("tokens", "scale-of-data")
    assert equal.arms["scale-of-data", "transformer"] == equal.arms["scale-of-data", "transformer-8x"]


def test_ablations_only_by_name_are_not_among_the_default_ones() -> None:
    default = {m.name for m in matrix.find([])}
    assert default == {"bandwidth", "key-extractor", "long-term-mask", "long-term-removal", "transformer-masks"}
    assert {"compression", "confounds", "generations", "scale-of-data"} <= set(matrix.shipped()) - default


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ("{name: b, match: {key: model.ffn_width}}", "parameters_of"),
        ("{name: b, match: {parameters_of: a, flops_of: a, key: model.ffn_width}}", "flops_of"),
        ("{name: b, match: {flops_of: c, key: model.ffn_width}}", "flops_of"),
        ("{name: b, times: {training.steps: 1}}", "times.training.steps: 1|times.training.steps"),
        ("{name: b, times: {training.stps: 2}}", "training.steps"),
        ("{name: b, times: {training.learning_rate: 2}}", "no whole number"),
    ],
)
def test_a_wrong_match_or_multiple_is_named(tmp_path: Path, arm: str, words: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"name: own\nquestion: Why?\nbaseline: {{}}\narms:\n  - {{name: a}}\n  - {arm}\n")
    with pytest.raises(UsageError, match=words) as error:
        make_plan(matrix.find([str(path)]), PROFILES["smoke"])
    assert "own" in str(error.value)


def test_an_unknown_budget_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"--match param: expected one of params, flops, tokens"):
        matching.matched(matrix.find(["bandwidth"]), "param")


def test_what_an_ablation_varies_is_not_matched_away() -> None:
    forget = matrix.find(["forget"])
    with pytest.raises(UsageError, match=r"--match: forget/n8-t32 sets model\.state itself"):
        matching.matched(forget, "params")
    assert matching.matched(forget, "tokens")[0].arms == forget[0].arms
