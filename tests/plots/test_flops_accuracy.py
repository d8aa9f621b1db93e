"""Cost against accuracy: grouping, intervals, conventions apart, and a sweep's results read as they are."""

from __future__ import annotations

import csv
import json

import pytest
from scipy import stats

from mmctl.errors import UsageError
from mmctl.models.flops import flops_per_token
from mmctl.plots import flops_accuracy as fa
from mmctl.plots import sources
from mmctl.runs import RunFolder

METRIC = "icl/accuracy-last-quarter@1x"


def test_points_are_means_with_t_intervals_over_seeds():
    values = [0.5, 0.7, 0.9]
    runs = [fa.Run("a", "m", s, v, 1e6, 10) for s, v in enumerate(values)] + [fa.Run("b", "m", 0, 0.2, 2e6, 20)]
    a, b = fa.points(runs)
    expected = stats.t.interval(0.95, 2, loc=0.7, scale=stats.sem(values))
    assert a.interval == pytest.approx(expected)
    assert (a.mean, a.n, b.n, b.interval) == (pytest.approx(0.7), 3, 1, None)


def test_the_interval_is_that_of_the_results(sweep):
    runs, _ = fa.collect(sweep, METRIC, "executed")
    mosaic = next(p for p in fa.points(runs) if p.arm == "mosaic-v2")
    assert mosaic.interval == pytest.approx((0.85, 0.95))  # as the conftest made it up, not the seeds' own t interval


def test_a_shared_cell_is_one_point_and_removal_another(sweep):
    runs, context = fa.collect(sweep, "icl/accuracy-last-quarter@1x", "executed")
    found = {p.arm: p for p in fa.points(runs)}
    assert context == 64
    # The mosaic cell has two names in two ablations, so its cell's name is shown, once.
    assert set(found) == {"mosaic-v2", "transformer", "long-term removed"}
    assert found["mosaic-v2"].n == 3
    assert found["long-term removed"].flops_per_token == 3.0e6 + 1


def test_flops_are_counted_at_the_context_the_metric_is_scored_at(root, sweep):
    runs, context = fa.collect(sweep, "icl/accuracy-last-quarter@4x", "published")
    assert context == 256
    config = RunFolder.find(root, "mosaic-v2").config()
    for arm, removed in (("mosaic-v2", False), ("long-term removed", True)):
        expected = flops_per_token(config.model, config.data.vocabulary, 256, "published", removed)
        assert {r.flops_per_token for r in runs if r.arm == arm} == {expected}


def test_the_figure_marks_conventions_and_published_points(sweep, tmp_path):
    paths = fa.draw(sweep, tmp_path)
    rows = list(csv.DictReader(paths["csv"].open()))
    published = [row for row in rows if row["source"] == "published"]
    assert len(published) == len(fa.PUBLISHED)
    assert {row["convention"] for row in published} == {"published"}
    assert {row["convention"] for row in rows if row["source"] == "ours"} == {"executed"}
    assert all(row["low"] == "" and row["n"] == "" for row in published)
    large = next(row for row in published if row["arm"] == "mosaic v2 large")
    assert (float(large["value"]), round(float(large["flops_per_token"]) / 1e9, 1)) == (53.4, 27.4)
    runs, context = fa.collect(sweep, METRIC, "published")
    figure = fa.plot(fa.points(runs), metric=METRIC, convention="published", context=context, chance=0.125)
    ours, theirs = figure.axes
    assert 12.5 in {line.get_ydata()[0] for line in ours.lines if len(set(line.get_ydata())) == 1}
    assert "chance 12.5%" in {text.get_text() for text in ours.texts}
    assert ours.get_ylabel() == f"{METRIC} (%)"
    assert "convention: published" in ours.get_xlabel()
    assert (ours.get_title(loc="left"), theirs.get_title(loc="left")) == ("this laboratory", "as published")


def test_no_two_points_hide_each_other():
    placed = fa._side_by_side([1e6, 1e6, 1e6, 2e6])
    gaps = [b - a for a, b in zip(sorted(placed), sorted(placed)[1:], strict=False)]
    assert min(gaps) >= 0.02 * 1e6
    assert placed[0] == 1e6


