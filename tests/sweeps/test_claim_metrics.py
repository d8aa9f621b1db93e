"""A claim about a metric that its arms will not have is refused before anything runs, and all that is wrong is said at
once."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmctl.errors import UsageError
from mmctl.sweeps import matrix as matrices

HEAD = """name: own
question: q
baseline: {set: {model.name: mosaic-v2}}
arms: [{name: a}, {name: b, set: {model.bandwidth: constant}}, {name: t, set: {model.name: transformer}}]
claims:
"""


@pytest.fixture
def plan_of(make_plan, tmp_path: Path):
    def plan(*claims: str, overrides: tuple[str, ...] = ()):
        own = tmp_path / "own.yaml"
        own.write_text(HEAD + "".join(f"  - {{id: c{i}, statement: s, {claim}}}\n" for i, claim in enumerate(claims)))
        return make_plan([str(own)], seeds=[0], overrides=overrides)

    return plan


def compared(metric: str, arms: str = "treatment: a, control: b") -> str:
    return f'metric: "{metric}", {arms}, expected: less, margin: 0.01'


@pytest.mark.parametrize(
    "metric",
    [
        "train_loss",
        "train_loss/recall",
        "held_out_loss/icl",
        "recall/accuracy@8x",
        "icl/accuracy-shots4@1x",
        "seconds",
        "diagnostics:bandwidth/alpha/long-term/layer1",
    ],
)
def test_metrics_that_arms_will_have(plan_of, metric: str) -> None:
    assert plan_of(compared(metric)).matrices[0].claims[0].metric == metric


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        (compared("recall/acuracy@4x"), 'did you mean "recall/accuracy@4x"?'),
        (compared("icl/accuracy-last-quartr@1x"), 'did you mean "icl/accuracy-last-quarter@1x"?'),
        (compared("train_loss/recal"), 'did you mean "train_loss/recall"?'),
        (compared("diagnostics:bandwidth/alpha/longterm"), 'did you mean "diagnostics:bandwidth/alpha/long-term"?'),
        (compared("diagnostics:bandwidth/alpha/long-term/layer2"), "no such metric of arm a"),
        (compared("diagnostics:bandwidth/alpha/long-term", "treatment: t, control: a"), "no such metric of arm t"),
        (
            'metric: "diagnostics:bandwidth/alpha/long-term/layer0", treatment: a, expected: range, range: [0, 1], '
            "each: layer",
            "no such metric by layer of arm a",
        ),
    ],
)
def test_metrics_that_no_arm_will_have(plan_of, claim: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_of(claim)
    assert says in str(caught.value)
    assert "claims[0].metric: " in str(caught.value)


def test_a_length_that_is_not_measured(plan_of) -> None:
    """By the ablation alone it is a mistake; where the user's own overrides leave it out, the claim is not run."""
    from mmctl.sweeps import plan, profiles

    matrix = plan_of(compared("recall/accuracy@3x")).matrices[0]
    with pytest.raises(UsageError, match="recall/accuracy@3x"):
        plan.make_plan([matrix], profiles.profile("smoke"), seeds=[0])
    assert plan_of(compared("recall/accuracy@4x"), overrides=("evaluation.lengths=[1]",))
    assert plan_of(compared("text/loss@1x"))  # text is not in the mixture that plan_of asks for
    with pytest.raises(UsageError, match="recall/acuracy@4x"):
        plan_of(compared("recall/acuracy@4x"), overrides=("evaluation.lengths=[1]",))


def test_the_shipped_claims_are_all_measurable() -> None:
    from mmctl.sweeps import plan, profiles

    for name in ("smoke", "standard"):
        plan.make_plan(matrices.find([]), profiles.profile(name), seeds=[0])


ATTENDED = ("evaluation.attention=16",)


def test_attention_is_a_metric_where_it_is_measured(plan_of) -> None:
    from mmctl.sweeps import plan, profiles

    flat = compared("attention/flatness-far@1x", "treatment: a, control: t")
    assert plan_of(flat, overrides=ATTENDED)
    assert plan_of(compared("attention/peak-mass-short-term@1x"), overrides=ATTENDED)
    with pytest.raises(UsageError, match="no such metric of arm a"):  # by the ablation alone it is a mistake
        plan.make_plan([plan_of(flat).matrices[0]], profiles.profile("smoke"), seeds=[0])
    assert plan_of(flat, overrides=("evaluation.attention=0",))  # by the user's own override it is not run
    for metric, arms, says in (
        ("attention/flatnes-far@1x", "treatment: a, control: t", 'did you mean "attention/flatness-far@1x"?'),
        ("attention/flatness-long-term@1x", "treatment: a, control: t", "no such metric of arm t"),
        ("attention/flatness-far", "treatment: a, control: b", "expected attention/<score>@<multiple"),
    ):
        with pytest.raises(UsageError) as caught:
            plan_of(compared(metric, arms), overrides=() if "@" not in metric else ATTENDED)
        assert says in str(caught.value)


