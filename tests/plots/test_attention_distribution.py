"""The flat-then-peak figure: its numbers on known curves, and on real models through their own operations."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from mmctl.errors import UsageError
from mmctl.evaluation.attention import Panel
from mmctl.plots import attention_distribution as ad
from mmctl.plots import attention_panels
from mmctl.runs import RunFolder


def test_real_runs_side_by_side(root, tmp_path):
    runs = [RunFolder.find(root, name) for name in ("transformer", "mosaic-v2")]
    paths = ad.draw(runs, tmp_path, sequences=8)
    rows = list(csv.DictReader(paths["csv"].open()))
    totals: dict[tuple[str, str, str], float] = {}
    for row in rows:
        key = (row["model"], row["memory"], row["head"])
        totals[key] = totals.get(key, 0.0) + float(row["weight"])
    assert {k[:2] for k in totals} == {
        ("transformer", "attention"), ("mosaic-v2", "long-term"), ("mosaic-v2", "short-term")
    }  # fmt: skip
    assert all(total == pytest.approx(1.0, abs=1e-4) for total in totals.values())
    assert {k[2] for k in totals} == {"0", "1", "2", "3", "mean"}
    # m = 8 and h = 32 at T = 64, the query at 63: long-term reads 0 .. 55, short-term 31 .. 62.
    seen = {
        m: {int(r["position"]) for r in rows if r["memory"] == m and float(r["weight"]) > 0}
        for m in ("long-term", "short-term")
    }
    assert seen == {"long-term": set(range(56)), "short-term": set(range(31, 63))}
    summary = json.loads(paths["json"].read_text())
    assert (summary["length"], summary["near"], summary["n"]) == (64, 32, 8)
    assert summary["panels"][runs[1].label]["layer0/short-term"]["flatness"] is None


def test_panels_one_per_layer_and_memory_on_shared_log_axes():
    panel = Panel(np.full((2, 40), 1 / 40), np.zeros((2, 40)))
    deep = ad.Distribution("r", "m", "text", 40, 4, 8, {f"layer{n}/attention": panel for n in range(20)})
    wide = ad.Distribution("s", "m2", "text", 40, 4, 8, {f"layer{n}/{m}": panel for n in range(2) for m in ("a", "b")})
    figure = ad.plot([deep, wide])
    assert len(figure.axes) == attention_panels.DRAWN_LAYERS * 3
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert [a.get_ylabel() for a in figure.axes if a.get_ylabel()] == [f"layer {n}" for n in (0, 4, 8, 11, 15, 19)]


def flat(*memories: str, layers: int = 1, length: int = 40) -> dict[str, Panel]:
    panel = Panel(np.full((2, length), 1 / length), np.zeros((2, length)))
    return {f"layer{n}/{m}": panel for n in range(layers) for m in memories}


def test_titles_and_labels_stand_over_the_middle_of_their_panels():
    one = ad.Distribution("r", "m", "text", 40, 4, 8, flat("attention"))
    two = ad.Distribution("s", "m2", "text", 40, 4, 8, flat("a", "b"))
    figure = ad.plot([one, two])
    figure.draw_without_rendering()
    (row,) = figure.subfigs
    assert [len(group.axes) for group in row.subfigs[:2]] == [1, 2]
    for group in row.subfigs[:2]:
        boxes = [axes.get_window_extent() for axes in group.axes]
        middle = (min(b.x0 for b in boxes) + max(b.x1 for b in boxes)) / 2
        for text in (group._suptitle, group._supxlabel):
            box = text.get_window_extent()
            assert (box.x0 + box.x1) / 2 == pytest.approx(middle, abs=2.0)  # pixels


@pytest.mark.parametrize("alone", [True, False], ids=["a-run", "seeds"])
def test_no_title_is_cut_or_reaches_into_the_next(alone):
    wide, name = flat("long-term", "short-term"), "mosaic-v1-34a50dbf/seed0"
    found = [
        ad.Distribution("wide", "m", "text", 40, 4, 8, wide),
        *seeds_of(name, np.full((1 if alone else 2, 40), 0.025)),
    ]
    figure = ad.plot([*found, ad.Distribution(name.replace("v1", "v3"), "m", "text", 40, 4, 8, flat("attention"))])
    figure.draw_without_rendering()
    boxes = [group._suptitle.get_window_extent() for group in figure.subfigs[0].subfigs]
    assert len(boxes) == 3
    for left, right in itertools.pairwise(boxes):
        assert left.x1 < right.x0
    assert boxes[-1].x1 < figure.bbox.x1


def seeds_of(name: str, curves: np.ndarray, *, memory: str = "attention", near: int = 8) -> list[ad.Distribution]:
    """A run of one head for each of `curves` (seeds, T)."""
    return [
        ad.Distribution(
            f"{name}/seed{seed}", "m", "text", curves.shape[1], 4, near,
            {f"layer0/{memory}": Panel(curve[None], np.zeros((1, curves.shape[1])))}, name, f"the {name}",
        )
        for seed, curve in enumerate(curves)
    ]  # fmt: skip


def test_seeds_of_a_configuration_are_one_group_with_means_and_intervals_over_them():
    # Far are 0 .. 30 of 40: alternating weights of CV c have flatness 1 / (1 + c^2).
    unevenness = (0.0, 0.5, 1.0)
    wave = np.where(np.arange(40) % 2, 1.0, -1.0)
    wave[30:] = 0.0
    curves = np.stack([(1 + c * wave) / 40 for c in unevenness]) + 1e-9
    curves[:, 30] = 0.0  # so that as many are high as are low: a position that is not visible
    (group,) = ad.grouped(seeds_of("x", curves, near=8))
    assert (group.name, len(group.seeds)) == ("the x", 3)
    numbers = group.numbers("layer0/attention")
    each = [1.0, 1 / 1.25, 1 / 2.0]
    mean, half = np.mean(each), 4.302653 * np.std(each, ddof=1) / np.sqrt(3)
    assert numbers["flatness"]["n"] == 3
    assert numbers["flatness"]["mean"] == pytest.approx(mean, abs=1e-6)
    assert numbers["flatness"]["interval"] == pytest.approx([mean - half, mean + half], abs=1e-5)
    assert [run["flatness"] for run in numbers["runs"].values()] == pytest.approx(each, abs=1e-6)
    assert f"flatness {mean:.2f} ± {half:.2f}" in ad.plot(list(group.seeds)).axes[0].texts[0].get_text()


def test_the_band_is_the_interval_of_the_logarithms_and_the_csv_has_it():
    curves = np.stack([np.full(40, w) for w in (0.01, 0.02, 0.04)])
    found = ad.rows(seeds_of("x", curves))
    assert len(found) == 40  # the mean alone is drawn, not every head
    half = 4.302653 * np.log(2) / np.sqrt(3)
    for row in found:
        assert (row["run"], row["head"], row["seeds"]) == ("the x", "mean", 3)
        assert row["weight"] == pytest.approx(0.02, rel=1e-4)
        assert (row["low"], row["high"]) == pytest.approx((0.02 * np.exp(-half), 0.02 * np.exp(half)), rel=1e-4)
    alone = ad.rows(seeds_of("x", curves)[:1])
    assert [row["head"] for row in alone] == ["0"] * 40 + ["mean"] * 40
    assert {(row["low"], row["high"], row["run"]) for row in alone} == {(None, None, "x/seed0")}


def test_a_position_that_one_seed_gives_no_weight_has_no_mean_and_no_band():
    curves = np.full((3, 40), 0.02)
    curves[1, 5] = 0.0
    missing = [row for row in ad.rows(seeds_of("x", curves)) if row["weight"] is None]
    assert [(row["position"], row["low"], row["high"]) for row in missing] == [(5, None, None)]


def test_configurations_of_one_name_are_told_apart():
    curves = np.full((2, 40), 0.02)
    both = [replace(one, name="same") for name in "xy" for one in seeds_of(name, curves)]
    assert [group.name for group in ad.grouped(both)] == ["same (x)", "same (y)"]
    assert len(ad.summary(both)["panels"]) == 2


def test_many_configurations_stand_in_rows_of_panels_as_large_as_each_others():
    several = [
        replace(one, panels=flat(*memories), name=f"{name} with a long name that is wrapped" if name == "c" else name)
        for name, memories in {"a": "lm", "b": "lm", "c": "l", "d": "l", "e": "l"}.items()
        for one in seeds_of(name, np.full((2, 40), 0.02))
    ]
    figure = ad.plot(several)
    figure.draw_without_rendering()
    assert [[len(group.axes) for group in row.subfigs if group.axes] for row in figure.subfigs] == [[2, 2], [1, 1, 1]]
    sizes = [axes.get_window_extent() for axes in figure.axes]
    assert max(s.width for s in sizes) < 1.15 * min(s.width for s in sizes)
    for row in figure.subfigs:
        heights = [axes.get_window_extent().height for group in row.subfigs for axes in group.axes]
        assert max(heights) == pytest.approx(min(heights), rel=0.05)
    assert figure.get_figwidth() < 7.5  # a printed page


@pytest.mark.parametrize("metric", ["attention/flatness-far@1x", "recall/accuracy@1x"])
def test_a_sweep_about_attention_shows_all_its_arms_and_another_one_run_a_model(
    root, tmp_path, monkeypatch, capsys, metric
):
    from mmctl.sweeps.results import SCHEMA

    paths = {name: str(RunFolder.find(root, name).path) for name in ("mosaic-v2", "transformer")}

    def arm(name: str, model: str, identity: str) -> dict:
        runs = {"0": {"state": "finished", "path": paths[model]}, "1": {"state": "finished", "path": paths[model]}}
        runs["2"] = {"state": "failed", "path": paths[model]}
        return {"name": name, "label": f"the {name}", "model": model, "identity": identity, "evaluate": {}, "runs": runs,
                "cell": name, "scores": {}}  # fmt: skip

    arms = [arm("v2", "mosaic-v2", "a"), arm("rope", "transformer", "b"), arm("fixed", "mosaic-v2", "c")]
    results = {"schema": SCHEMA, "ablations": [{"name": "x", "arms": arms, "claims": [{"metric": metric}]}]}
    sweep = tmp_path / "sweeps" / "x"
    sweep.mkdir(parents=True)
    (sweep / "results.json").write_text(json.dumps(results))
    drawn = {}
    monkeypatch.setattr(ad, "draw", lambda runs, directory, **options: drawn.update(runs=runs, **options))
    ad.draw_sweep(sweep, tmp_path)
    models = [run.name for run in drawn["runs"]]
    about = metric.startswith("attention/")
    assert models == (
        ["mosaic-v2"] * 2 + ["transformer"] * 2 + ["mosaic-v2"] * 2
        if about
        else ["transformer"] * 2 + ["mosaic-v2"] * 2
    )
    assert drawn["names"] == ({"a": "the v2", "b": "the rope", "c": "the fixed"} if about else {})
    monkeypatch.setattr(RunFolder, "has_checkpoint", lambda run, step: run.name == "transformer")
    capsys.readouterr()
    ad.draw_sweep(sweep, tmp_path)  # what has no checkpoint left is named, and keeps nothing else from being drawn
    assert {run.name for run in drawn["runs"]} == {"transformer"}
    assert capsys.readouterr().err.count(" has no checkpoint left") == models.count("mosaic-v2")
    monkeypatch.setattr(RunFolder, "has_checkpoint", lambda run, step: False)
    with pytest.raises(UsageError, match="no run of it has a checkpoint left"):
        ad.draw_sweep(sweep, tmp_path)
    other = [{**results["ablations"][0], "claims": [{"metric": "train_loss"}]}]
    assert (ad.shows(results) != ad.shows({"ablations": other})) == about


@pytest.mark.parametrize(
    ("options", "message"),
    [({"task": "txt"}, 'did you mean "text"'), ({"sequences": 1}, "--sequences 1"), ({"length": 10**8}, "--length")],
)
def test_what_cannot_be_measured_is_one_clear_line(root, options, message):
    with pytest.raises(UsageError, match=message) as error:
        ad.collect([RunFolder.find(root, "mosaic-v2")], **{"sequences": 4, **options})
    assert "\n" not in str(error.value)
