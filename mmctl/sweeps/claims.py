"""A claim as data: what is measured, between which arms, what was published, and what counts as no effect.

Most are a paper's. A hypothesis of one's own is a claim without `published`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmctl.errors import nearest
from mmctl.sweeps import reading
from mmctl.sweeps.metrics import RESULT_METRICS, SCORE
from mmctl.sweeps.reading import Section
from mmctl.sweeps.units import Scale, scale_of, unit_of

EXPECTED = ("greater", "less", "no-effect", "range")


@dataclass(frozen=True)
class Published:
    """A number (or words, where the paper gives none) with its source, as it stands in the paper."""

    source: str
    """Paper's arXiv number and the table, figure or section."""
    metric: str
    """What the paper measured."""
    text: str
    """The published values in words, such as "fixed 15.9, stochastic 31.7"."""
    effect: float | None = None
    """Published treatment minus control, in `unit`; None where the paper gives no number."""
    unit: str = ""
    """points (percentage points) or the metric's own unit."""

    def in_metric_units(self, metric: str) -> float | None:
        """The published effect on our metric's scale, where that can be said: points are hundredths of an accuracy."""
        if self.effect is None:
            return None
        if self.unit == "points":
            return self.effect / 100 if "/accuracy" in metric else None
        return self.effect if self.unit == unit_of(metric) else None


@dataclass(frozen=True)
class Claim:
    """`treatment` minus `control` in `metric` is expected to be greater or less than 0, within the margin, or (without
    a control) `treatment`'s own value within `range`. A number made across arms, such as a slope, may be expected to be
    greater or less than 0 by itself."""

    id: str
    statement: str
    metric: str
    treatment: str
    expected: str
    published: Published | None = None
    """None for a hypothesis of one's own: nothing is published to compare with."""
    control: str | None = None
    suite: str | None = None
    margin: float | None = None
    """Largest absolute difference that counts as no effect, in the metric's unit."""
    range: tuple[float, float] | None = None
    each: str | None = None
    """"layer": a range is judged for every layer apart, `<metric>/layer<k>`, not for their mean."""
    stand_in: str | None = None
    """How our metric differs from the published one, where it does."""
    caveat: str | None = None
    """What a reader must know before comparing the two sides."""

    @property
    def directional(self) -> bool:
        return self.expected in ("greater", "less")

    @property
    def published_effect(self) -> float | None:
        return None if self.published is None else self.published.in_metric_units(self.metric)

    @property
    def scale(self) -> Scale:
        return scale_of(self.metric)


def suite_of(metric: str) -> str | None:
    """The suite a score `<task>/<score>@<length>x` is measured in; None for a number of training."""
    from mmctl.data import TASKS, task_class

    task = metric.partition("/")[0]
    return task_class(task).dimension if task in TASKS else None


def read_claim(parent: Section, key: str, value: Any, arms: list[str]) -> Claim:
    """A `claims` entry of a matrix whose arms are `arms`, strictly. No arms: they are wrong themselves, which was
    said."""
    part = reading.section(parent, key, value)
    arm = reading.one_of(*arms) if arms else reading.name
    expected = part.take("expected", reading.one_of(*EXPECTED))
    claim = Claim(
        id=part.take("id", reading.name),
        statement=part.take("statement", reading.text),
        metric=part.take("metric", _metric),
        suite=part.take("suite", _suite, None),
        treatment=part.take("treatment", arm),
        control=part.take("control", arm, None),
        expected=expected,
        margin=part.take("margin", reading.positive, None),
        range=part.take("range", _range, None),
        each=part.take("each", reading.one_of("layer"), None),
        published=part.take("published", _published, None),
        stand_in=part.take("stand_in", reading.text, None),
        caveat=part.take("caveat", reading.text, None),
    )
    part.done()
    if claim.suite is not None and claim.suite != suite_of(claim.metric):
        where = f"of suite {suite_of(claim.metric)}" if suite_of(claim.metric) else "of training, in no suite"
        part.fail("suite", f'"{claim.suite}": {claim.metric} is {where}')
    if expected == "range":
        if claim.range is None:
            part.fail("range", "is missing: expected [low, high]")
        if claim.control is not None or claim.margin is not None:
            part.fail("control" if claim.control else "margin", "a range is one arm's own value: it takes neither")
        if claim.each is not None and not claim.metric.startswith("diagnostics:"):
            part.fail("each", f"layers have diagnostics of their own; {claim.metric} is of the whole model")
    else:
        for key, value in (("range", claim.range), ("each", claim.each)):
            if value is not None:
                part.fail(key, f"belongs to expected: range, not {expected}")
        alone = claim.directional and claim.control is None and claim.metric.startswith("across:")  # compared with 0
        if claim.control is None and not alone:
            part.fail("control", f"is missing: expected one of {', '.join(arms)}")
        if claim.margin is None and not alone:
            part.fail("margin", f"is missing: the largest difference in {claim.metric} that counts as no effect")
        if claim.control == claim.treatment:
            part.fail("control", f'"{claim.control}" is the treatment too')
    return claim


def _published(parent: Section, key: str, value: Any) -> Published:
    part = reading.section(parent, key, value)
    found = Published(
        source=part.take("source", reading.text),
        metric=part.take("metric", reading.text),
        text=part.take("value", _words),
        effect=part.take("effect", reading.number, None),
        unit=part.take("unit", reading.text, ""),
    )
    part.done()
    if found.effect is not None and not found.unit:
        part.fail("unit", "is missing: points, or the metric's own unit")
    return found


def _words(section: Section, key: str, value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}"
    return reading.text(section, key, value)


def _range(section: Section, key: str, value: Any) -> tuple[float, float]:
    low_high = reading.list_of(reading.number)(section, key, value)
    if len(low_high) != 2 or low_high[0] >= low_high[1]:
        section.fail(key, "expected [low, high]")
    return low_high[0], low_high[1]


def _metric(section: Section, key: str, value: Any) -> str:
    from mmctl.data import TASKS
    from mmctl.evaluation.suites import ATTENTION

    metric = reading.text(section, key, value)
    if metric in RESULT_METRICS or any(
        metric.startswith(p) and len(metric) > len(p) for p in ("diagnostics:", "across:")
    ):
        return metric
    task, slash, score = metric.partition("/")
    scored = {*TASKS, ATTENTION}
    if slash and task in scored and not SCORE.fullmatch(metric):
        section.fail(
            key, f'"{metric}": expected {task}/<score>@<multiple of the training length>x, such as {task}/loss@1x'
        )
    if slash and score and task in {*scored, "train_loss", "held_out_loss"}:
        return metric  # whether that task has that score is asked when the plan is made: see metrics.py
    examples = [*RESULT_METRICS, "diagnostics:bandwidth/alpha/long-term", *(f"{t}/accuracy@1x" for t in sorted(TASKS))]
    section.fail(key, f'"{metric}": no such metric{nearest(metric, examples, "such as")}')


def _suite(section: Section, key: str, value: Any) -> str:
    from mmctl.evaluation import SUITES

    return reading.one_of(*SUITES)(section, key, value)
