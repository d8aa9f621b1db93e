"""From numbers to one word, by fixed rules that look at nothing but the claim and the statistics.

Let D be the mean paired difference (treatment minus control), I its 95% interval, and I* the interval corrected by
Holm's procedure over all claims of a direction in the report (one that was not run counts in the family). In this
order:

1. `not run`: no seed has both arms.
2. `underpowered`: fewer than 3 seeds, or no standard error (the same at every seed, and no examples counted). A single
   pair of runs still shows its bootstrap interval over examples, which says nothing about other seeds.
   `both at chance`: neither arm's mean is above chance by more than a margin (comparing.py): neither has learned the
   task, so they cannot differ, and an absent difference is no evidence of no effect.
3. A claim of a direction (greater, less):
   `reproduced` (`supported`, for a hypothesis without a published value) if I* lies on the claimed side of 0,
   `opposite` if it lies on the other, however small: a significant direction comes before the margin. Where exactly one of
   two trainings is at chance, the first two words say so (`reproduced, an arm at chance`). `no effect` if I lies within the claim's margin (-margin, margin); `underpowered`
   if I is wider than the published effect (where that can be put on our metric's scale); else `same direction, not
   significant` or `other direction, not significant` by the sign of D.
4. A claim of no effect: `reproduced` (`supported`) if I lies within the margin (two one-sided tests at 2.5% each);
   `an effect (+)` or `an effect (-)` if it lies wholly beyond an end of the margin, by that end;
   `underpowered` if I is wider than the whole margin (2 x margin: it could not have fitted); else `inconclusive`.
5. A claim of a range (one arm's own value, before training at S where that is known): `outside the range` if I lies
   wholly outside; `underpowered` if I is wider than the range; `inconclusive` if I crosses an end of it. With I inside:
   `not moved` if S lies inside the range and I holds S (the range was met before training, which is no evidence);
   else `inside the range`, with a mark where S lies inside it too.
   Judged layer by layer, the claim is about every layer: all inside is `inside the range`, all outside is `outside the
   range`, some outside is `partly outside`; else the weakest layer's word. No correction: it takes every layer to pass.

Claims of no effect and of a range are not in Holm's family: theirs are intervals against a margin, not tests of 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mmctl.sweeps.claims import Claim
from mmctl.sweeps.statistics import LEVEL, Difference, holm, holm_adjusted

REPRODUCED = "reproduced"
SUPPORTED = "supported"
OPPOSITE = "opposite"
NO_EFFECT = "no effect"
SAME = "same direction, not significant"
OTHER = "other direction, not significant"
POSITIVE, NEGATIVE = "an effect (+)", "an effect (-)"
INSIDE, OUTSIDE, PARTLY = "inside the range", "outside the range", "partly outside"
UNMOVED = "not moved"
AT_CHANCE = "both at chance"
AGAINST_CHANCE = ", an arm at chance"
"""Added to `reproduced` and `supported` where one of two trainings has not learned the task."""
INCONCLUSIVE = "inconclusive"
UNDERPOWERED = "underpowered"
NOT_RUN = "not run"

MEANINGS = {
    REPRODUCED: "a claim of a direction: its interval, Holm-corrected, lies on the claimed side of 0; a claim of no "
    "effect: its 95% interval lies within the claim's margin",
    SUPPORTED: "the same, for a hypothesis that nothing published stands beside",
    REPRODUCED
    + AGAINST_CHANCE: "as reproduced, but one arm is at chance: it may not have learned the task at all within "
    "this budget, so the difference says little about the architectures",
    SUPPORTED + AGAINST_CHANCE: "the same, for a hypothesis that nothing published stands beside",
    AT_CHANCE: "neither arm is above chance, so neither has learned the task and nothing can be compared",
    OPPOSITE: "the Holm-corrected interval lies on the other side of 0 than claimed",
    NO_EFFECT: "a direction was claimed, but the 95% interval lies within the claim's margin of no effect",
    SAME: "the mean has the claimed sign, but the Holm-corrected interval holds 0",
    OTHER: "the mean is 0 or has the other sign than claimed, and the Holm-corrected interval holds 0",
    POSITIVE: "no effect was claimed, but the 95% interval lies above the claim's margin (the treatment's number is higher)",
    NEGATIVE: "no effect was claimed, but the 95% interval lies below the claim's margin (the treatment's number is lower)",
    INSIDE: "the 95% interval of the arm's own value lies inside the claimed range",
    OUTSIDE: "the 95% interval of the arm's own value lies outside the claimed range (in every layer, where judged by "
    "layer)",
    PARTLY: "the 95% interval of at least one layer, but not of all, lies outside the claimed range",
    UNMOVED: "the value lies inside the claimed range, but so did its start value, which the 95% interval holds: met "
    "before training, it is no evidence",
    INCONCLUSIVE: "the 95% interval crosses an end of the margin or range",
    UNDERPOWERED: "fewer than 3 seeds, no standard error, or a 95% interval wider than the published effect, the whole "
    "margin or the range",
    NOT_RUN: "no seed has the scores the claim needs",
}
"""What each word means, for the report."""

MINIMUM_SEEDS = 3

ANALYSIS = {
    "test": "two-sided paired t-test over seeds, treatment minus control",
    "interval": "the wider of Student's t over seeds, and over seeds and held-out examples together (Welch-Satterthwaite)",
    "correction": "Holm over the report's claims of a direction",
    "no effect": "95% interval within the claim's margin",
    "range": "95% interval within the claim's range, in every layer where it asks for layers, and moved by training",
    "fewest seeds": MINIMUM_SEEDS,
}
"""The rules above in short: fixed in a sweep's manifest with its claims, before the first run."""


