"""What would change a verdict, computed from the claim's own numbers: how many more seeds, how far from which end.

Sentences about seeds keep everything else as it is: the mean, the spread over seeds, the sampling error of the held-out
examples (which more seeds do not shrink) and the level that Holm's procedure gave this claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmctl.sweeps import verdicts
from mmctl.sweeps.comparing import CHANCE_MARGIN
from mmctl.sweeps.statistics import LEVEL, Estimate, Sampling
from mmctl.sweeps.units import Scale, scale_of

MOST_SEEDS, ENDLESS = 1000, 10**12
"""More than the first is said as "more than"; the second shows what no number of seeds would do."""
Interval = tuple[float, float]


def outlook(claim: Mapping[str, Any], arms: Sequence[Mapping[str, Any]] = ()) -> str:
    """One or two sentences. claim: as in results.json; arms: those of its ablation, for what chance is."""
    if claim["parts"]:
        said = [f"{part['part']}: {_one({**claim, **part, 'parts': []}, arms)}" for part in claim["parts"]]
        return " ".join(said)
    return _one(claim, arms)


def _one(claim: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> str:
    difference, verdict = claim["difference"], claim["verdict"]
    if difference is None or difference["n"] == 0:
        both = "both arms" if claim["control"] else "the arm"
        return f"A verdict needs scores of {both} at no fewer than {verdicts.MINIMUM_SEEDS} seeds; there is none."
    missing = verdicts.MINIMUM_SEEDS - difference["n"]
    if missing > 0:
        return f"A verdict needs {_more(missing, difference['n'])} at least."
    if difference["interval"] is None:
        return (
            "A seed at which the number differs, or a metric with counted examples: without either no error is known."
        )
    if verdict == verdicts.AT_CHANCE:
        return _chance(claim, arms)
    seen = _Seen(claim)
    if claim["expected"] == "range":
        return _range(claim, seen)
    if claim["expected"] == "no-effect":
        return _no_effect(claim, seen)
    return " ".join(filter(None, [_direction(claim, seen), _chance(claim, arms)]))


class _Seen:
    """A claim's difference, with what more seeds would make of it."""

    def __init__(self, claim: Mapping[str, Any]) -> None:
        d = claim["difference"]
        drawn = d.get("sampling")
        self.sampling = None if drawn is None else Sampling(drawn["error"], drawn["examples"])
        self.n, self.mean, self.sd = d["n"], d["mean"], d["sd"]
        self.interval: Interval = (d["interval"][0], d["interval"][1])
        self.scale: Scale = scale_of(claim["metric"])
        self.own = claim["control"] is None

    def size(self, value: float) -> str:
        if self.own:
            return f"{self.scale.value(abs(value))} {self.scale.unit}".rstrip()
        return self.scale.size(abs(value))

    def at(self, n: int, level: float) -> Interval:
        found = Estimate(self.mean, self.sd, n, self.sampling).interval(level)
        assert found is not None
        return found

    def seeds(self, level: float, holds: Callable[[Interval], bool]) -> int | None:
        """The fewest seeds, more than now, at which `holds` of the interval; None where no number of seeds would do."""
        if not holds(self.at(ENDLESS, level)):
            return None
        low, high = self.n, self.n + 1
        while not holds(self.at(high, level)):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(self.at(middle, level)) else (middle, high)
        return high

    def needs(self, level: float, holds: Callable[[Interval], bool], then: str) -> str:
        """A sentence: how many more seeds would make `holds` true, and what follows `then`."""
        found = self.seeds(level, holds)
        if found is not None:
            return f"At the observed mean and spread, {_more(found - self.n, self.n)} would {then}."
        if self.sampling is not None and self.sampling.error > 0:
            return (
                f"More seeds alone would not {then}: the sampling error of {self.sampling.examples} held-out examples is "
                "too large for that."
            )
        return f"No number of seeds would {then}, with the mean where it is."


def _more(seeds: int, now: int) -> str:
    if seeds + now > MOST_SEEDS:
        return f"more than {MOST_SEEDS - now} more seeds"
    return f"{seeds} more seed{'s' * (seeds != 1)} ({seeds + now} in all)"


