"""The forget ablation's numbers made across arms: thresholds, their line, and claims about them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmctl.errors import UsageError
from mmctl.sweeps import matrix, plan, profiles
from mmctl.sweeps.forget_threshold import ForgetThreshold
from mmctl.sweeps.reporting import numbers, words
from mmctl.sweeps.reporting.across import across_blocks
from mmctl.sweeps.scores import Number


def model(length: int, state: int | None) -> Any:
    sized = SimpleNamespace() if state is None else SimpleNamespace(state_size=state)
    return SimpleNamespace(model=sized, data=SimpleNamespace(length=length, tasks_in_mixture=lambda: ["stream"]))


def measured(inside: float, beyond: float, passkeys: dict[int, float] | None = None) -> dict[str, Number]:
    """Parts 1 to 4 lie within the training length; at 2x, 5 and 6 lie beyond it."""
    made = {f"stream/loss-part{n}@1x": inside / (5 - n) for n in (2, 3, 4)}
    made |= {f"stream/loss-part{n}@2x": 100.0 for n in (1, 2, 3, 4)}  # within, but of longer sequences: not read
    made |= {"stream/loss-part5@2x": beyond / 2, "stream/loss-part6@2x": beyond, "stream/loss@2x": 50.0}
    made |= {f"stream/accuracy-passkey@{k}x": v for k, v in (passkeys or {}).items()}
    return {name: Number(value, "eval") for name, value in made.items()}


FAMILIES = {f"n{n}": (f"n{n}-t16", f"n{n}-t32", f"n{n}-t64") for n in (1, 2, 4)}
CONFIGS = {f"n{n}-t{t}": model(t, 1000 * n) for n in (1, 2, 4) for t in (16, 32, 64)}


def test_thresholds_and_the_line_through_them() -> None:
    """Thresholds 16, 32 and 64 for 1, 2 and 4 thousand numbers: a line of slope 16 through 0."""
    scores = {
        f"n{n}-t{t}": measured(0.5, 0.5 if t >= 16 * n else 1.2, {1: 0.99, 2: 0.96 if n == 4 else 0.5})
        for n in (1, 2, 4)
        for t in (16, 32, 64)
    }
    scores["n1-t16"] = measured(0.5, 0.9)  # 1.8 times: robust by the first rule alone
    made = ForgetThreshold(FAMILIES, "line")(scores, CONFIGS)
    value = {name: {k.removeprefix("across:"): v.value for k, v in own.items()} for name, own in made.items()}
    assert [value[f"n{n}"]["threshold-2x"] for n in (1, 2, 4)] == [16, 32, 64]
    assert [value[f"n{n}"]["threshold-1.5x"] for n in (1, 2, 4)] == [32, 32, 64]
    assert value["n2"]["ratio-t16"] == pytest.approx(2.4)
    assert value["n2"]["ratio-t32"] == pytest.approx(1)
    assert [value[f"n{n}"]["state"] for n in (1, 2, 4)] == [1, 2, 4]
    assert [value[f"n{n}"]["recall-threshold"] for n in (1, 2, 4)] == [64, 64, 128]
    line = value["line"]
    assert (line["slope-2x"], line["intercept-2x"], line["r2-2x"], line["points-2x"]) == pytest.approx((16, 0, 1, 3))
    assert line["r2-1.5x"] < 1
    entry = ForgetThreshold(FAMILIES, "line")
    for name, own in made.items():
        assert set(own) <= set(entry.metrics(name, CONFIGS))


def test_a_threshold_above_the_largest_tried_is_said_and_not_fitted() -> None:
    scores = {arm: measured(0.5, 3.0 if arm.startswith("n4") else 0.5) for arm in CONFIGS}
    made = ForgetThreshold(FAMILIES, "line")(scores, CONFIGS)
    assert made["n4"]["across:above-2x"].value == 64
    assert "across:threshold-2x" not in made["n4"]
    assert "across:recall-threshold" not in made["n4"]
    assert made["line"]["across:points-2x"].value == 2
    assert "across:slope-2x" not in made["line"]


def test_models_without_a_state_and_arms_left_out() -> None:
    families = {"n1": FAMILIES["n1"], "pairs": ("p-t16", "p-t32")}
    configs = {**CONFIGS, "p-t16": model(16, None), "p-t32": model(32, None)}
    scores = {"p-t16": measured(1, 5), "p-t32": measured(1, 1), "n1-t16": measured(1, 1)}
    made = ForgetThreshold(families, "line")(scores, configs)
    assert made["pairs"]["across:threshold-2x"].value == 32
    assert "across:state" not in made["pairs"]
    assert made["line"]["across:points-2x"].value == 0
    assert "n1" not in made  # two of its models are missing


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n1-t32": model(32, 999)}, "families.n1: .* expected models of one state size"),
        ({"n1-t32": model(16, 1000)}, "families.n1: .* a training length of its own"),
    ],
)
def test_families_that_are_none(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ForgetThreshold(FAMILIES, "line").check({**CONFIGS, **change})


def small(tmp_path: Path, replace: dict[str, str]) -> Any:
    """A matrix of three arms with an `across` entry, planned."""
    text = """
