"""Axes to arms: one factor at a time (the default), the whole product, or zipped; with exclusions that give a
reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from mmctl.evaluation.changes import Changes
from mmctl.sweeps import reading
from mmctl.sweeps.matrix import Arm
from mmctl.sweeps.reading import Section

COMBINE = ("one-at-a-time", "product", "zip")
MOST_ARMS = 10_000


def expand(top: Section) -> tuple[tuple[Arm, ...], tuple[tuple[Arm, str], ...]]:
    """Arms of `axes`, and those an `exclude` entry left out with its reason.

    An axis is `key: [first, ...]`; its first value is the baseline's. Keys are configuration keys, or
    `evaluate.remove_long_term`, `evaluate.delay` and `evaluate.pace.slots`, say, for changes at evaluation time.
    """
    for key in ("combine", "exclude"):
        top.has(key)  # asked for, even if the axes are wrong already
    part = reading.section(top, "axes", top.values["axes"])
    axes = {key: reading.list_of(_level, least=2)(part, key, values) for key, values in part.values.items()}
    if not axes:
        part.fail("", "expected at least one axis")
    for key, values in axes.items():
        reading.unique(part, key, map(str, values))
        _split(part, {key: values[0]})  # refuses keys that are not an ablation's to set
    combine = top.take("combine", reading.one_of(*COMBINE), "one-at-a-time")
    exclusions = top.take("exclude", reading.list_of(lambda s, k, v: _exclusion(s, k, v, axes)), [])
    if combine is None or exclusions is None:
        return (), ()
    arms, excluded = [], []
    hits = [0] * len(exclusions)
    for levels in _combinations(part, axes, combine):
        arm = _arm(part, axes, levels)
        reasons = []
        for i, (when, reason) in enumerate(exclusions):
            if all(levels[k] == v for k, v in when.items()):
                hits[i] += 1
                reasons.append(reason)
        if reasons:
            excluded.append((arm, reasons[0]))
        else:
            arms.append(arm)
    for i, count in enumerate(hits):
        if not count:
            top.fail(f"exclude[{i}]", "leaves out nothing: no arm has these values")
    if len(arms) < 2:
        top.fail("exclude", f"leaves {len(arms)} arm{'s' * (len(arms) != 1)}: an ablation compares at least two")
    return tuple(arms), tuple(excluded)


def _combinations(part: Section, axes: dict[str, list[Any]], combine: str) -> Iterable[dict[str, Any]]:
    keys = list(axes)
    if combine == "zip":
        lengths = {len(v) for v in axes.values()}
        if len(lengths) > 1:
            part.fail("", f"combine: zip needs axes of one length, got {', '.join(str(len(v)) for v in axes.values())}")
        return [dict(zip(keys, values, strict=True)) for values in zip(*axes.values(), strict=True)]
    if combine == "product":
        count = 1
        for values in axes.values():
            count *= len(values)
        if count > MOST_ARMS:
            part.fail("", f"{count} combinations: expected at most {MOST_ARMS}")
        return [dict(zip(keys, values, strict=True)) for values in itertools.product(*axes.values())]
    first = {key: values[0] for key, values in axes.items()}
    others = [{**first, key: value} for key, values in axes.items() for value in values[1:]]
    return [first, *others]


def _arm(part: Section, axes: dict[str, list[Any]], levels: dict[str, Any]) -> Arm:
    """Named by what differs from the baseline's values: `bandwidth=constant+key_extractor=fixed`."""
    leaves = [key.rpartition(".")[2] for key in axes]
    short = {key: leaf if leaves.count(leaf) == 1 else key for key, leaf in zip(axes, leaves, strict=True)}
    different = {short[key]: value for key, value in levels.items() if value != axes[key][0]}
    words = [f"{key}={_word(value)}" for key, value in different.items()]
    name = "+".join(words) or "baseline"
    changed, evaluate = _split(part, levels)
    return Arm(name, ", ".join(words) or "baseline", changed, evaluate, levels=levels)


def _split(part: Section, levels: dict[str, Any]) -> tuple[dict[str, Any], Changes]:
    from mmctl.sweeps.matrix import changes

    evaluate = {k.removeprefix("evaluate."): v for k, v in levels.items() if k.startswith("evaluate.")}
    changed = {k: v for k, v in levels.items() if not k.startswith("evaluate.")}
    checked = reading.settings(part, "", changed)
    return checked, changes(part, "evaluate", {k: v for k, v in evaluate.items() if v is not None})


def _level(section: Section, key: str, value: Any) -> Any:
    if isinstance(value, dict | list):
        section.fail(key, f"expected a single value, got {reading.kind(value)}")
    return value


def _word(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)


def _exclusion(parent: Section, key: str, value: Any, axes: dict[str, list[Any]]) -> tuple[dict[str, Any], str]:
    part = reading.section(parent, key, value)
    when = part.take("when", reading.section)
    reason = part.take("reason", reading.text)
    part.done()
    if not when.values:
        when.fail("", "expected at least one axis with its value")
    for axis, level in when.values.items():
        if axis not in axes:
            when.fail(axis, f"no such axis; axes: {', '.join(axes)}")
        if level not in axes[axis]:
            when.fail(axis, f"{level}: expected one of {', '.join(map(str, axes[axis]))}")
    return when.values, reason
