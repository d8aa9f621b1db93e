"""Numbers made across arms: curves at equal cost, their entries in a matrix, and claims about them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from mmctl.errors import UsageError
from mmctl.sweeps import across
from mmctl.sweeps.equal_cost import EqualCost, together, weights_between
from mmctl.sweeps.matrix import load, shipped
from mmctl.sweeps.scores import Number

SCORE = "recall/accuracy@1x"


def one(value: float, parameters: float, flops: float = 1.0) -> dict[str, Number]:
    return {
        SCORE: Number(value, "eval", chance=0.25),
        "parameters": Number(parameters, "result.json"),
        "flops_per_token/executed": Number(flops, "result.json"),
        "seconds": Number(3.0, "result.json"),
    }


def test_mean_of_lines_between_two_costs() -> None:
    assert weights_between([0, 1, 3], 0, 3) @ [0, 1, 5] == pytest.approx((0.5 + 2 * 3) / 3)
    assert weights_between([0, 1, 3], 0.5, 2) @ [0, 1, 5] == pytest.approx((0.5 * 0.75 + 1 * 2) / 1.5)
    assert weights_between([0, 2], 1, 2) @ [4, 4] == pytest.approx(4)
    assert weights_between([0, 1, 2, 3], 1, 2)[[0, 3]] == pytest.approx([0, 0])  # sizes beyond the range


def test_the_examples_error_is_kept() -> None:
    """Two sizes halfway between: as one arm that is right where either is, by half; the same examples, so paired."""
    from mmctl.sweeps.examples import sampling

    ones = [1] * 400  # enough that no floor under the error is met
    right = [{"correct": [1, 0, 1, 0] * 100, "total": ones}, {"correct": [1, 1, 0, 0] * 100, "total": ones}]
    numbers = [Number(0.5, "e", 4, examples=examples) for examples in right]
    found = together(np.array([0.5, 0.5]), numbers)
    assert found == {"correct": [1.0, 0.5, 0.5, 0.0] * 100, "total": ones}
    assert sampling([found]) == sampling([{"correct": [2, 1, 1, 0] * 100, "total": [2] * 400}])
    assert together(np.array([0.5, 0.5]), [numbers[0], Number(0.5, "e")]) is None
    other = Number(0.5, "e", 4, examples={"correct": [1, 1, 0, 0] * 100, "total": [1, 1, 1, 2] * 100})
    assert together(np.array([0.5, 0.5]), [numbers[0], other]) is None


def test_families_are_read_over_the_costs_they_share() -> None:
    """b costs twice what a does at each size: only the two costs in the middle are shared."""
    made = EqualCost("parameters", {"a": ("a1", "a2", "a3"), "b": ("b1", "b2", "b3")})
    scores = {f"a{i}": one(0.1 * i, 10 * 2**i) for i in (1, 2, 3)} | {
        f"b{i}": one(0.1 * i, 20 * 2**i) for i in (1, 2, 3)
    }
    found = made(scores)
    assert found["a"][SCORE].value == pytest.approx(0.25)  # from 0.2 at 40 to 0.3 at 80
    assert found["b"][SCORE].value == pytest.approx(0.15)  # from 0.1 at 40 to 0.2 at 80
    assert found["a"][SCORE].chance == 0.25
    assert set(found["a"]) == {SCORE}  # parameters and seconds are of single runs
    # Halfway in the logarithm between two sizes is their mean.
    middle = {"a1": one(0.0, 10), "a2": one(1.0, 1000), "b1": one(0.5, 100), "b2": one(0.5, 100_000)}
    found = EqualCost("parameters", {"a": ("a1", "a2"), "b": ("b1", "b2")})(middle)
    assert found["a"][SCORE].value == pytest.approx(0.75)


def test_the_order_of_sizes_and_the_other_cost_do_not_matter() -> None:
    scores = {"a1": one(0.1, 10, 5), "a2": one(0.9, 20, 50), "b1": one(0.4, 1, 5), "b2": one(0.6, 2, 50)}
    for arms in (("a1", "a2"), ("a2", "a1")):
        found = EqualCost("flops", {"a": arms, "b": ("b1", "b2")})(scores)
        assert (found["a"][SCORE].value, found["b"][SCORE].value) == pytest.approx((0.5, 0.5))


def test_nothing_is_extrapolated_or_made_of_one_size() -> None:
    apart = {"a1": one(0, 1), "a2": one(0, 2), "b1": one(0, 3), "b2": one(0, 4)}
    assert EqualCost("parameters", {"a": ("a1", "a2"), "b": ("b1", "b2")})(apart) == {}
    assert EqualCost("parameters", {"a": ("a1",), "b": ("b1", "b2")})({**apart, "a1": one(0, 3.5)}) == {}
    lacking = {
        "a1": one(0, 1),
        "a2": {k: v for k, v in one(0, 2).items() if k != SCORE},
        "b1": one(0, 1),
        "b2": one(0, 2),
    }
    found = EqualCost("parameters", {"a": ("a1", "a2"), "b": ("b1", "b2")})(lacking)
    assert SCORE not in found["a"]
    assert found["b"][SCORE].value == 0


MATRIX = """
name: sizes
question: q
baseline: {set: {model.name: mosaic-v2}}
arms:
  - {name: m32, set: {model.width: 32}}
  - {name: m64}
  - {name: t32, set: {model.name: transformer, model.width: 32}}
  - {name: t64, set: {model.name: transformer}}
