"""Units of metrics, and how their numbers are written: accuracies in percent, their differences in percentage points.

results.json and numbers.csv keep the metric's own unit (an accuracy from 0 to 1); what people read is scaled here and
nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """`factor` times a number is what is shown, with `digits` decimals, in `unit`; differences in `of_difference`."""

    unit: str
    of_difference: str
    factor: float = 1.0
    digits: int = 4

    def value(self, value: float, signed: bool = False) -> str:
        """The bare number: a difference's with its sign, and for points one digit more than their percentages."""
        if not signed:
            return f"{self.factor * value:.{self.digits}f}"
        return f"{self.factor * value:+.{self.digits + (self.factor != 1.0)}f}"

    def size(self, value: float, sign: str = "") -> str:
        """A width or margin with its unit, in three significant digits: "2 points", "±0.01 nats"."""
        return f"{sign}{self.factor * value:.3g} {self.of_difference}".rstrip()


ACROSS = {
    "threshold": "tokens",
    "above": "tokens",
    "recall-threshold": "tokens",
    "intercept": "tokens",
    "slope": "tokens per thousand numbers of state",
    "state": "thousands of numbers",
}
"""Units of numbers that a function of `across` makes (forget_threshold.py), by the beginning of their name."""
ACCURACY = Scale("%", "points", 100.0, 1)
GAIN = Scale("points a doubling", "points a doubling", 100.0, 2)
"""Of `gain-per-doubling`: accuracy that twice as many demonstrations add."""

STEPS = Scale("steps", "steps", digits=0)


def unit_of(metric: str) -> str:
    """Unit of a metric's stored numbers, by its name."""
    if metric.startswith("across:"):
        return next((unit for start, unit in ACROSS.items() if metric.startswith(f"across:{start}")), "")
    if metric.startswith("attention/"):
        return "share"  # of positions (flatness), of the weight (peak mass)
    if "/accuracy" in metric:
        return "accuracy (0 to 1)"
    if "/gain-per-doubling" in metric:
        return "accuracy (0 to 1) a doubling"
    if "bits-per-byte" in metric:
        return "bits per byte"
    if metric.startswith("text/loss"):
        return "nats per byte"
    if "loss" in metric:
        return "nats"
    if metric == "seconds":
        return "s"
    if metric in ("diagnostics:steps-to-target", "diagnostics:selected-step"):
        return "steps"
    if "/total-variation" in metric:
        return "total variation"
    return "exponent" if "alpha" in metric else ""


def scale_of(metric: str) -> Scale:
    """How numbers of a metric are written."""
    if "/accuracy" in metric:
        return ACCURACY
    if "/gain-per-doubling" in metric:
        return GAIN
    unit = unit_of(metric)
    if unit == STEPS.unit:
        return STEPS
    return Scale("", "") if unit == "exponent" else Scale(unit, unit)
