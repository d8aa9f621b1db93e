"""The flat-then-peak figure: its numbers on known curves, and on real models through their own operations."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from mmctl.errors import UsageError
from mmctl.evaluation.attention import Panel
from mmctl.plots import attention_distribution as ad
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
    assert len(figure.axes) == ad.DRAWN_LAYERS * 3
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert [a.get_ylabel() for a in figure.axes if a.get_ylabel()] == [f"layer {n}" for n in (0, 4, 8, 11, 15, 19)]


def test_titles_and_labels_stand_over_the_middle_of_their_panels():
    panel = Panel(np.full((2, 40), 1 / 40), np.zeros((2, 40)))
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
