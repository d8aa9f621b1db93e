"""A claim of a paper as data: what is measured, between which arms, what was published, and what counts as no effect."""

from __future__ import annotations

from dataclasses import dataclass

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
    """`treatment` minus `control` in `metric` is expected to be greater or less than 0, within the margin, or (without a
    control) `treatment`'s own value within `range`."""

    id: str
    statement: str
    metric: str
    treatment: str
    expected: str
    published: Published
    control: str | None = None
    suite: str | None = None
    margin: float | None = None
    """Largest absolute difference that counts as no effect, in the metric's unit."""
    range: tuple[float, float] | None = None
    stand_in: str | None = None
    """How our metric differs from the published one, where it does."""

    @property
    def directional(self) -> bool:
        return self.expected in ("greater", "less")

    @property
    def published_effect(self) -> float | None:
        return self.published.in_metric_units(self.metric)


def unit_of(metric: str) -> str:
    """Unit of a metric by its name."""
    if "/accuracy" in metric:
        return "accuracy (0 to 1)"
    if "bits-per-byte" in metric:
        return "bits per byte"
    if metric.startswith("text/loss"):
        return "nats per byte"
    if "loss" in metric:
        return "nats"
    return "exponent" if "alpha" in metric else ""