name: small
question: q
baseline:
  set: {model.name: mamba2, data.mixture: {stream: 1}, evaluation.lengths: [1, 16]}
arms:
  - {name: a, set: {data.length: 16}}
  - {name: b, set: {data.length: 32}}
across:
  - {function: forget-threshold, families: {n: [a, b]}, fit: line}
claims:
  - {id: c, statement: s, metric: "across:slope-2x", treatment: line, expected: greater}
"""
    for old, new in replace.items():
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "small.yaml"
    file.write_text(text)
    return plan.make_plan([matrix.load(file)], profiles.profile("smoke"), ["operation.mlflow=false"])


def test_an_ablation_chooses_its_lengths_and_claims_what_is_made_across(tmp_path: Path) -> None:
    made = small(tmp_path, {})
    assert [cell.config.evaluation.lengths for cell in made.cells.values()] == [[1, 16]] * 2
    claim = json.loads(json.dumps(made.matrices[0].claims[0].__dict__))
    assert words.compared(claim) == " of line, expected > 0."


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        ({"across:slope-2x": "across:slop-2x"}, 'across:slop-2x": no such number of line; did you mean "across:slope-2x"'),
        ({"treatment: line": "treatment: n"}, 'across:slope-2x": no such number of n'),
        ({"[a, b]": "[a, c]"}, r'across\[0\]\.families\.n\[1\]: "c"'),
        ({"data.length: 32": "data.length: 16, model.state: 32"}, "families.n: a, b: expected models of one state size"),
        ({"fit: line": "fit: a"}, '"a" stands there twice'),
        ({"forget-threshold": "forget"}, 'function: "forget": expected one of'),
        ({"evaluation.lengths": "evaluation.seed"}, '"evaluation.seed" is not the ablation\'s to set'),
        ({"expected: greater": "expected: no-effect"}, "control: is missing"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path: Path, replace: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        small(tmp_path, replace)


def test_two_ablations_that_score_one_run_differently_are_refused(tmp_path: Path) -> None:
    first = small(tmp_path, {}).matrices[0]
    (tmp_path / "other").mkdir()
    second = small(tmp_path / "other", {"name: small": "name: other", "[1, 16]": "[1, 8]"}).matrices[0]
    with pytest.raises(UsageError, match="other/a: scored at other lengths than small/a"):
        plan.make_plan([first, second], profiles.profile("smoke"), ["operation.mlflow=false"])


def test_report_and_numbers_show_what_is_made_across() -> None:
    score = {"mean": 16.0, "sd": 2.0, "interval": [11.0, 21.0], "n": 3, "unit": "", "source": "forget-threshold"}
    score |= {"chance": None, "seeds": {"0": {"value": 14.0, "examples": None, "interval": None}}}
    entry = {"function": "forget-threshold", "about": "thresholds", "arms": {"n": {"of": ["a"], "scores": {}}}}
    entry["arms"]["line"] = {"of": ["a"], "scores": {"across:slope-2x": score}}  # type: ignore[index]
    ablation = {"name": "forget", "arms": [], "claims": [], "across": [entry]}
    heading, said, table = across_blocks(ablation)
    assert (heading.text, said.text) == ("Across arms", "Thresholds.")  # type: ignore[union-attr]
    assert [row[1:] for row in table.rows] == [
        ["missing", "missing", "0"],
        ["slope-2x", "16.0000 ± 2.0000 [11.0000, 21.0000] tokens per thousand numbers of state", "3"],
    ]  # type: ignore[union-attr]
    rows = numbers.numbers_csv({"ablations": [ablation]}).splitlines()
    assert rows[1].startswith("seed,forget,line,,0,across:slope-2x,,14.0,")
    assert rows[2].startswith("mean,forget,line,,,across:slope-2x,,16.0,11.0,21.0,3,")
