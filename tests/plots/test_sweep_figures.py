"""The figures of a sweep's results: what is plotted is what results.json, the logs and the checkpoints hold."""

from __future__ import annotations

import csv
import itertools
import json
import re
import warnings

import numpy as np
import pytest

from mmctl.errors import MmctlError, UsageError
from mmctl.plots import bandwidth, effects, extrapolation, grid, loss, style


def table(paths) -> list[dict[str, str]]:
    return list(csv.DictReader(paths["csv"].open()))


def test_effects_are_the_claims_of_a_difference_in_panels_by_unit(sweep, tmp_path):
    found = effects.collect(sweep)
    assert [(e.ablation, e.claim) for e in found] == [
        ("bandwidth", "loss"), ("transformer-masks", "icl"), ("transformer-masks", "small")
    ]  # fmt: skip
    figure = effects.plot(found)
    assert [axes.get_xlabel().partition("(")[2] for axes in figure.axes] == [
        "nats)", "points, logarithmic beyond ±5)"
    ]  # fmt: skip
    points = figure.axes[1]
    ticks = list(points.get_xticks())
    assert sorted(set(ticks)) == ticks
    assert [t.get_text() for t in points.texts] == ["reproduced", "no effect"]
    ours, published = (next(line for line in points.lines if line.get_marker() == m) for m in ("o", "D"))
    assert ours.get_xdata()[0] == pytest.approx(80.0)
    assert published.get_xdata()[0] == pytest.approx(22.5)
    rows = table(effects.draw(sweep, tmp_path))
    assert (float(rows[0]["low"]), float(rows[0]["high"]), rows[0]["published"]) == (-0.03, 0.0, "-0.3")
    assert rows[1]["both_at_chance"] == "False"


@pytest.mark.parametrize(
    ("ablation", "says"),
    [
        (
            [],
            "2 of 5 claims not drawn (1 of one arm's value or range, not of a difference; 1 not measured): the report",
        ),
        (["bandwidth"], "1 of 2 claims not drawn (1 of one arm's value or range, not of a difference): the report"),
        (["transformer-masks"], "1 of 3 claims not drawn (1 not measured): the report"),
    ],
    ids=["all", "range", "unmeasured"],
)
def test_effects_say_how_many_claims_they_do_not_show(sweep, tmp_path, monkeypatch, ablation, says):
    drawn = []
    monkeypatch.setattr(style, "save", lambda figure, *rest, **named: drawn.append(figure))
    effects.draw(sweep, tmp_path, ablation)
    assert says in drawn[0].get_suptitle().replace("\n", " ")
    shown = sum(len(axes.get_yticklabels()) for axes in drawn[0].axes)
    left, _, total = says.partition(" claims")[0].partition(" of ")
    assert shown + int(left) == int(total)


def test_effects_that_show_every_claim_say_nothing_of_others(own_sweep):
    results = json.loads((own_sweep / "results.json").read_text())
    for ablation in results["ablations"]:
        ablation["claims"] = [c for c in ablation["claims"] if c["control"] and c["difference"]]
    (own_sweep / "results.json").write_text(json.dumps(results))
    assert effects.left_out(own_sweep) == ""


def test_a_narrow_panel_is_linear(sweep):
    figure = effects.plot([e for e in effects.collect(sweep) if e.claim != "icl"])
    assert {axes.get_xscale() for axes in figure.axes} == {"linear"}


def test_extrapolation_has_a_panel_an_ablation_and_task_with_the_training_length_marked(sweep, tmp_path):
    found = extrapolation.collect(sweep)
    assert {(p.length, p.training_length) for p in found} == {(64, 64), (256, 64)}
    figure = extrapolation.plot(found)
    assert len(figure.axes) == 3  # three ablations, one task
    for axes in figure.axes:
        assert 64 in {
            line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":" or len(line.get_xdata()) == 2
        }
    mosaic = next(p for p in found if p.arm == "mosaic" and p.length == 256)
    assert (mosaic.mean, mosaic.interval, mosaic.chance) == (pytest.approx(0.9), pytest.approx((0.85, 0.95)), 0.125)
    rows = table(extrapolation.draw(sweep, tmp_path, ["icl/accuracy-last-quarter"], ["transformer-masks"]))
    assert {row["arm"] for row in rows} == {"mosaic", "transformer"}
    assert (tmp_path / "extrapolation-transformer-masks-icl-accuracy-last-quarter.png").is_file()