@dataclass(frozen=True)
class Judged:
    """A claim's verdict and why; the corrected interval and p-value are those of directional claims."""

    verdict: str
    reason: str
    corrected: tuple[float, float] | None = None
    corrected_level: float | None = None
    p_holm: float | None = None


def judge_all(
    claims: Sequence[Claim], differences: Sequence[Difference | None], at_chance: Sequence[int] | None = None
) -> list[Judged]:
    """Verdicts of a report's claims, in order. Directional claims are one family for Holm's correction.

    at_chance: for each claim, how many of its arms are at chance.
    """
    chance = at_chance or [0] * len(claims)
    family = [i for i, c in enumerate(claims) if c.directional]
    p_values = []
    for i in family:
        d = differences[i]
        p_values.append(d.p if d is not None and d.n >= MINIMUM_SEEDS else None)
    levels = dict(zip(family, (level for _, level in holm(p_values)), strict=True))
    adjusted = dict(zip(family, holm_adjusted(p_values), strict=True))
    return [
        judge(claim, difference, levels.get(i), adjusted.get(i), at_chance=chance[i])
        for i, (claim, difference) in enumerate(zip(claims, differences, strict=True))
    ]


def judge(
    claim: Claim,
    difference: Difference | None,
    level: float | None = None,
    p_holm: float | None = None,
    start: float | None = None,
    at_chance: int = 0,
) -> Judged:
    """One claim's verdict by the rules above.

    level: confidence of the corrected interval, for a directional claim; start: the value before training, for a range;
    at_chance: how many of the two arms are at chance.
    """
    if difference is None or difference.n == 0:
        return Judged(NOT_RUN, "no seed has a score for " + ("both arms" if claim.control else "the arm"))
    if difference.n < MINIMUM_SEEDS:
        return Judged(
            UNDERPOWERED, f"{difference.n} seed{'s' * (difference.n != 1)}, at least {MINIMUM_SEEDS} are needed"
        )
    if difference.interval is None:
        return Judged(UNDERPOWERED, "the same at every seed, and no examples to take an error from")
    if at_chance == 2:
        return Judged(AT_CHANCE, "neither arm has learned the task", p_holm=p_holm)
    if claim.directional:
        found = _direction(claim, difference, LEVEL if level is None else level, p_holm)
        if at_chance and found.verdict in (REPRODUCED, SUPPORTED):
            return replace(found, verdict=found.verdict + AGAINST_CHANCE)
        return found
    if claim.expected == "range":
        assert claim.range is not None
        return _range(difference, claim.range, start)
    assert claim.margin is not None
    return _no_effect(claim, difference, claim.margin)


