"""Saving: four files, metadata, missing numbers, and nothing global."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from PIL import Image

from mmctl.errors import MmctlError
from mmctl.plots import FIGURES, figure, style


def drawn():
    with style.house_style():
        made = style.figure(3, 2)
        made.subplots().plot([1, 2], [3, 4])
    return made


def test_save_writes_png_pdf_csv_and_json_with_their_origin(tmp_path):
    rows = [{"x": 1, "y": 0.5}, {"x": 2, "y": None}]
    paths = style.save(drawn(), tmp_path / "new", "a", rows, title="T", runs=["r/seed0"], n=7, numbers={"k": 1})
    assert set(paths) == {"png", "pdf", "csv", "json"}
    with Image.open(paths["png"]) as image:
        assert image.info["Title"] == "T"
        assert "r/seed0" in image.info["Description"]
        assert "n = 7" in image.info["Description"]
    assert paths["pdf"].read_bytes().startswith(b"%PDF")
    assert list(csv.DictReader(paths["csv"].open())) == [{"x": "1", "y": "0.5"}, {"x": "2", "y": ""}]
    summary = json.loads(paths["json"].read_text())
    assert (summary["runs"], summary["n"], summary["k"]) == (["r/seed0"], 7, 1)
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["a.csv", "a.json", "a.pdf", "a.png"]


def test_a_saved_figure_is_smaller_and_looks_the_same(tmp_path):
    with style.house_style():
        made = style.figure(4, 3)
        axes = made.subplots()
        for index in range(12):
            look = style.series(index)
            axes.plot([1, 2], [index, index + 1], color=look.colour, linestyle=look.line, marker=look.marker)
            axes.fill_between([1, 2], index, index + 2, color=look.colour, alpha=0.2)
        axes.axvspan(1.2, 1.4, color="#e4e4e4", zorder=0)
        whole = io.BytesIO()
        made.savefig(whole, format="png")
    saved = style.save(made, tmp_path, "a", [{"x": 1}], title="T", runs=[], n=1)["png"]
    with Image.open(whole) as before, Image.open(saved) as after:
        assert (after.size, after.info["dpi"]) == (before.size, before.info["dpi"])
        was, now = (np.asarray(image.convert("RGB"), dtype=int) for image in (before, after))
    apart = np.abs(was - now)
    assert apart.max() <= 30  # of 255: pixels between two colours
    assert (apart.max(axis=2) > 8).mean() < 0.03
    grey = np.ptp(was, axis=2) == 0
    assert grey.mean() > 0.2
    assert np.ptp(now, axis=2)[grey].mean() < 0.2  # a grey stays grey
    assert saved.stat().st_size < 0.6 * len(whole.getvalue())


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MmctlError, match="file"):
        style.save(drawn(), tmp_path / "file" / "x", "a", [{"x": 1}], title="T", runs=[], n=1)


def test_house_style_leaves_the_users_settings_alone():
    before = dict(matplotlib.rcParams)
    drawn()
    assert dict(matplotlib.rcParams) == before


def test_series_differ_in_colour_marker_and_line():
    looks = [style.series(i) for i in range(12)]
    for part in ("colour", "marker", "line"):
        assert len({str(getattr(look, part)) for look in looks}) == 12
    assert style.series(12) != style.series(0)


def test_notes_are_wrapped_to_the_figures_width():
    with style.house_style():
        made = style.figure(4, 2)
        made.subplots().plot([1, 2], [3, 4])
        style.note(made, "", "word " * 60, "another line")
        made.canvas.draw()
        box = made._suptitle.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= made.bbox.x1
    assert made._suptitle.get_text().splitlines()[-1] == "another line"


def test_figures_are_whole_modules_and_use_no_pyplot():
    for name in FIGURES:
        module = figure(name)
        for part in ("collect", "plot", "draw_sweep", "command"):
            assert callable(getattr(module, part)), (name, part)
    code = f"import sys\nfrom mmctl.plots import figure\n[figure(n) for n in {list(FIGURES)!r}]\n"
    code += "assert not {'matplotlib.pyplot', 'torch', 'mlflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
