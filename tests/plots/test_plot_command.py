"""`mmctl plot`, from the command line to the files, by name and by default."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmctl.cli import bench
from mmctl.cli.plot import app
from mmctl.errors import UsageError
from mmctl.plots import FIGURES, sources


def run(*words: object):
    result = CliRunner().invoke(app, [str(w) for w in words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_attention_distribution_of_named_runs(root, tmp_path):
    words = ("transformer", "mosaic-v2", "--runs", root, "--out", tmp_path, "--sequences", 4, "--length", 80)
    result = run("attention-distribution", *words)
    paths = [Path(line) for line in result.stdout.splitlines()]
    assert [p.suffix for p in paths] == [".png", ".pdf", ".csv", ".json"]
    assert all(p.is_file() and p.parent == tmp_path for p in paths)


def test_a_run_named_twice_is_one_run(root):
    folder = next(root.glob("mosaic-v2-*/seed0"))
    for again in (f"{folder}", f"{folder}/", f"{folder.parent.name}/seed0"):
        assert len(sources.named_runs(root, ["mosaic-v2", again])) == 1


def test_without_names_the_newest_sweep_is_drawn_into_its_folder(own_root, own_sweep):
    assert run("attention-distribution", "--runs", own_root, "--sequences", 4).exit_code == 0
    assert run("flops-accuracy", "--runs", own_root).exit_code == 0
    names = {p.name for p in (own_sweep / "figures").glob("*.png")}
    assert names == {
        "attention-distribution-transformer-mosaic-v2-t64.png",
        "flops-accuracy-icl-accuracy-last-quarter-1x-executed.png",
    }


@pytest.mark.parametrize("suffix", [".png", ".PDF", ".csv", ".json"])
def test_a_file_is_no_folder_for_any_figure(tmp_path, suffix):
    """Before anything is read: no folder called x.png is left behind, nor anything else."""
    for figure in FIGURES:
        with pytest.raises(UsageError, match=rf"--out .*x\{suffix}: takes a folder.* such as x$"):
            run(figure, "some-run", "--out", tmp_path / f"x{suffix}")
    with pytest.raises(UsageError, match="takes a folder"):
        CliRunner().invoke(bench.app, ["kernels", "--out", f"x{suffix}"], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_figure_and_a_mistyped_one_gets_the_nearest(root):
    text = run("--help").stdout
    assert "attention-distribution" in text
    assert "flops-accuracy" in text
    with pytest.raises(UsageError, match=r'did you mean "flops-accuracy"'):
        run("flop-accuracy")
    with pytest.raises(UsageError, match="transformer"):
        run("attention-distribution", "transfromer", "--runs", root)
