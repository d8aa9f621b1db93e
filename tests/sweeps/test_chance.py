"""A difference between two arms that learned nothing says nothing, and the report says which arms those are."""

from __future__ import annotations

import pytest

from mmctl.sweeps.comparing import at_chance
from mmctl.sweeps.scores import Number

METRIC = "recall/accuracy@1x"


def arm(*values: float, chance: float | None = 0.125) -> dict[int, dict[str, Number]]:
    return {seed: {METRIC: Number(v, "eval/x.json", chance=chance)} for seed, v in enumerate(values)}


@pytest.mark.parametrize(
    ("arms", "expected"),
    [
        ([arm(0.11, 0.13), arm(0.05, 0.06)], True),
        ([arm(0.11, 0.13), arm(0.5, 0.6)], False),
        ([arm(0.11), arm(0.16)], False),
        ([arm(0.11, chance=None), arm(0.11, chance=None)], False),
        ([arm(0.11), {}], False),
    ],
)
def test_both_arms_at_chance(arms: list, expected: bool) -> None:
    assert at_chance(arms, METRIC) is expected


def test_a_gain_is_judged_by_the_accuracy_it_is_a_gain_of() -> None:
    def gaining(accuracy: float) -> dict[int, dict[str, Number]]:
        return {
            0: {
                "icl/accuracy@8x": Number(accuracy, "eval/x.json", chance=0.125),
                "icl/gain-per-doubling@8x": Number(0.01, "eval/x.json"),
            }
        }

    assert at_chance([gaining(0.13)], "icl/gain-per-doubling@8x")
    assert not at_chance([gaining(0.9)], "icl/gain-per-doubling@8x")
