"""Numbers and verdicts as people read them; shared by the report and the terminal's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmctl.sweeps import verdicts
from mmctl.sweeps.units import Scale, scale_of

MISSING = "missing"
UNPUBLISHED = "no published value"

SIGNS = {"held": "✓", "against": "✗", "open": "?", "none": "–"}
"""Kinds of verdict, with the sign that stands before the word where there is colour: as claimed, not as claimed, open,
nothing to judge."""
TONES = {
    verdicts.REPRODUCED: "held",
    verdicts.SUPPORTED: "held",
    verdicts.INSIDE: "held",
    verdicts.OPPOSITE: "against",
    verdicts.NO_EFFECT: "against",
    verdicts.POSITIVE: "against",
    verdicts.NEGATIVE: "against",
    verdicts.OUTSIDE: "against",
    verdicts.PARTLY: "against",
    verdicts.AT_CHANCE: "none",
    verdicts.NOT_RUN: "none",
}


def tone(verdict: str) -> str:
    """The kind of a verdict, one of SIGNS. A difference from an arm that learned nothing is open, as is whatever the
    interval does not settle."""
    return TONES.get(verdict, "open")


def large(value: float | None) -> str:
    """1234567 -> "1.23 M"."""
    if value is None:
        return MISSING
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """90 -> "1.5 minutes"."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} seconds"


def score(summary: Mapping[str, Any] | None, scale: Scale, most: float | None = None) -> str:
    """Mean ± standard deviation over seeds and the mean's 95% interval, in the scale's unit, which is not repeated.

    most: the largest value there can be (an interval around a mean near it would reach beyond); 0 is then the smallest.
    """
    if summary is None:
        return MISSING
    said = scale.value(summary["mean"])
    if summary["sd"] is not None:
        said += f" ± {scale.value(summary['sd'])}"
    pair = summary["interval"]
    if pair is not None and most is not None:
        pair = [min(max(end, 0.0), most) for end in pair]
    return said + ("" if pair is None else f" {interval(pair, scale, signed=False)}")


def interval(pair: Sequence[float] | None, scale: Scale, signed: bool = True) -> str:
    if pair is None:
        return "no interval"
    return f"[{scale.value(pair[0], signed)}, {scale.value(pair[1], signed)}]"


def seeds(difference: Mapping[str, Any]) -> str:
    """n, and what the interval's width comes from where that is not the spread over seeds alone."""
    if difference["over"] != "seeds":
        return f"n = {difference['n']} seed, interval over {difference['over']}"
    examples = difference["sampling"]["examples"] if difference["error_from"] == "examples" else None
    n = difference["n"]
    return f"n = {n} seed{'s' * (n != 1)}" + (
        f"; interval widened for {examples} held-out examples" if examples else ""
    )


def measured(difference: Mapping[str, Any] | None, scale: Scale, signed: bool) -> str:
    """A mean with its 95% interval, unit and n."""
    if difference is None:
        return MISSING
    unit = scale.of_difference if signed else scale.unit
    value, pair = scale.value(difference["mean"], signed), difference["interval"]
    if pair is None:
        return f"{value} {unit}".rstrip() + f", no interval ({seeds(difference)})"
    return f"{value} {interval(pair, scale, signed)} {unit}".rstrip() + f" ({seeds(difference)})"


def ours(claim: Mapping[str, Any]) -> str:
    """Our side of a claim: the mean paired difference, or the arm's own mean (by layer, where judged so)."""
    scale = scale_of(claim["metric"])
    if claim["parts"]:
        return "; ".join(f"{p['part']}: {measured(p['difference'], scale, False)}" for p in claim["parts"])
    return measured(claim["difference"], scale, claim["control"] is not None)


def holm_p(claim: Mapping[str, Any]) -> str:
    """Holm-adjusted p-value of a claim of a direction; empty for others."""
    p = claim["p_holm"]
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def published(claim: Mapping[str, Any]) -> str:
    """The published values, with the published effect unless those words hold it already."""
    source = claim["published"]
    if source is None:
        return UNPUBLISHED
    effect = source["effect"]
    if effect is None or f"{effect:+g}" in source["text"]:
        return str(source["text"])
    return f"{source['text']} ({effect:+g} {source['unit']})"


def marks(claim: Mapping[str, Any]) -> list[str]:
    """What a reader must know beside the verdict."""
    said = []
    if claim["unmatched"]:
        said.append(f"unmatched: {', '.join(claim['unmatched'])}")
    if len(claim["at_chance"]) == 1:
        said.append(f"{claim['at_chance'][0]} at chance: it has not learned the task within this budget")
    difference = claim["difference"]
    if difference is not None and difference["sd"] == 0.0 and not claim["parts"]:
        said.append("the same at every seed")
    low, high = claim["range"] or (0.0, 0.0)
    starts = [s for s in [claim["start"], *(p["start"] for p in claim["parts"])] if s is not None]
    if claim["range"] and any(low <= s <= high for s in starts) and claim["verdict"] != "not run":
        said.append("its start value lies in the range")
    if claim["registered"]:
        said.append(f"claim {claim['registered']}")
    if claim["caveat"]:
        said.append("see its caveat")
    return said


def compared(claim: Mapping[str, Any]) -> str:
    """Between which arms the metric is measured, and what is expected; follows the metric's name."""
    scale = scale_of(claim["metric"])
    if claim["control"] is None and claim["expected"] != "range":
        within = "" if claim["margin"] is None else f" (within {scale.size(claim['margin'], '±')} counts as 0)"
        return f" of {claim['treatment']}, expected {'> 0' if claim['expected'] == 'greater' else '< 0'}{within}."
    if claim["control"] is None:
        low, high = claim["range"]
        layers = f", every {claim['each']} apart" if claim["each"] else ""
        return f" of {claim['treatment']}{layers}, expected in [{low:g}, {high:g}]."
    margin = scale.size(claim["margin"], "±")
    sign = {"greater": "> 0", "less": "< 0", "no-effect": f"within {margin}"}[claim["expected"]]
    counts = "" if claim["expected"] == "no-effect" else f" (within {margin} counts as no effect)"
    return f", {claim['treatment']} minus {claim['control']}, expected {sign}{counts}."


def order(metrics: Sequence[str]) -> list[str]:
    """The metrics a table of scores shows: a run's losses, then each task's accuracy (or loss, where it has none)."""
    tasks: dict[str, list[str]] = {}
    for metric in metrics:
        task, slash, rest = metric.partition("/")
        if slash and "@" in rest:
            tasks.setdefault(task, []).append(metric)
    shown = [m for m in ("train_loss", "held_out_loss") if m in metrics]
    for task, own in tasks.items():
        wanted = {f"{task}/accuracy", f"{task}/accuracy-last-quarter"}
        # What is also measured in bits per byte is a language model, judged by its loss.
        judged_by_loss = any(m.startswith(f"{task}/bits-per-byte") for m in own)
        accuracies = [] if judged_by_loss else [m for m in own if m.partition("@")[0] in wanted]
        shown += sorted(accuracies or [m for m in own if m.startswith(f"{task}/loss@")], key=_by_length)
    return shown


def _by_length(metric: str) -> tuple[str, int]:
    name, _, multiple = metric.partition("@")
    digits = multiple.rstrip("x")
    return name, int(digits) if digits.isdigit() else 0