def test_one_metric_a_task_and_text_by_its_loss():
    known = [
        "text/loss",
        "text/bits-per-byte",
        "icl/accuracy",
        "icl/accuracy-last-quarter",
        "recall/accuracy",
        "x/other",
        "attention/peak-mass",
        "attention/flatness-far",
    ]
    assert extrapolation.main_scores(known) == [
        "text/loss",
        "icl/accuracy-last-quarter",
        "recall/accuracy",
        "attention/flatness-far",
    ]


def test_loss_curves_against_tokens_and_flops(sweep, tmp_path):
    curves = loss.collect(sweep)
    # Only transformer-masks compares two trainings: removal is no training, and adaptive stands alone here.
    assert [(c.ablation, c.arm) for c in curves] == [
        ("transformer-masks", "mosaic"),
        ("transformer-masks", "transformer"),
    ]
    mosaic, transformer = curves
    assert mosaic.values.tolist() == [[2.5, 2.0, 1.5]]
    assert (mosaic.flops / transformer.flops).tolist() == [2.0, 2.0, 2.0]
    figure = loss.plot(curves)
    assert [line.get_xdata()[-1] for axes in figure.axes for line in axes.lines] == [3000, 3000, 6e7, 3e7]
    rows = table(loss.draw(sweep, tmp_path))
    assert len(rows) == 6
    assert {(row["tokens"], row["value"]) for row in rows} == {("1000", "2.5"), ("2000", "2.0"), ("3000", "1.5")}


def many_arms(sweep) -> tuple[dict, dict]:
    """(Results, their one ablation) with two arms more than can be told apart, and one that only changes the evaluation."""
    results = json.loads((sweep / "results.json").read_text())
    (ablation,) = results["ablations"] = [a for a in results["ablations"] if a["name"] == "transformer-masks"]
    mosaic = ablation["arms"][0]
    ablation["arms"] += [mosaic | {"name": f"arm{place}"} for place in range(grid.MOST)]
    ablation["arms"] += [mosaic | {"name": "removed", "evaluate": {"remove_long_term": True, "delay": None}}]
    ablation["claims"][0] |= {"treatment": "arm3", "control": "removed"}  # one arm has no training of its own
    return results, ablation


@pytest.mark.parametrize(("figure", "also"), [(loss, []), (extrapolation, ["removed"])], ids=["loss", "extrapolation"])
def test_of_many_arms_a_figure_draws_those_that_claims_compare_and_names_the_others(figure, also, own_sweep, tmp_path):
    results, ablation = many_arms(own_sweep)
    folder, arms = own_sweep.parent / "many", grid.MOST + 2 + len(also)
    folder.mkdir(exist_ok=True)
    for claims, lines, said in (
        (ablation["claims"][:1], ["arm3", *also], f"the {1 + len(also)} of {arms} arms that its claims compare"),
        ([], ["mosaic", "transformer", *(f"arm{n}" for n in range(10))], f"the 12 of {arms} arms that come first"),
    ):
        (folder / "results.json").write_text(json.dumps(results | {"ablations": [ablation | {"claims": claims}]}))
        collected = figure.collect(folder)
        names = list(dict.fromkeys(one.arm for one in collected))
        assert len(names) == arms
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as that its legend leaves no room for the panels
            drawn = figure.plot(collected)
            drawn.draw_without_rendering()
        assert [text.get_text() for text in drawn.axes[-1].get_legend().get_texts()] == lines
        looks = {style.series(place).colour for place in range(len(lines))}
        for axes in drawn.axes:
            assert {line.get_color() for line in axes.lines} - {style.MUTED, style.INK} == looks
        note = drawn.get_suptitle().replace("\n", " ")
        left_out = [arm for arm in names if arm not in lines]
        assert f"of transformer-masks {said}; left out, but in the CSV: {', '.join(left_out)}" in note
        assert {row["arm"] for row in table(figure.draw(folder, tmp_path))} == set(names)


