"""From numbers to one word, by fixed rules that look at nothing but the claim and the statistics.

Let D be the mean paired difference (treatment minus control), I its 95% interval, and I* the interval corrected by Holm's
procedure over all directional claims of the report (one that was not run counts in the family). In this order:

1. `not run`: no seed has both arms.
2. `underpowered`: fewer than 3 seeds. (A single pair of runs still shows its bootstrap interval over examples, which says
   nothing about other seeds.)
3. A claim of a direction (greater, less):
   `reproduced` if I* lies on the published side of 0, `opposite` if it lies on the other;
   `no effect` if I lies within the claim's margin (-margin, margin);
   `underpowered` if I is wider than the published effect (where that can be put on our metric's scale);
   else `same direction, not significant` or `other direction, not significant` by the sign of D.
4. A claim of no effect: `reproduced` if I lies within the margin; `opposite` if it lies wholly outside, or beyond, it;
   `underpowered` if I is wider than the whole margin (2 x margin: it could not have fitted);
   else `same direction, not significant` if D is within the margin, `other direction, not significant` if not.
5. A claim of a range (one arm's own value): as 4, with the range in the margin's place and the mean in D's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmctl.sweeps.claims import Claim
from mmctl.sweeps.statistics import Difference, holm, holm_adjusted

REPRODUCED = "reproduced"
OPPOSITE = "opposite"
NO_EFFECT = "no effect"
SAME = "same direction, not significant"
OTHER = "other direction, not significant"
UNDERPOWERED = "underpowered"
NOT_RUN = "not run"

MINIMUM_SEEDS = 3


@dataclass(frozen=True)
class Judged:
    """A claim's verdict and why; the corrected interval and p-value are those of directional claims."""

    verdict: str
    reason: str
    corrected: tuple[float, float] | None = None
    corrected_level: float | None = None
    p_holm: float | None = None


def judge_all(claims: Sequence[Claim], differences: Sequence[Difference | None]) -> list[Judged]:
    """Verdicts of a report's claims, in order. Directional claims are one family for Holm's correction."""
    family = [i for i, c in enumerate(claims) if c.directional]
    p_values = []
    for i in family:
        d = differences[i]
        p_values.append(d.p if d is not None and d.n >= MINIMUM_SEEDS else None)
    levels = dict(zip(family, (level for _, level in holm(p_values)), strict=True))
    adjusted = dict(zip(family, holm_adjusted(p_values), strict=True))
    return [
        judge(claim, difference, levels.get(i), adjusted.get(i))
        for i, (claim, difference) in enumerate(zip(claims, differences, strict=True))
    ]


def judge(
    claim: Claim, difference: Difference | None, level: float | None = None, p_holm: float | None = None
) -> Judged:
    """One claim's verdict by the rules above. level: confidence of the corrected interval, for a directional claim."""
    if difference is None or difference.n == 0:
        return Judged(NOT_RUN, "no seed has a score for " + ("both arms" if claim.control else "the arm"))
    if difference.n < MINIMUM_SEEDS or difference.interval is None:
        return Judged(
            UNDERPOWERED, f"{difference.n} seed{'s' * (difference.n != 1)}, at least {MINIMUM_SEEDS} are needed"
        )
    if claim.directional:
        return _direction(claim, difference, 0.95 if level is None else level, p_holm)
    if claim.expected == "range":
        assert claim.range is not None
        return _within(difference, claim.range, "range")
    assert claim.margin is not None
    return _within(difference, (-claim.margin, claim.margin), "margin")


def _direction(claim: Claim, d: Difference, level: float, p_holm: float | None) -> Judged:
    assert d.interval is not None
    corrected = d.at(level)
    assert corrected is not None
    sign = 1.0 if claim.expected == "greater" else -1.0

    def judged(verdict: str, reason: str) -> Judged:
        return Judged(verdict, reason, corrected, level, p_holm)

    at = f"the Holm-corrected interval ({100 * level:.2f}%)"
    if min(sign * corrected[0], sign * corrected[1]) > 0:
        return judged(REPRODUCED, f"{at} lies on the published side of 0")
    if max(sign * corrected[0], sign * corrected[1]) < 0:
        return judged(OPPOSITE, f"{at} lies on the other side of 0")
    if claim.margin is not None and _inside(d.interval, (-claim.margin, claim.margin)):
        return judged(NO_EFFECT, f"the 95% interval lies within the margin of ±{claim.margin:g}")
    effect, width = claim.published_effect, d.interval[1] - d.interval[0]
    if effect is not None and width > abs(effect):
        return judged(UNDERPOWERED, f"the 95% interval is {width:.3g} wide, the published effect {abs(effect):.3g}")
    return judged(SAME if sign * d.mean > 0 else OTHER, f"{at} holds 0")


def _within(d: Difference, allowed: tuple[float, float], what: str) -> Judged:
    assert d.interval is not None
    low, high = d.interval
    shown = f"the {what} [{allowed[0]:g}, {allowed[1]:g}]"
    if _inside(d.interval, allowed):
        return Judged(REPRODUCED, f"the 95% interval lies within {shown}")
    if low > allowed[1] or high < allowed[0]:
        return Judged(OPPOSITE, f"the 95% interval lies outside {shown}")
    if high - low > allowed[1] - allowed[0]:
        return Judged(UNDERPOWERED, f"the 95% interval is {high - low:.3g} wide, {shown} {allowed[1] - allowed[0]:.3g}")
    inside = allowed[0] <= d.mean <= allowed[1]
    return Judged(
        SAME if inside else OTHER,
        f"the 95% interval crosses an end of {shown}, the mean is {'in' if inside else 'out'}side",
    )


def _inside(interval: tuple[float, float], allowed: tuple[float, float]) -> bool:
    return allowed[0] <= interval[0] and interval[1] <= allowed[1]
