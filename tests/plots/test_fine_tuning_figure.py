"""The figure of fine-tuning steps: what is drawn is what results.json holds, published points marked as such."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from mmctl.errors import UsageError
from mmctl.plots import fine_tuning
from mmctl.sweeps.results import SCHEMA


def arm(model: str, steps: int, value: float, **changes: Any) -> dict[str, Any]:
    settings = {"steps": steps, "length": 8, "batch": 0, "rate": 0.1, "seed": 0}
    score = {
        "mean": value,
        "interval": [value - 0.1, value + 0.1],
        "n": 3,
        "chance": 0.1,
        "at_chance": False,
        "seeds": {},
    }
    return {
        "name": f"{model}-{steps}", "label": f"{model} {steps}", "model": model, "identity": f"id-{model}", "cell": model,
        "evaluate": {"remove_long_term": False, "delay": None, **({"fine_tuning": settings} if steps else {}), **changes},
        "runs": {}, "cost": {"context": 64},
        "scores": {"recall/accuracy@8x": score, "recall/accuracy@1x": score | {"mean": 1.0}, "text/loss@8x": score},
    }  # fmt: skip


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    arms = [arm("mosaic-v2", s, v) for s, v in ((100, 0.9), (0, 0.4), (1, 0.6))]
    arms += [arm("transformer", s, v) for s, v in ((0, 0.2), (1, 0.3))]
    arms += [arm("mosaic-v2", 1, 0.0, remove_long_term=True), arm("mosaic-v2", 0, 0.0, delay=9)]
    folder = tmp_path / "sweeps" / "smoke-1"
    folder.mkdir(parents=True)
    results = {"schema": SCHEMA, "runs": [], "ablations": [{"name": "fine-tuning", "arms": arms, "claims": []}]}
    (folder / "results.json").write_text(json.dumps(results))
    return folder


def test_one_line_a_model_at_the_length_fine_tuned_at(tuned: Path, tmp_path: Path) -> None:
    points = fine_tuning.collect(tuned)
    assert [(p.model, p.steps, p.mean) for p in points if p.metric == "recall/accuracy"] == [
        ("mosaic-v2", 0, 0.4), ("mosaic-v2", 1, 0.6), ("mosaic-v2", 100, 0.9), ("transformer", 0, 0.2), ("transformer", 1, 0.3),
    ]  # fmt: skip
    assert {p.length for p in points} == {512}
    drawn = fine_tuning.plot(points)
    panel = next(axes for axes in drawn.axes if axes.get_title().startswith("recall/accuracy"))
    assert panel.get_xscale() == "symlog"
    lines = [line for line in panel.lines if len(line.get_xdata()) == 3 and line.get_marker() != "*"]
    assert list(lines[0].get_ydata()) == pytest.approx([40, 60, 90])
    published = next(line for line in panel.lines if line.get_marker() == "*")
    assert list(published.get_ydata()) == [
        26.5,
        48.5,
    ]  # memory-mosaics v2, large: without, and with one step's 22 points
    paths = fine_tuning.draw(tuned, tmp_path)
    assert set(paths) == {"png", "pdf", "csv", "json"}
    rows = list(csv.DictReader(paths["csv"].open()))
    assert [row["mean"] for row in rows if row["published"]] == ["26.5", "48.5", "53.4", "41.1"]
    assert next(row["low"] for row in rows if row["metric"] == "text/loss") == "0.30000000000000004"


def test_other_scores_leave_the_published_ones_out(tuned: Path) -> None:
    points = fine_tuning.collect(tuned, ["text/loss"])
    assert {p.metric for p in points} == {"text/loss"}
    assert not any(row["published"] for row in fine_tuning.rows(points))
    with pytest.raises(UsageError, match=r'--metric "recal/accuracy".*"recall/accuracy"'):
        fine_tuning.collect(tuned, ["recal/accuracy"])


def test_a_sweep_without_fine_tuning_is_said(sweep: Path) -> None:
    with pytest.raises(UsageError, match="no arm is fine-tuned at evaluation; first mmctl ablate fine-tuning"):
        fine_tuning.collect(sweep)
