"""Several sizes of one architecture are one curve in the cost figures."""

from __future__ import annotations

from typing import Any

from mmctl.plots.cost_points import Point, families
from mmctl.plots.flops_accuracy import plot


def size(family: str, name: str, mean: float, cost: float) -> Point:
    return Point(name, "m", mean, (mean - 0.05, mean + 0.05), 3, cost, int(cost), (mean,) * 3, family)


SIZES = [
    size("mosaic", "mosaic, d = 64", 0.8, 400.0),
    size("mosaic", "mosaic, d = 32", 0.5, 100.0),
    size("transformer", "transformer, d = 32", 0.2, 101.0),
    size("transformer", "transformer, d = 64", 0.3, 390.0),
    size("", "another", 0.4, 200.0),
]


def drawn(found: list[Point], against: str) -> tuple[Any, list[str]]:
    made = plot(found, metric="icl/accuracy-last-quarter@1x", convention="executed", context=128, against=against)
    return made.axes[0], [text.get_text() for text in made.legends[0].get_texts()]


def test_a_curve_goes_through_its_sizes_in_order_of_cost_and_nothing_is_moved() -> None:
    for against in ("flops", "parameters"):
        axes, legend = drawn(SIZES, against)
        assert legend == ["mosaic", "transformer", "another"]
        curves = [
            line for line in axes.lines if line.get_linestyle() not in ("None", "none") and len(line.get_xdata()) == 2
        ]
        shown = [(list(line.get_xdata()), [round(float(y), 6) for y in line.get_ydata()]) for line in curves]
        assert ([100.0, 400.0], [50.0, 80.0]) in shown
        assert ([101.0, 390.0], [20.0, 30.0]) in shown
        assert len(shown) == 2
        assert curves[0].get_color() != curves[1].get_color()


def test_points_without_families_stay_single() -> None:
    single = [Point(p.arm, p.model, p.mean, p.interval, p.n, p.flops_per_token, p.parameters, p.values) for p in SIZES]
    _, legend = drawn(single, "flops")
    assert legend == [p.arm for p in SIZES]


def test_a_family_is_called_as_its_arms_are_or_by_its_own_name() -> None:
    def arm(name: str, label: str) -> dict[str, str]:
        return {"name": name, "label": label, "identity": f"id-{name}"}

    arms = [
        arm("m32", "memory mosaic, v2, d = 32"),
        arm("m64", "memory mosaic, v2, d = 64"),
        arm("t1", "t"),
        arm("t2", "u, x"),
    ]
    entry = {"function": "equal-cost", "families": {"m-at-flops": ["m32", "m64"], "t-at-flops": ["t1", "t2", "gone"]}}
    found = families({"ablations": [{"arms": arms, "across": [entry, {"function": "slope"}]}, {"arms": arms}]})
    assert found == {
        "id-m32": "memory mosaic, v2", "id-m64": "memory mosaic, v2", "id-t1": "t-at-flops", "id-t2": "t-at-flops"
    }  # fmt: skip