def judge_layers(parts: Mapping[str, Judged]) -> Judged:
    """The verdict of a range claim judged layer by layer, from {layer: its verdict}."""
    words = {layer: judged.verdict for layer, judged in parts.items()}
    said = "; ".join(f"{layer} {word}" for layer, word in words.items())
    outside = sum(word == OUTSIDE for word in words.values())
    if 0 < outside < len(words):
        return Judged(PARTLY, f"{outside} of {len(words)} layers: {said}")
    weakest = next(w for w in (NOT_RUN, UNDERPOWERED, INCONCLUSIVE, UNMOVED, INSIDE, OUTSIDE) if w in words.values())
    return Judged(weakest, said)


def _direction(claim: Claim, d: Difference, level: float, p_holm: float | None) -> Judged:
    assert d.interval is not None
    corrected = d.at(level)
    assert corrected is not None
    sign = 1.0 if claim.expected == "greater" else -1.0

    def judged(verdict: str, reason: str) -> Judged:
        return Judged(verdict, reason, corrected, level, p_holm)

    at = f"the Holm-corrected interval ({100 * level:.2f}%)"
    if min(sign * corrected[0], sign * corrected[1]) > 0:
        return judged(_held(claim), f"{at} lies on the claimed side of 0")
    if max(sign * corrected[0], sign * corrected[1]) < 0:
        return judged(OPPOSITE, f"{at} lies on the other side of 0")
    scale = claim.scale
    if claim.margin is not None and _inside(d.interval, (-claim.margin, claim.margin)):
        return judged(NO_EFFECT, f"the 95% interval lies within the margin of {scale.size(claim.margin, '±')}")
    effect, width = claim.published_effect, d.interval[1] - d.interval[0]
    if effect is not None and width > abs(effect):
        return judged(
            UNDERPOWERED,
            f"the 95% interval is {scale.size(width)} wide, the published effect {scale.size(abs(effect))}",
        )
    return judged(SAME if sign * d.mean > 0 else OTHER, f"{at} holds 0")


def _no_effect(claim: Claim, d: Difference, margin: float) -> Judged:
    assert d.interval is not None
    low, high = d.interval
    if _inside(d.interval, (-margin, margin)):
        return Judged(_held(claim), "the 95% interval lies within the margin")
    if low > margin or high < -margin:
        end = "above" if low > margin else "below"
        return Judged(POSITIVE if low > margin else NEGATIVE, f"the 95% interval lies {end} the margin")
    if high - low > 2 * margin:
        return Judged(UNDERPOWERED, "the 95% interval is wider than the whole margin")
    return Judged(INCONCLUSIVE, "the 95% interval crosses an end of the margin")


def _range(d: Difference, allowed: tuple[float, float], start: float | None) -> Judged:
    assert d.interval is not None
    low, high = d.interval
    shown = f"the range [{allowed[0]:g}, {allowed[1]:g}]"
    if low > allowed[1] or high < allowed[0]:
        return Judged(OUTSIDE, f"the 95% interval lies outside {shown}")
    if high - low > allowed[1] - allowed[0]:
        return Judged(UNDERPOWERED, f"the 95% interval is {high - low:.3g} wide, {shown} {allowed[1] - allowed[0]:.3g}")
    if not _inside(d.interval, allowed):
        side = "in" if allowed[0] <= d.mean <= allowed[1] else "out"
        return Judged(INCONCLUSIVE, f"the 95% interval crosses an end of {shown}, the mean is {side}side")
    if start is None or not allowed[0] <= start <= allowed[1]:
        return Judged(INSIDE, f"the 95% interval lies inside {shown}")
    if low <= start <= high:
        return Judged(UNMOVED, f"the 95% interval holds the start value {start:.4g}, which lies inside {shown}")
    return Judged(
        INSIDE, f"the 95% interval lies inside {shown} and no longer holds the start value {start:.4g}, inside it too"
    )


def _held(claim: Claim) -> str:
    return SUPPORTED if claim.published is None else REPRODUCED


def _inside(interval: tuple[float, float], allowed: tuple[float, float]) -> bool:
    return allowed[0] <= interval[0] and interval[1] <= allowed[1]