@pytest.mark.parametrize(("near", "times"), [(62, 1), (63, 1), (5000, 1), (126, 2)])
def test_attention_is_no_metric_at_a_length_where_everything_is_near(plan_of, near: int, times: int) -> None:
    """Else its claim would be found not run when all runs are done."""
    overrides = ("data.length=64", "evaluation.lengths=[1,2,4]", f"evaluation.attention={near}")
    about = compared(f"attention/peak-mass@{times}x", "treatment: a, control: t")
    with pytest.raises(UsageError) as caught:
        plan_of(about, overrides=overrides)
    assert f"evaluation.attention={near} leaves nothing far in {64 * times} tokens" in str(caught.value)
    if near < 5000:
        assert plan_of(about.replace(f"@{times}x", f"@{2 * times}x"), overrides=overrides)


def test_an_ablation_may_ask_for_attention_and_every_cell_is_measured_alike(make_plan) -> None:
    made = make_plan(["attention"], seeds=[0])
    assert {(c.config.evaluation.attention, c.config.data.length) for c in made.cells.values()} == {(128, 512)}
    assert len(made.cells) == 5
    before = make_plan(["bandwidth"], seeds=[0]).digest
    assert make_plan(["bandwidth"], seeds=[0], overrides=["evaluation.attention=0"]).digest == before
    assert make_plan(["bandwidth"], seeds=[0], overrides=["evaluation.attention=8"]).digest != before


def test_every_wrong_claim_is_named_at_once(plan_of) -> None:
    with pytest.raises(UsageError) as caught:
        plan_of(compared("recall/acuracy@4x"), compared("train_loss"), compared("icl/accuracies@1x"))
    message = str(caught.value)
    assert "2 errors: (1) claims[0].metric" in message
    assert "(2) claims[2].metric" in message
    assert "\n" not in message


def test_every_wrong_key_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "name: own\nqeustion: q\nbaseline: {set: {model.name: mosaic-v2}}\n"
        "arms: [{name: a}, {name: b, lable: x}]\n"
        "claims: [{id: c, statement: s, metric: recall/accuracy, treatment: a, control: b, expected: les}]\n"
        "figures: [flop-accuracy]\n"
    )
    with pytest.raises(UsageError) as caught:
        matrices.load(own)
    message = str(caught.value)
    assert message.startswith(f"{own}: 5 errors: ")
    for part in (
        'question: is missing; did you mean "qeustion"?',
        'arms[1].lable: no such key; did you mean "label"?',
        'claims[0].expected: "les": expected one of',
        "claims[0].metric: ",
        'figures[0]: "flop-accuracy"',
    ):
        assert part in message
    assert "\n" not in message


def test_every_wrong_arm_is_named_and_one_mistake_only_once(make_plan, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "name: own\nquestion: q\nbaseline: {set: {model.name: mosaic-v2}}\n"
        "arms: [{name: a, set: {model.bandwith: constant}}, {name: b, set: {model.heads: 3}}]\n"
    )
    with pytest.raises(UsageError) as caught:
        make_plan([str(own)], seeds=[0])
    message = str(caught.value)
    assert message.startswith("2 errors: (1) own/a: ")
    assert "(2) own/b: model.heads=3" in message
    with pytest.raises(UsageError) as caught:
        make_plan(["bandwidth"], seeds=[0], overrides=["training.stepz=3"])
    assert str(caught.value).count("training.stepz") == 1


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("each: layer, expected: less, margin: 0.1, control: b", "each: belongs to expected: range"),
        ("each: head, expected: range, range: [0, 1]", '"head": expected one of layer'),
        ("metric: train_loss, each: layer, expected: range, range: [0, 1]", "layers have diagnostics of their own"),
    ],
)
def test_judging_by_layer_is_for_ranges_of_diagnostics(tmp_path: Path, keys: str, says: str) -> None:
    own = tmp_path / "own.yaml"
    metric = "" if "metric" in keys else 'metric: "diagnostics:bandwidth/alpha/long-term", '
    own.write_text(HEAD + f"  - {{id: c, statement: s, treatment: a, {metric}{keys}}}\n")
    with pytest.raises(UsageError) as caught:
        matrices.load(own)
    assert says in str(caught.value)
