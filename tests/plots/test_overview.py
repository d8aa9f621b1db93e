"""A sweep on one page: claims in multiples of their margins, and what stands beside them."""

from __future__ import annotations

import csv
import itertools
import json

import pytest

from mmctl.errors import UsageError
from mmctl.plots import extrapolation, grid, overview


def changed(sweep, tmp_path, change):
    """The sweep's results with `change` made to them, in a folder beside the same runs."""
    folder = tmp_path / "sweeps" / "changed"
    folder.mkdir(parents=True)
    results = json.loads((sweep / "results.json").read_text())
    change(results)
    (folder / "results.json").write_text(json.dumps(results))
    return folder


def test_claims_share_an_axis_in_multiples_of_their_margin(sweep, tmp_path):
    found = {row.ablation: row for row in overview.collect(sweep)}
    assert list(found) == ["bandwidth", "transformer-masks", "long-term-removal"]
    marks = {mark.label: mark for mark in found["transformer-masks"].marks}
    # A difference of 0.8 with an interval of 0.79 to 0.82, against a margin of 0.02; one that was not measured is not drawn.
    assert set(marks) == {"icl", "small"}
    assert marks["icl"].value == pytest.approx(40.0)
    assert marks["icl"].interval == pytest.approx((39.5, 41.0))
    rows = list(csv.DictReader(overview.draw(sweep, tmp_path)["csv"].open()))
    claims = {row["name"]: float(row["value"]) for row in rows if row["kind"] == "claim"}
    assert claims == pytest.approx({"loss": -1.0, "alpha": 15.0, "icl": 40.0, "small": 0.5})
    scores = {(row["ablation"], row["name"], row["x"]): float(row["value"]) for row in rows if row["kind"] == "score"}
    assert scores["transformer-masks", "transformer", "256"] == pytest.approx(0.1)
    losses = [row for row in rows if row["kind"] == "loss" and row["name"] == "mosaic"]
    assert [(row["x"], float(row["value"])) for row in losses] == [("1000", 2.5), ("2000", 2.0), ("3000", 1.5)]


def test_a_range_is_the_band_and_layers_are_lines_of_their_own(sweep, tmp_path):
    def ranged(results):
        claim = results["ablations"][0]["claims"][1]
        part = {"verdict": "inside the range", "difference": {"mean": 0.35, "interval": [0.3, 0.4], "n": 3}}
        claim |= {"range": [0.2, 0.4], "margin": None, "parts": [{"part": "layer 0", **part}]}

    (bandwidth, *_) = overview.collect(changed(sweep, tmp_path, ranged))
    mark = bandwidth.marks[-1]
    assert (mark.label, mark.is_range, mark.verdict) == ("alpha layer 0", True, "inside the range")
    assert mark.value == pytest.approx(0.5)
    assert mark.interval == pytest.approx((0.0, 1.0))


def test_the_page_says_what_an_ablation_has_not(sweep):
    figure = overview.plot(overview.collect(sweep))
    assert len(figure.axes) == 9
    empty = [axes.texts[0].get_text() for axes in figure.axes if not axes.axison]
    assert empty == ["no claim measured", "no logged loss at hand"]  # removal: nothing claimed, nothing trained
    assert figure.get_figheight() <= overview.PAGE


def test_many_claims_still_are_one_page(sweep, tmp_path):
    def many(results):
        results["ablations"] = [
            {**ablation, "name": f"{ablation['name']}-{copy}"} for copy in range(6) for ablation in results["ablations"]
        ]

    figure = overview.plot(overview.collect(changed(sweep, tmp_path, many)))
    assert len(figure.axes) == 54
    assert figure.get_figheight() == overview.PAGE


def test_more_arms_than_can_be_told_apart_are_those_the_claims_compare(sweep, tmp_path):
    def grown(results):
        arms = results["ablations"][0]["arms"]
        arms += [arms[0] | {"name": f"arm{place}"} for place in range(20)]
        results["ablations"][0]["claims"][0]["treatment"] = "arm7"

    folder = changed(sweep, tmp_path, grown)
    (row, *_) = found = overview.collect(folder)
    assert row.shown == ["adaptive", "arm7"]
    figure = overview.plot(found)
    legend = [text.get_text() for text in figure.axes[2].get_legend().get_texts()]
    assert legend == row.shown
    assert "of bandwidth the 2 of 21 arms that its claims compare" in figure.get_suptitle().replace("\n", " ")
    first = json.loads((folder / "results.json").read_text())["ablations"][0] | {"claims": []}
    assert grid.readable(first) == (
        [arm["name"] for arm in first["arms"][: grid.MOST]],
        "of bandwidth the 12 of 21 arms that come first",
    )
    saved = {line["name"] for line in csv.DictReader(overview.draw(folder, tmp_path)["csv"].open())}
    assert {"arm0", "arm19"} <= saved  # the numbers are all there


@pytest.mark.parametrize("lengths", [[16, 32, 48, 64, 96, 128, 192, 256, 512, 2048], [128], [128, 256, 512, 1024]])
def test_lengths_under_a_panel_do_not_touch(lengths):
    labels = extrapolation._spaced(lengths)
    shown = [n for n, label in zip(lengths, labels, strict=True) if label]
    assert shown[0] == lengths[0]
    assert all(b / a >= (lengths[-1] / lengths[0]) ** (1 / extrapolation.LABELS) for a, b in itertools.pairwise(shown))
    assert len(lengths) > 4 or shown == lengths


def test_nothing_measured_is_one_clear_line(sweep, tmp_path):
    def empty(results):
        results["ablations"] = [{"name": "x", "arms": [], "claims": []}]

    with pytest.raises(UsageError, match="nothing has been measured yet"):
        overview.collect(changed(sweep, tmp_path, empty))
