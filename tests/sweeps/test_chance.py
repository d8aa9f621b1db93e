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
