"""Every rule of the verdicts, each at its edges."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from mmctl.sweeps import verdicts
from mmctl.sweeps.claims import Claim, Published
from mmctl.sweeps.statistics import Difference, Sampling, one_sample
from mmctl.sweeps.verdicts import Judged, judge, judge_all, judge_layers


def claim(expected: str = "greater", effect: float | None = None, unit: str = "points", **more: object) -> Claim:
    options: dict = {"margin": 0.02, "control": "b", "metric": "recall/accuracy@1x"}
    if expected == "range":
        options |= {"margin": None, "control": None, "range": (0.2, 0.4)}
    options["published"] = Published("paper", "score", "words", effect, unit if effect is not None else "")
    return Claim("id", "statement", treatment="a", expected=expected, **(options | more))  # type: ignore[arg-type]


def difference(mean: float, half: float, n: int = 5) -> Difference:
    """A difference whose 95% interval is mean ± half."""
    sd = half * math.sqrt(n) / float(stats.t.ppf(0.975, n - 1))
    p = 1.0 if mean == 0 else 2 * float(stats.t.sf(abs(mean) / (sd / math.sqrt(n)), n - 1))
    return Difference(n, mean, sd, (mean - half, mean + half), p)


@pytest.mark.parametrize(
    ("expected", "mean", "half", "verdict"),
    [
        ("greater", 0.30, 0.10, "reproduced"),
        ("less", -0.30, 0.10, "reproduced"),
        ("greater", -0.30, 0.10, "opposite"),
        ("less", 0.30, 0.10, "opposite"),
        ("greater", 0.10, 0.15, "same direction, not significant"),
        ("less", -0.10, 0.15, "same direction, not significant"),
        ("greater", -0.10, 0.15, "other direction, not significant"),
        ("less", 0.10, 0.15, "other direction, not significant"),
        ("greater", 0.002, 0.015, "no effect"),
        ("greater", -0.002, 0.015, "no effect"),
        ("greater", 0.010, 0.005, "reproduced"),  # small, but on the published side of 0
    ],
)
def test_directional_claims(expected: str, mean: float, half: float, verdict: str) -> None:
    assert judge(claim(expected), difference(mean, half)).verdict == verdict


@pytest.mark.parametrize(
    ("effect", "verdict"),
    [(10.0, "underpowered"), (29.0, "underpowered"), (31.0, "same direction, not significant")],
)
def test_an_interval_wider_than_the_published_effect_is_underpowered(effect: float, verdict: str) -> None:
    """The interval is 0.30 wide: 30 points."""
    assert judge(claim(effect=effect), difference(0.10, 0.15)).verdict == verdict


def test_a_conclusive_interval_is_never_underpowered() -> None:
    assert judge(claim(effect=1.0), difference(0.30, 0.10)).verdict == "reproduced"
    assert judge(claim(effect=1.0), difference(-0.30, 0.10)).verdict == "opposite"


def test_a_published_effect_in_another_unit_says_nothing_about_width() -> None:
    loss = claim(effect=0.5, metric="text/loss@1x")
    assert loss.published_effect is None
    assert judge(loss, difference(0.10, 0.15)).verdict == "same direction, not significant"
    assert claim(effect=-33.2).published_effect == pytest.approx(-0.332)


@pytest.mark.parametrize("expected", ["greater", "no-effect", "range"])
def test_too_few_seeds(expected: str) -> None:
    assert judge(claim(expected), None).verdict == "not run"
    assert (
        judge(claim(expected), Difference(1, 0.3, None, (0.29, 0.31), None, over="examples")).verdict == "underpowered"
    )
    assert judge(claim(expected), difference(0.3, 0.0001, n=2)).verdict == "underpowered"


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (0.0, 0.0199, "reproduced"),
        (0.005, 0.01, "reproduced"),
        (0.015, 0.004, "reproduced"),  # significant, yet within the margin
        (0.10, 0.05, "an effect (+)"),
        (-0.10, 0.05, "an effect (-)"),
        (0.0, 0.03, "underpowered"),
        (0.015, 0.01, "inconclusive"),
        (0.025, 0.01, "inconclusive"),
        (0.10, 0.09, "underpowered"),
    ],
)
def test_claims_of_no_effect(mean: float, half: float, verdict: str) -> None:
    assert judge(claim("no-effect"), difference(mean, half)).verdict == verdict


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (0.30, 0.05, "inside the range"),
        (0.11, 0.05, "outside the range"),
        (0.50, 0.05, "outside the range"),
        (0.30, 0.15, "underpowered"),
        (0.22, 0.05, "inconclusive"),
        (0.18, 0.05, "inconclusive"),
    ],
)
def test_claims_of_a_range(mean: float, half: float, verdict: str) -> None:
    assert judge(claim("range"), difference(mean, half)).verdict == verdict


@pytest.mark.parametrize(
    ("mean", "half", "start", "verdict"),
    [
        (0.33, 0.02, 1 / 3, "not moved"),  # training left it where it was: no evidence
        (0.26, 0.02, 1 / 3, "inside the range"),
        (0.33, 0.02, 0.5, "inside the range"),  # it came from outside
        (0.33, 0.02, 0.2, "inside the range"),
        (0.11, 0.05, 1 / 3, "outside the range"),
        (0.22, 0.05, 1 / 3, "inconclusive"),
    ],
)
def test_a_range_met_by_the_untouched_start_value_is_no_evidence(
    mean: float, half: float, start: float, verdict: str
) -> None:
    judged = judge(claim("range"), difference(mean, half), start=start)
    assert judged.verdict == verdict
    if verdict in ("not moved", "inside the range") and 0.2 <= start <= 0.4:
        assert f"start value {start:.4g}" in judged.reason


@pytest.mark.parametrize(
    ("layers", "verdict"),
    [
        (["inside the range", "inside the range"], "inside the range"),
        (["outside the range", "outside the range"], "outside the range"),
        (["inside the range", "outside the range"], "partly outside"),
        (["not moved", "outside the range", "inconclusive"], "partly outside"),
        (["inside the range", "not moved"], "not moved"),
        (["not moved", "inconclusive"], "inconclusive"),
        (["inconclusive", "underpowered"], "underpowered"),
        (["inside the range", "not run"], "not run"),
    ],
)
def test_a_claim_about_every_layer_is_as_good_as_its_weakest(layers: list[str], verdict: str) -> None:
    parts = {f"layer {i}": Judged(word, "why") for i, word in enumerate(layers)}
    judged = judge_layers(parts)
    assert judged.verdict == verdict
    assert "layer 1" in judged.reason


@pytest.mark.parametrize("expected", ["greater", "less", "no-effect"])
def test_two_arms_at_chance_cannot_be_compared(expected: str) -> None:
    assert judge(claim(expected), difference(0.0, 0.001), at_chance=2).verdict == "both at chance"
    assert judge(claim(expected), None, at_chance=2).verdict == "not run"
    both = judge_all([claim(expected)] * 2, [difference(0.0, 0.001)] * 2, [2, 0])
    assert both[0].verdict == "both at chance"
    assert both[1].verdict != "both at chance"


def test_winning_against_an_arm_at_chance_is_said_in_the_verdict() -> None:
    assert judge(claim(), difference(0.3, 0.1), at_chance=1).verdict == "reproduced, an arm at chance"
    assert judge(claim(published=None), difference(0.3, 0.1), at_chance=1).verdict == "supported, an arm at chance"
    assert judge(claim(), difference(-0.3, 0.1), at_chance=1).verdict == "opposite"


def test_a_hypothesis_of_ones_own_is_supported_not_reproduced() -> None:
    assert judge(claim(published=None), difference(0.3, 0.1)).verdict == "supported"
    assert judge(claim("no-effect", published=None), difference(0.0, 0.01)).verdict == "supported"
    assert judge(claim(published=None), difference(-0.3, 0.1)).verdict == "opposite"
    assert claim(published=None).published_effect is None


def test_every_word_is_explained_and_coloured_or_plain() -> None:
    words = {v for k, v in vars(verdicts).items() if k.isupper() and isinstance(v, str)}
    said = {word + verdicts.AGAINST_CHANCE for word in (verdicts.REPRODUCED, verdicts.SUPPORTED)}
    assert (words - {verdicts.AGAINST_CHANCE}) | said == set(verdicts.MEANINGS)


def test_holm_over_the_reports_claims_of_a_direction() -> None:
    """Significant alone (p about 0.02), not among ten; claims of no effect and of a range are not in the family."""
    found = difference(0.10, 0.08)
    assert found.p == pytest.approx(0.0254, abs=2e-3)
    assert judge_all([claim()], [found])[0].verdict == "reproduced"
    others = [claim("no-effect"), claim("range")]
    alone = judge_all([claim(), *others], [found, difference(0.0, 0.001), difference(0.3, 0.01)])
    assert [j.verdict for j in alone] == ["reproduced", "reproduced", "inside the range"]
    assert alone[1].corrected is None
    among = judge_all([claim()] * 10, [found, *[difference(0.0, 0.3)] * 9])
    assert among[0].verdict == "same direction, not significant"
    assert among[0].p_holm == pytest.approx(10 * found.p)
    assert among[0].corrected_level == pytest.approx(0.995)
    low, high = among[0].corrected or (0, 0)
    assert low < 0 < high


def test_a_claim_not_run_counts_in_holms_family() -> None:
    judged = judge_all([claim()] * 10, [difference(0.10, 0.08), *[None] * 9])
    assert judged[0].verdict == "same direction, not significant"
    assert {j.verdict for j in judged[1:]} == {"not run"}


def test_the_same_at_every_seed() -> None:
    """Known only as well as the examples it was measured on; not at all where there are none."""
    unknown = one_sample({0: 0.5, 1: 0.5, 2: 0.5})
    assert judge(claim(), unknown).verdict == "underpowered"
    assert "no examples" in judge(claim(), unknown).reason
    known = one_sample({0: 0.5, 1: 0.5, 2: 0.5}, Sampling(0.01, 100))
    assert judge(claim(), known).verdict == "reproduced"
    zero = {0: 0.0, 1: 0.0, 2: 0.0}
    assert judge(claim("no-effect"), one_sample(zero, Sampling(0.001, 100))).verdict == "reproduced"
    assert judge(claim("no-effect"), one_sample(zero, Sampling(0.02, 100))).verdict == "underpowered"
    assert judge(claim("no-effect"), one_sample(zero)).verdict == "underpowered"