across:
  - function: equal-cost
    cost: parameters
    families: {m: [m32, m64], t: [t32, t64]}
claims:
  - {id: c, statement: s, metric: recall/accuracy@1x, treatment: m, control: t, expected: greater, margin: 0.02}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sizes.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("equal-cost", "equal-costs", 'across[0].function: "equal-costs": expected one of equal-cost'),
        ("cost: parameters", "cost: params", 'did you mean "parameters"'),
        ("cost: parameters", "cost: flops\n    more: 1", 'across[0].more: no such key'),
        ("m: [m32, m64]", "m: [m32, m46]", 'across[0].families.m[1]: "m46": expected one of'),
        ("m: [m32, m64]", "m: [m32]", "across[0].families.m: expected at least 2 items"),
        ("m: [m32, m64]", "m: [m32, m32]", 'across[0].families.m: "m32" stands there twice'),
        ("m: [m32, m64]", "m64: [m32, m64]", 'across: "m64" stands there twice'),
        (", t: [t32, t64]}", "}", "across[0].families: expected at least two families"),
        ("control: t,", "control: u,", 'claims[0].control: "u": expected one of m32, m64, t32, t64, m, t'),
    ],
)  # fmt: skip
def test_what_is_wrong_in_an_entry_is_said_in_one_line(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in MATRIX
    with pytest.raises(UsageError) as caught:
        load(written(tmp_path, MATRIX.replace(old, new)))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    # Claims that compare what a wrong entry would have made are not called wrong for it.
    if not says.startswith("claims"):
        assert "claims" not in str(caught.value)


def test_a_claim_across_arms_asks_a_metric_that_its_arms_have(tmp_path: Path) -> None:
    from mmctl.sweeps.plan import make_plan
    from mmctl.sweeps.profiles import profile

    matrix = load(written(tmp_path, MATRIX.replace("recall/accuracy@1x", "recall/accuracies@1x")))
    with pytest.raises(UsageError, match="no such metric of arm m32"):
        make_plan([matrix], profile("smoke"))


def test_derived_arms_are_judged_paired_by_seed(tmp_path: Path, inline_sweep: object) -> None:
    """Through a whole sweep of stand-in runs, which score 0.8 (mosaic) and 0.3 (transformer) plus a part by seed."""
    from fake_runs import SMALL

    from mmctl.sweeps import manifest
    from mmctl.sweeps.plan import make_plan
    from mmctl.sweeps.profiles import profile
    from mmctl.sweeps.results import collect

    plan = make_plan([load(written(tmp_path, MATRIX))], profile("smoke"), SMALL)
    outcome, _ = inline_sweep(plan)  # type: ignore[operator]
    assert outcome.exit_code == 0
    root = tmp_path / "runs"
    for found in root.glob("*/seed*/result.json"):  # stand-ins do not count themselves
        import json

        size = 64 if "mosaic-v2" in found.parts[-3] or found.parts[-3].startswith("transformer") else 32
        found.write_text(json.dumps(json.loads(found.read_text()) | {"parameters": math.exp(size / 32)}))
    fixed = manifest.write(plan, root, {})
    assert fixed["ablations"][0]["across"][0]["families"] == {"m": ["m32", "m64"], "t": ["t32", "t64"]}
    results = collect(plan, root, fixed)
    (ablation,) = results["ablations"]
    (claim,) = ablation["claims"]
    assert claim["difference"]["n"] == 3
    assert claim["difference"]["mean"] == pytest.approx(0.5)
    assert claim["registered"] is None
    made = ablation["across"][0]["arms"]
    assert made["m"]["of"] == ["m32", "m64"]
    assert made["m"]["scores"]["recall/accuracy@1x"]["seeds"]["1"]["value"] == pytest.approx(0.81)

    # A seed that lacks one of the arms has no number.
    next(root.glob("sizes-t32-*/seed1/result.json")).unlink()
    (claim,) = collect(plan, root, fixed)["ablations"][0]["claims"]
    assert claim["difference"]["seeds"] == (0, 2)


def test_every_function_is_one_and_the_shipped_ablation_has_four_sizes_each() -> None:
    matrix = load(shipped()["scaling"])
    assert matrix.only_by_name
    assert {entry.record()["cost"] for entry in matrix.across} == {"flops", "parameters"}
    for entry in matrix.across:
        assert len(entry.derived()) == 4
        assert all(len(arms) >= 4 for arms in entry.derived().values())
    assert across.members_of(matrix.across, "mosaic-at-flops")[0] == "mosaic-32"
    assert across.members_of(matrix.across, "mosaic-32") == ()