def _direction(claim: Mapping[str, Any], seen: _Seen) -> str:
    level = claim["corrected_level"] or LEVEL
    sign = 1.0 if claim["expected"] == "greater" else -1.0
    claimed = sign * seen.mean > 0
    held = verdicts.SUPPORTED if claim["published"] is None else verdicts.REPRODUCED
    word, side = (held if claimed else verdicts.OPPOSITE), "above" if seen.mean > 0 else "below"
    low, high = claim["corrected_interval"] or seen.interval
    percent = f"{100 * level:.2f}%"
    if low > 0 or high < 0:
        near = min(abs(low), abs(high))
        times = abs(seen.mean) / (abs(seen.mean) - near)
        return (
            f"The corrected interval ({percent}) ends {seen.size(near)} {side} 0; it would hold 0 with a standard error "
            f"{times:.2g} times the observed."
        )

    def beyond(pair: Interval) -> bool:
        return pair[0] > 0 or pair[1] < 0

    said = seen.needs(level, beyond, f"put the corrected interval ({percent}) wholly {side} 0 ({word})")
    margin, effect = claim["margin"], claim["published_effect"]
    if claim["verdict"] == verdicts.UNDERPOWERED and effect is not None:
        narrow = seen.seeds(LEVEL, lambda pair: pair[1] - pair[0] <= abs(effect))
        if narrow is not None:
            more = _more(narrow - seen.n, seen.n)
            said += f" With {more} the 95% interval would be no wider than the published effect."
    if margin is None:
        return said
    if claim["verdict"] == verdicts.NO_EFFECT:
        far = max(abs(end) for end in seen.interval)
        return (
            f"{said} It would take a margin below {seen.size(far)} (now {seen.size(margin)}) to leave the claim open."
        )
    if abs(seen.mean) >= margin:
        return f"{said} The mean lies beyond the margin of no effect by {seen.size(abs(seen.mean) - margin)}."
    inside = seen.seeds(LEVEL, lambda pair: -margin <= pair[0] and pair[1] <= margin)
    if inside is None:
        return said
    more = _more(inside - seen.n, seen.n)
    return f"{said} With {more} the 95% interval would lie within the margin ({verdicts.NO_EFFECT})."


def _no_effect(claim: Mapping[str, Any], seen: _Seen) -> str:
    margin = claim["margin"]
    low, high = seen.interval
    far = max(abs(low), abs(high))
    if far <= margin:
        return f"The far end of the 95% interval is {seen.size(far)} from 0: a margin below that (now {seen.size(margin)}) would leave the claim open."
    if low > margin or high < -margin:
        near = min(abs(low), abs(high))
        return (
            f"The near end of the 95% interval lies {seen.size(near - margin)} beyond the margin of {seen.size(margin)}; the "
            f"whole interval would lie within a margin of {seen.size(far)}."
        )
    held = verdicts.SUPPORTED if claim["published"] is None else verdicts.REPRODUCED
    if abs(seen.mean) <= margin:
        return seen.needs(
            LEVEL, lambda p: -margin <= p[0] and p[1] <= margin, f"put the 95% interval within the margin ({held})"
        )
    word = verdicts.POSITIVE if seen.mean > 0 else verdicts.NEGATIVE
    return seen.needs(
        LEVEL, lambda p: p[0] > margin or p[1] < -margin, f"put the 95% interval beyond the margin ({word})"
    )


def _range(claim: Mapping[str, Any], seen: _Seen) -> str:
    least, most = claim["range"]
    low, high = seen.interval
    if low > most or high < least:
        return f"The 95% interval ends {seen.size(low - most if low > most else least - high)} outside the range."
    start = claim["start"]
    if claim["verdict"] == verdicts.UNMOVED and start is not None:
        return seen.needs(
            LEVEL,
            lambda p: not p[0] <= start <= p[1],
            f"let the 95% interval no longer hold the start value ({verdicts.INSIDE})",
        )
    if least <= low and high <= most:
        return f"The 95% interval ends {seen.size(min(low - least, most - high))} inside the range."
    if least <= seen.mean <= most:
        return seen.needs(LEVEL, lambda p: least <= p[0] and p[1] <= most, "put the 95% interval inside the range")
    return seen.needs(
        LEVEL, lambda p: p[0] > most or p[1] < least, f"put the 95% interval outside the range ({verdicts.OUTSIDE})"
    )


def _chance(claim: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> str:
    """What the arms at chance would have to score, where any is and the verdict says so."""
    chance = next(
        (
            score["chance"]
            for arm in arms
            if (score := arm["scores"].get(claim["metric"])) and arm["name"] in claim["at_chance"]
        ),
        None,
    )
    if chance is None or not (claim["verdict"] == verdicts.AT_CHANCE or verdicts.AGAINST_CHANCE in claim["verdict"]):
        return ""
    scale = scale_of(claim["metric"])
    scores = {claim["treatment"]: claim["treatment_score"], claim["control"]: claim["control_score"]}
    now = ", ".join(f"{name} {scale.value(scores[name]['mean'])}{scale.unit}" for name in claim["at_chance"])
    which = "One arm" if len(claim["at_chance"]) > 1 else claim["at_chance"][0]
    return (
        f"{which} would have to score above {scale.value(chance + CHANCE_MARGIN)}{scale.unit} to count as having learned the "
        f"task (now: {now})."
    )