def test_bandwidth_is_that_of_the_checkpoint(root, sweep, tmp_path):
    """Untrained runs: alpha is 1/3 in every head, beta_0 and beta_1 are exp(1.5), beta(n) their sum with n^(1/3)."""
    learned = bandwidth.collect(sweep)
    long_term, short_term = learned.memories
    assert (long_term.name, long_term.largest_n, short_term.largest_n) == ("long-term", 64 - 8, 32)
    assert long_term.tables["alpha"].shape == (1, 1, 4)
    assert long_term.tables["alpha"] == pytest.approx(np.full((1, 1, 4), 1 / 3))
    n = np.array([1.0, 8.0])
    expected = np.exp(1.5) * (1 + np.array([1.0, 2.0]))
    assert long_term.beta(n)[0, 0, 0] == pytest.approx(expected)
    assert long_term.beta_before(n) == pytest.approx(expected)
    rows = table(bandwidth.draw(sweep, tmp_path))
    assert len(rows) == 2 * 4
    assert {round(float(row["alpha"]), 4) for row in rows} == {0.3333}
    assert json.loads((tmp_path / "bandwidth.json").read_text())["runs"] == learned.runs


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: extrapolation.collect(s, ["icl/acuracy"]), 'did you mean "icl/accuracy-last-quarter"'),
        (lambda s: extrapolation.collect(s, [], ["bandwith"]), 'did you mean "bandwidth"'),
        (lambda s: effects.collect(s, ["long-term-removal"]), "no claim of a difference"),
        (lambda s: loss.collect(s, "loss/recal"), "no run of smoke-00000000 logged it"),
        (lambda s: bandwidth.collect(s, "adaptiv"), 'did you mean "adaptive"'),
        (lambda s: bandwidth.collect(s, "transformer"), "no arm of smoke-00000000 that learns an alpha"),
    ],
)
def test_what_a_sweep_does_not_have_is_one_clear_line(sweep, call, says):
    with pytest.raises(UsageError) as caught:
        call(sweep)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_seeds_are_counted_as_a_range_where_they_differ():
    assert grid.seeds([3, 3]) == "n = 3"
    assert grid.seeds([3, 1, 2]) == "n = 1 to 3"


def test_results_of_another_form_say_how_to_bring_them_up_to_date(sweep, tmp_path):
    results = json.loads((sweep / "results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps({**results, "schema": 1, "command": "mmctl ablate bandwidth"}))
    with pytest.raises(MmctlError, match=r"of form 1, expected .* by: mmctl ablate bandwidth"):
        effects.collect(tmp_path)


WORDS = ["", "icl", "accuracy", "last", "quarter", "attention", "flatness", "far", "text", "loss", "recall", *"abcd"]


@pytest.mark.parametrize("columns", [1, 4, 5, 6])
def test_titles_of_panels_do_not_run_into_each_other_or_the_legend(columns):
    metrics = ["attention/flatness-far", "text/loss", "recall/accuracy-far", "a/b", "c/d"]
    points = [
        extrapolation.Point("x", f"no-long-term-{arm}", metric, length, 64, 0.5, (0.4, 0.6), 3, None)
        for metric in [*metrics[: columns - 1], "icl/accuracy-last-quarter"]
        for length in (64, 128)
        for arm in range(grid.MOST)
    ]
    figure = extrapolation.plot(points)
    figure.draw_without_rendering()
    boxes = [axes._left_title.get_window_extent() for axes in figure.axes]
    for line in "\n".join(axes.get_title(loc="left") for axes in figure.axes[: min(columns, 5)]).splitlines():
        assert line.startswith("(") or all(word in WORDS for word in re.split("[/-]", line))
    legend = figure.axes[-1].get_legend().get_window_extent()
    for left, right in itertools.pairwise([*boxes, legend]):
        assert left.x1 < right.x0
