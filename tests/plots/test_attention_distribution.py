"""The flat-then-peak figure: its numbers on known curves, and on real models through their own operations."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch

from mmctl.errors import UsageError
from mmctl.plots import attention_distribution as ad
from mmctl.plots.attention_weights import held_out
from mmctl.runs import RunFolder


def test_flatness_and_peak_mass_of_known_curves():
    length, near = 100, 10
    flat = np.full((2, length), 0.5 / 89)
    flat[:, 89:] = 0.5 / 11
    numbers = ad.Panel(flat, np.zeros_like(flat)).numbers(near, sequences=4)
    assert numbers["flatness"] == pytest.approx(0.0, abs=1e-12)
    assert numbers["peak_mass"] == pytest.approx(0.5)
    wavy = flat.copy()
    wavy[0, :88] *= np.tile([0.5, 1.5], 44)
    wavy[0, 88] = 0.0
    alternating = ad.Panel(wavy[:, :], np.zeros_like(flat)).numbers(near, 4)["per_head"]["flatness"]
    assert alternating[0] == pytest.approx(0.5, abs=0.02)
    assert alternating[1] == pytest.approx(0.0, abs=1e-12)


def test_noise_is_the_flatness_that_sampling_alone_gives():
    rng = np.random.default_rng(0)
    sequences, mean, deviation = 64, 0.01, 0.004
    samples = rng.normal(mean, deviation, (sequences, 1, 2000))
    panel = ad.Panel(samples.mean(0), samples.std(0, ddof=1))
    numbers = panel.numbers(near=100, sequences=sequences)
    assert numbers["flatness_from_noise"] == pytest.approx(deviation / mean / 8, rel=0.05)
    assert numbers["flatness"] == pytest.approx(numbers["flatness_from_noise"], rel=0.1)


def test_short_term_memory_has_no_flatness_and_all_its_mass_near():
    mean = np.zeros((1, 64))
    mean[0, 31:63] = 1 / 32
    numbers = ad.Panel(mean, np.zeros_like(mean)).numbers(near=32, sequences=2)
    assert numbers["flatness"] is None
    assert numbers["peak_mass"] == pytest.approx(1.0)


class Counted(torch.nn.Module):
    """Gives each sequence its first token as weight everywhere, so that averages can be checked."""

    def last_query_weights(self, tokens):
        assert not self.training
        assert not torch.is_grad_enabled()
        return {"layer0/attention": tokens[:, :1, None].double().expand(-1, 2, tokens.shape[1])}


def test_weights_are_averaged_over_all_sequences_in_evaluation_mode():
    model = Counted().train()
    tokens = torch.tensor([[1, 0], [2, 0], [6, 0]])
    panels, count = ad.measure(model, iter(tokens.split(2)))
    assert count == 3
    assert panels["layer0/attention"].mean == pytest.approx(np.full((2, 2), 3.0))
    assert panels["layer0/attention"].deviation == pytest.approx(np.full((2, 2), np.std([1, 2, 6], ddof=1)))
    assert model.training


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


def test_the_same_sequences_for_every_run_and_every_call(root):
    config = RunFolder.find(root, "mosaic-v2").config()
    first, again = (held_out(config, "text", 5, 64) for _ in range(2))
    assert np.array_equal(first, again)
    assert first.shape == (5, 64)
    assert not np.array_equal(first, held_out(config, "recall", 5, 64))


def test_panels_one_per_layer_and_memory_on_shared_log_axes():
    panel = ad.Panel(np.full((2, 40), 1 / 40), np.zeros((2, 40)))
    deep = ad.Distribution("r", "m", "text", 40, 4, 8, {f"layer{n}/attention": panel for n in range(20)})
    wide = ad.Distribution("s", "m2", "text", 40, 4, 8, {f"layer{n}/{m}": panel for n in range(2) for m in ("a", "b")})
    figure = ad.plot([deep, wide])
    assert len(figure.axes) == ad.DRAWN_LAYERS * 3
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert [a.get_ylabel() for a in figure.axes if a.get_ylabel()] == [f"layer {n}" for n in (0, 4, 8, 11, 15, 19)]


def test_titles_and_labels_stand_over_the_middle_of_their_panels():
    panel = ad.Panel(np.full((2, 40), 1 / 40), np.zeros((2, 40)))
    one = ad.Distribution("r", "m", "text", 40, 4, 8, {"layer0/attention": panel})
    two = ad.Distribution("s", "m2", "text", 40, 4, 8, {f"layer0/{m}": panel for m in ("a", "b")})
    figure = ad.plot([one, two])
    figure.draw_without_rendering()
    for group in figure.subfigs:
        boxes = [axes.get_window_extent() for axes in group.axes]
        middle = (min(b.x0 for b in boxes) + max(b.x1 for b in boxes)) / 2
        for text in (group._suptitle, group._supxlabel):
            box = text.get_window_extent()
            assert (box.x0 + box.x1) / 2 == pytest.approx(middle, abs=2.0)  # pixels


@pytest.mark.parametrize(
    ("options", "message"),
    [({"task": "txt"}, 'did you mean "text"'), ({"sequences": 1}, "--sequences 1"), ({"length": 10**8}, "--length")],
)
def test_what_cannot_be_measured_is_one_clear_line(root, options, message):
    with pytest.raises(UsageError, match=message) as error:
        ad.collect([RunFolder.find(root, "mosaic-v2")], **{"sequences": 4, **options})
    assert "\n" not in str(error.value)
