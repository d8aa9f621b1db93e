"""What would change a verdict: the numbers in the sentences, checked by making the change."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any

import pytest

from mmctl.sweeps import verdicts
from mmctl.sweeps.claims import Claim, Published
from mmctl.sweeps.reporting.outlook import outlook
from mmctl.sweeps.statistics import Difference, Estimate, Sampling, one_sample, paired
from mmctl.sweeps.verdicts import judge

PAPER = Published("p", "m", "t", effect=8.0, unit="points")
CLAIM = Claim("c", "s", "recall/accuracy@1x", "a", "greater", PAPER, control="b", margin=0.02)
LEVEL = 0.99


def entry(
    claim: Claim, difference: Difference | None, start: float | None = None, at_chance: Any = ()
) -> dict[str, Any]:
    """As in results.json."""
    found = judge(claim, difference, LEVEL, 0.5, start, len(at_chance))
    scores = {"treatment_score": {"mean": 0.13}, "control_score": {"mean": 0.12}}
    own = {"difference": None if difference is None else asdict(difference), "verdict": found.verdict, "parts": []}
    own |= {"corrected_interval": found.corrected, "corrected_level": found.corrected_level, "start": start}
    return {**asdict(claim), **scores, **own, "published_effect": claim.published_effect, "at_chance": list(at_chance)}


def difference(values: list[float], sampling: Sampling | None = None, control: bool = True) -> Difference:
    seeds = dict(enumerate(values))
    found = paired(seeds, dict.fromkeys(seeds, 0.0), sampling) if control else one_sample(seeds, sampling)
    assert found is not None
    return found


def seeds_in_all(text: str) -> int:
    return int(re.search(r"\((\d+) in all\)", text)[1])  # type: ignore[index]


def interval(d: Difference, n: int, level: float) -> tuple[float, float]:
    found = Estimate(d.mean, d.sd, n, d.sampling).interval(level)
    assert found is not None
    return found


def test_seeds_until_the_corrected_interval_leaves_0() -> None:
    d = difference([0.01, 0.05, 0.03, -0.01])
    said = outlook(entry(replace(CLAIM, published=None, margin=0.001), d))
    n = seeds_in_all(said)
    assert n > 4
    assert interval(d, n, LEVEL)[0] > 0 >= interval(d, n - 1, LEVEL)[0]
    assert (
        f"{n - 4} more seeds ({n} in all) would put the corrected interval (99.00%) wholly above 0 (supported)" in said
    )
    assert "The mean lies beyond the margin of no effect by 1.9 points." in said


def test_on_the_other_side_the_word_is_opposite() -> None:
    said = outlook(entry(CLAIM, difference([-0.05, -0.09, -0.01])))
    assert "wholly below 0 (opposite)" in said


def test_seeds_until_the_interval_fits_the_margin() -> None:
    d = difference([0.02, -0.02, 0.021, -0.017])
    said = outlook(entry(replace(CLAIM, published=None), d))
    n = int(re.findall(r"\((\d+) in all\)", said)[-1])
    low, high = interval(d, n, 0.95)
    assert low >= -0.02
    assert high <= 0.02
    assert interval(d, n - 1, 0.95)[1] > 0.02
    assert said.endswith("the 95% interval would lie within the margin (no effect).")


def test_an_interval_wider_than_the_published_effect() -> None:
    d = difference([0.10, -0.05, 0.02])
    claim = entry(CLAIM, d)
    assert claim["verdict"] == verdicts.UNDERPOWERED
    said = outlook(claim)
    n = int(re.search(r"With (\d+) more seeds? \((\d+) in all\) the 95% interval would be no wider", said)[2])  # type: ignore[index]
    widths = [high - low for low, high in (interval(d, k, 0.95) for k in (n - 1, n))]
    assert widths[1] <= 0.08 < widths[0]


def test_examples_can_be_what_is_missing() -> None:
    d = difference([0.01, 0.011, 0.012], Sampling(0.05, 32))
    said = outlook(entry(replace(CLAIM, published=None), d))
    assert "the sampling error of 32 held-out examples is too large for that" in said


def test_how_firm_a_settled_direction_is() -> None:
    d = difference([0.30, 0.32, 0.31])
    said = outlook(entry(CLAIM, d))
    low, high = interval(d, 3, LEVEL)
    assert f"ends {100 * low:.3g} points above 0" in said
    times = float(re.search(r"standard error ([\d.]+) times", said)[1])  # type: ignore[index]
    assert times == pytest.approx(d.mean / ((high - low) / 2), rel=0.05)


@pytest.mark.parametrize(
    ("values", "word", "says"),
    [
        ([0.001, -0.001, 0.002], verdicts.REPRODUCED, "The far end of the 95% interval is 0.446 points from 0"),
        (
            [0.100, 0.101, 0.102],
            verdicts.POSITIVE,
            "The near end of the 95% interval lies 7.85 points beyond the margin of 2",
        ),
        ([-0.100, -0.101, -0.102], verdicts.NEGATIVE, "within a margin of 10.3 points"),
        ([0.010, 0.016, 0.022], verdicts.INCONCLUSIVE, "put the 95% interval within the margin (reproduced)"),
        ([0.024, 0.030, 0.018], verdicts.INCONCLUSIVE, "put the 95% interval beyond the margin (an effect (+))"),
    ],
)
def test_claims_of_no_effect(values: list[float], word: str, says: str) -> None:
    claim = entry(replace(CLAIM, expected="no-effect"), difference(values))
    assert claim["verdict"] == word
    assert says in outlook(claim)


@pytest.mark.parametrize(
    ("values", "start", "word", "says"),
    [
        ([0.30, 0.31, 0.32], 0.1, verdicts.INSIDE, "ends 0.0652 inside the range"),
        ([0.50, 0.51, 0.52], 0.1, verdicts.OUTSIDE, "ends 0.0852 outside the range"),
        ([0.32, 0.33, 0.345], 1 / 3, verdicts.UNMOVED, "no longer hold the start value (inside the range)"),
        ([0.36, 0.38, 0.40], 0.1, verdicts.INCONCLUSIVE, "put the 95% interval inside the range"),
        ([0.40, 0.42, 0.44], 0.1, verdicts.INCONCLUSIVE, "put the 95% interval outside the range (outside the range)"),
    ],
)
def test_claims_of_a_range(values: list[float], start: float, word: str, says: str) -> None:
    claim = Claim("c", "s", "diagnostics:bandwidth/alpha/long-term", "a", "range", PAPER, range=(0.2, 0.4))
    found = entry(claim, difference(values, control=False), start)
    assert found["verdict"] == word
    assert says in outlook(found)


def test_layers_are_looked_at_one_by_one() -> None:
    claim = Claim(
        "c", "s", "diagnostics:bandwidth/alpha/long-term", "a", "range", PAPER, range=(0.2, 0.4), each="layer"
    )
    parts = []
    for layer, values in enumerate(([0.30, 0.31, 0.32], [0.50, 0.51, 0.52])):
        part = entry(claim, difference(values, control=False), 0.1)
        parts.append({k: part[k] for k in ("difference", "verdict", "start")} | {"part": f"layer {layer}"})
    whole = entry(claim, difference([0.4, 0.41, 0.42], control=False)) | {"parts": parts}
    assert outlook(whole) == (
        "layer 0: The 95% interval ends 0.0652 inside the range. layer 1: The 95% interval ends 0.0852 outside the range."
    )


def test_too_few_seeds_no_scores_and_no_error() -> None:
    assert outlook(entry(CLAIM, None)) == "A verdict needs scores of both arms at no fewer than 3 seeds; there is none."
    assert outlook(entry(CLAIM, difference([0.1]))) == "A verdict needs 2 more seeds (3 in all) at least."
    assert "without either no error is known" in outlook(entry(CLAIM, difference([0.1, 0.1, 0.1])))


def test_arms_at_chance_are_told_what_they_would_have_to_score() -> None:
    score = {"recall/accuracy@1x": {"chance": 0.125}}
    arms = [{"name": "a", "scores": score}, {"name": "b", "scores": score}]
    said = outlook(entry(CLAIM, difference([0.01, 0.02, 0.015]), at_chance=["a", "b"]), arms)
    assert said == (
        "One arm would have to score above 14.5% to count as having learned the task (now: a 13.0%, b 12.0%)."
    )
    said = outlook(entry(CLAIM, difference([0.30, 0.32, 0.31]), at_chance=["b"]), arms)
    assert said.endswith("b would have to score above 14.5% to count as having learned the task (now: b 12.0%).")


def test_a_great_many_seeds_are_not_counted() -> None:
    said = outlook(entry(replace(CLAIM, published=None), difference([0.3, -0.3, 0.001])))
    assert "more than 997 more seeds would put" in said