def test_parameters_can_be_the_axis(sweep, tmp_path):
    paths = fa.draw(sweep, tmp_path, against="parameters")
    assert paths["png"].name == "params-accuracy-icl-accuracy-last-quarter-1x.png"
    runs, context = fa.collect(sweep, METRIC, "executed")
    found = fa.points(runs)
    about = {"metric": METRIC, "convention": "executed", "context": context}
    figure = fa.plot(found, **about, against="parameters")
    ours, theirs = figure.axes
    assert (ours.get_xlabel().partition("\n")[0], theirs.get_xlabel()) == (
        "parameters",
        "parameters\n(convention: published)",
    )
    assert {line.get_xdata()[0] for line in theirs.lines} == {float(fa.published_cost(p)[1]) for p in fa.PUBLISHED}
    # All three have 1,000 parameters: two are moved, a tick marks where from, and the figure says so.
    ticks = [line.get_xdata()[0] for line in ours.lines if list(line.get_ydata()) == [0.0, 0.025]]
    assert ticks == [1000.0, 1000.0]
    assert "stand side by side" in figure._suptitle.get_text().replace("\n", " ")


def test_points_that_are_not_moved_are_not_said_to_be():
    runs = [fa.Run(f"arm {n}", "m", 0, 0.5, 1e6 * n, 10) for n in range(1, 4)]
    figure = fa.plot(fa.points(runs), metric="m", convention="executed", context=1)
    assert "side by side" not in figure._suptitle.get_text().replace("\n", " ")


def test_wrong_names_are_one_clear_line(root, sweep, tmp_path):
    with pytest.raises(UsageError, match=r'did you mean "icl/accuracy-last-quarter@1x"'):
        fa.collect(sweep, "icl/acuracy-last-quarter@1x", "executed")
    with pytest.raises(UsageError, match=r'--against "params".* did you mean "parameters"'):
        fa.draw(sweep, tmp_path, against="params")
    with pytest.raises(UsageError, match="executed"):
        fa.collect(sweep, METRIC, "exekuted")
    with pytest.raises(UsageError, match="smoke-00000000"):
        sources.find_sweep(root, "smoke-0000000")
    with pytest.raises(UsageError, match="mmctl ablate"):
        sources.find_sweep(tmp_path, None)


def test_long_labels_get_fewer_columns_and_the_legend_stays_inside_the_figure():
    label = "transformer with long and short masks, narrower feed-forward to match parameters"
    runs = [fa.Run(f"{label} {n}", "m", 0, 0.5, 1e6 * n, 10) for n in range(1, 8)]
    figure = fa.plot(fa.points(runs), metric="m", convention="executed", context=1)
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y0 >= 0


@pytest.mark.parametrize(
    ("claimed", "drawn"),
    [
        (["recall/accuracy@1x", "icl/accuracy@1x", "icl/accuracy@1x"], "icl/accuracy@1x"),
        (["recall/accuracy@1x", "icl/accuracy@1x"], "recall/accuracy@1x"),  # of equally many, the first
        (["text/loss@1x", "text/loss@1x", "recall/accuracy@1x"], "recall/accuracy@1x"),  # an accuracy
        (["train_loss", "train_loss", "text/loss@1x", "stream/accuracy@1x"], "text/loss@1x"),  # no arm has the last
    ],
    ids=["most", "first", "accuracy", "loss"],
)
def test_without_a_metric_the_score_that_most_claims_are_about_is_drawn(own_sweep, claimed, drawn):
    scores = ("icl/accuracy@1x", "recall/accuracy@1x", "text/loss@1x", "train_loss")
    claimed_sweep(own_sweep, claimed, scores)
    assert fa.usual_metric(own_sweep) == drawn
    rows = list(csv.DictReader(fa.draw_sweep(own_sweep, own_sweep)["csv"].open()))
    assert {row["metric"] for row in rows if row["source"] == "ours"} == {drawn}


def test_where_no_claim_is_about_a_score_there_are_some_to_choose_from(own_sweep):
    """And nothing is said of a metric that nobody asked for."""
    claimed_sweep(own_sweep, ["train_loss"], ("text/loss@1x", "recall/accuracy@1x", "recall/accuracy@4x", "train_loss"))
    with pytest.raises(UsageError) as caught:
        fa.draw_sweep(own_sweep, own_sweep)
    assert str(caught.value).endswith("choose one with --metric: recall/accuracy@1x, text/loss@1x")
    claimed_sweep(own_sweep, ["train_loss"], ("train_loss",))
    with pytest.raises(UsageError, match="no arm has a score yet"):
        fa.draw_sweep(own_sweep, own_sweep)


def claimed_sweep(sweep, claimed, scores) -> None:
    """Gives the sweep claims about `claimed`, and arms that have only `scores`."""
    results = json.loads((sweep / "results.json").read_text())
    (ablation,) = results["ablations"] = [a for a in results["ablations"] if a["name"] == "transformer-masks"]
    ablation["claims"] = [ablation["claims"][0] | {"metric": metric} for metric in claimed]
    for arm in ablation["arms"]:
        (value, *_) = arm["scores"].values()
        arm["scores"] = dict.fromkeys(scores, value)
    (sweep / "results.json").write_text(json.dumps(results))
