"""Numbers and verdicts as people read them; shared by the report and the terminal's table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MISSING = "missing"


def number(value: float | None, digits: int = 4) -> str:
    """Four significant digits, plain for sizes that occur here; "missing" for what is not there."""
    if value is None:
        return MISSING
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.{digits - 1}g}"
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if abs(value) >= 1000 else f"{value:.{digits}f}"


def large(value: float | None) -> str:
    """1234567 -> "1.23 M"."""
    if value is None:
        return MISSING
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def size(count: float) -> str:
    """Bytes: 6580000 -> "6.6 MB"."""
    for unit_size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit_size:
            return f"{count / unit_size:.1f} {unit}"
    return f"{count:.0f} B"


def score(summary: Mapping[str, Any] | None) -> str:
    """Mean ± standard deviation over seeds (n)."""
    if summary is None:
        return MISSING
    spread = "" if summary["sd"] is None else f" ± {summary['sd']:.4f}"
    return f"{number(summary['mean'])}{spread} (n = {summary['n']})"


def interval(pair: Sequence[float] | None, signed: bool = True) -> str:
    if pair is None:
        return "no interval"
    form = "+.4f" if signed else ".4f"
    return f"[{pair[0]:{form}}, {pair[1]:{form}}]"


def ours(claim: Mapping[str, Any]) -> str:
    """Our side of a claim: the mean paired difference (or the arm's own mean) with its 95% interval and n."""
    difference = claim["difference"]
    if difference is None:
        return MISSING
    signed = claim["control"] is not None
    value = f"{difference['mean']:+.4f}" if signed else f"{difference['mean']:.4f}"
    unit = "seeds" if difference["over"] == "seeds" else f"seed, interval over {difference['over']}"
    measure = f" {claim['unit']}" if claim["unit"] else ""
    return f"{value} {interval(difference['interval'], signed)}{measure} (n = {difference['n']} {unit})"


def published(claim: Mapping[str, Any]) -> str:
    """The published values, with the published effect where there is one number for it."""
    effect, unit = claim["published"]["effect"], claim["published"]["unit"]
    return claim["published"]["text"] + ("" if effect is None else f" ({effect:+g} {unit})")


def compared(claim: Mapping[str, Any]) -> str:
    """What is measured between which arms."""
    if claim["control"] is None:
        low, high = claim["range"]
        return f"{claim['metric']} of {claim['treatment']}, expected in [{low:g}, {high:g}]"
    sign = {"greater": "> 0", "less": "< 0", "no-effect": f"within ±{claim['margin'] or 0:g}"}[claim["expected"]]
    return f"{claim['metric']}, {claim['treatment']} minus {claim['control']}, expected {sign}"


def cell(text: str) -> str:
    """Text inside a Markdown table's cell."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(map(cell, head)) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines)


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
