"""`mmctl report`: from a name, a folder or a results.json to the files, and one line for whatever is wrong."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from inprocess import mmctl

CLAIM: dict[str, Any] = {
    "id": "one", "statement": "a is better", "metric": "train_loss", "treatment": "a", "control": "b", "expected": "less",
    "margin": 0.01, "range": None, "each": None, "stand_in": None, "caveat": None, "unit": "nats", "published": None,
    "published_effect": None, "treatment_score": None, "control_score": None, "difference": None, "verdict": "not run",
    "reason": "no seed has a score for both arms", "corrected_interval": None, "corrected_level": None, "p_holm": None,
    "unmatched": [], "at_chance": [], "parts": [], "start": None, "registered": None,
}  # fmt: skip
ARM: dict[str, Any] = {
    "name": "a", "label": "a", "set": {}, "evaluate": {"remove_long_term": False, "delay": None}, "identity": "0123abcd",
    "model": "mosaic-v2", "cell": "a", "runs": {"0": {"state": "planned", "path": None}}, "compared_to": None,
    "same_run": False, "unmatched": [], "delay": None, "train_command": "mmctl train smoke seed=0", "scores": {}, "start": {},
    "cost": {"parameters": 1000, "context": 64, "training_tokens": 10, "flops_per_token": {"published": 1.0, "executed": 2.0}},
}  # fmt: skip


def png() -> bytes:
    """One white dot."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xff")) + chunk(b"IEND", b"")
    )


def write(folder: Path, **changes: Any) -> Path:
    """A results.json of a sweep that has run nothing, and one figure beside it."""
    from mmctl.sweeps.results import SCHEMA

    ablation = {
        "name": "own", "question": "q", "file": "own.yaml", "sha256": "x", "sha256_registered": "x", "seeds": [0],
        "command": "mmctl ablate own.yaml", "arms": [ARM], "excluded": [], "claims": [CLAIM], "figures": ["effects"],
    }  # fmt: skip
    results = {
        "schema": SCHEMA, "sweep": folder.name, "profile": "smoke", "preset": "smoke", "command": "mmctl ablate own.yaml",
        "registered": "2026-01-01", "analysis": {}, "analysis_registered": {}, "family": 1, "finished_before": [],
        "date": "2026-01-02", "machine": {"processor": "p", "cores": 1, "device": "cpu", "system": "Linux"},
        "versions": {"mmctl": "0"}, "passed_over": {}, "failures": [], "ablations": [ablation],
        "runs": [{"label": "a/seed0", "identity": "0123abcd", "seed": 0, "state": "planned", "path": None}],
    }  # fmt: skip
    (folder / "figures").mkdir(parents=True)
    (folder / "figures" / "effects.png").write_bytes(png())
    (folder / "results.json").write_text(json.dumps({**results, **changes}))
    return folder


@pytest.fixture
def sweep() -> Path:
    return write(Path("runs/sweeps/smoke-00000001"))


@pytest.mark.parametrize("words", [(), ("smoke-00000001",), ("runs/sweeps/smoke-00000001",),
                                   ("runs/sweeps/smoke-00000001/results.json",)], ids=["newest", "name", "folder", "file"])  # fmt: skip
def test_both_forms_lie_beside_the_results(sweep: Path, words: tuple[str, ...]) -> None:
    done = mmctl("report", *words)
    assert (done.code, done.err) == (0, "")
    assert sorted(Path(line).name for line in done.out.splitlines()) == ["report.html", "report.md"]
    assert "![" in (sweep / "report.md").read_text()
    assert "](figures/effects.png)" in (sweep / "report.md").read_text()
    assert 'src="data:image/png;base64,' in (sweep / "report.html").read_text()


def test_out_says_where_and_in_which_form(sweep: Path) -> None:
    done = mmctl("report", "--out", "away/x.md", "--out", "y.html", "--json")
    assert json.loads(done.out) == {"files": ["away/x.md", "y.html"]}
    assert "](../runs/sweeps/smoke-00000001/figures/effects.png)" in Path("away/x.md").read_text()
    assert not (sweep / "report.md").exists()


def test_the_scoreboard_is_over_all_sweeps_or_those_named(sweep: Path) -> None:
    write(Path("evidence/2026-01-01-x"), date="2026-03-01")
    done = mmctl("report", "--all")
    assert done.out.splitlines() == [str(Path.cwd() / "runs/scoreboard.md"), str(Path.cwd() / "runs/scoreboard.html")]
    assert "from 1 sweep." in Path("runs/scoreboard.md").read_text()
    words = ("--all", "evidence/2026-01-01-x/results.json", "smoke-00000001", "--out", "evidence/README.md")
    assert mmctl("report", *words).code == 0
    text = Path("evidence/README.md").read_text()
    assert "from 2 sweeps." in text
    assert f"mmctl report {' '.join(words)}" in text
    assert str(Path.cwd()) not in text


def test_a_sweep_that_cannot_be_read_is_left_out_and_said_unless_it_is_named(sweep: Path) -> None:
    damaged = write(Path("runs/sweeps/smoke-00000002"), schema=1)
    done = mmctl("report", "--all")
    assert done.code == 0
    assert "smoke-00000002" in done.err
    assert "of form 1" in done.err
    assert "Not read: " in Path("runs/scoreboard.md").read_text()
    done = mmctl("report", "--all", damaged)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("smoke-0000001",), 2, 'did you mean "smoke-00000001"?'),
        (("runs/sweeps/smoke-00000001/result.json",), 2, 'did you mean "runs/sweeps/smoke-00000001/results.json"?'),
        (("runs/sweeps/smoke-0000001/results.json",), 2, 'did you mean "runs/sweeps/smoke-00000001/results.json"?'),
        (("one", "two"), 2, "--all puts several on one page"),
        (("--out", "report.pdf"), 2, "--out report.pdf: expected a name that ends in .html or .md"),
        (("--out", "runs.md"), 2, "--out runs.md: is a folder"),
        (("--al",), 2, 'did you mean "--all"?'),
    ],
    ids=["name", "file", "folder", "two", "suffix", "folder-out", "option"],
)
def test_what_is_wrong_is_one_line(sweep: Path, words: tuple[str, ...], code: int, says: str) -> None:
    Path("runs.md").mkdir()
    done = mmctl("report", *words)
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not (sweep / "report.md").exists()


@pytest.mark.parametrize("all_", [(), ("--all",)], ids=["report", "scoreboard"])
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("file/x.html", "cannot write file/x.html: file is no folder"),
        ("file/a/b/x.html", "cannot write file/a/b/x.html: file is no folder"),
        ("/proc/x.html", "cannot write /proc/x.html: "),
        ("/proc/a/x.html", "cannot write /proc/a/x.html: "),
    ],
)
def test_where_nothing_can_be_written_is_said_before_any_figure_is_drawn(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, place: str, says: str, all_: tuple[str, ...]
) -> None:
    (sweep / "manifest.json").write_text("{}")  # its own folder: its figures would be drawn
    for name in ("draw", "present"):
        monkeypatch.setattr(f"mmctl.sweeps.reporting.figures.{name}", lambda *_: pytest.fail("drawn before the check"))
    Path("file").touch()
    before = sorted(Path().rglob("*"))
    done = mmctl("report", *all_, "--out", "fine/y.md", "--out", place)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.startswith(f"mmctl: {says}")
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("all_", [(), ("--all",)], ids=["report", "scoreboard"])
def test_results_with_something_missing_are_one_line(sweep: Path, all_: tuple[str, ...]) -> None:
    results = json.loads((sweep / "results.json").read_text())
    del results["ablations"][0]["claims"][0]["verdict"]
    (sweep / "results.json").write_text(json.dumps(results))
    done = mmctl("report", *all_, "smoke-00000001")
    assert (done.code, done.out) == (1, "")
    assert (
        "not whole (KeyError: 'verdict'); brought up to date, without training anything anew, by: mmctl ablate"
        in done.err
    )
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("all_", [(), ("--all",)], ids=["report", "scoreboard"])
@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        (("ablations", 0), "figures", None),
        (("ablations", 0), "claims", "x"),
        (("ablations", 0), "name", []),
        (("ablations", 0), "name", 5),
        (("ablations", 0, "claims", 0), "statement", 5),
        (("ablations", 0, "claims", 0), "verdict", "<script>"),
        (("ablations", 0, "claims", 0), "published_effect", "<script>"),
        (("ablations", 0, "arms", 0, "cost"), "parameters", "x"),
        ((), "command", 5),
        ((), "profile", {}),
        ((), "date", None),
    ],
)
def test_whatever_the_results_hold_is_a_page_or_one_line(
    sweep: Path, place: tuple[Any, ...], key: str, value: Any, all_: tuple[str, ...]
) -> None:
    old = (sweep / "report.md", Path("runs/scoreboard.md"))
    for path in old:
        path.write_text("old")
    results = json.loads((sweep / "results.json").read_text())
    part = results
    for step in place:
        part = part[step]
    part[key] = value
    (sweep / "results.json").write_text(json.dumps(results))
    done = mmctl("report", *all_, "smoke-00000001")
    if done.code == 0:
        assert done.err == ""
        pages = [Path(line).read_text() for line in done.out.splitlines()]
        assert len(pages) == 2
        assert not any("<script" in page for page in pages)
    else:
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
        assert "results.json: not whole (" in done.err
        assert [path.read_text() for path in old] == ["old", "old"]


@pytest.mark.parametrize("words", [("",), ("--all", ""), ("--all", "--runs", "nosuch")])
def test_what_is_not_meant_writes_nothing(sweep: Path, words: tuple[str, ...]) -> None:
    done = mmctl("report", *words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert not (sweep / "report.md").exists()
    assert not Path("nosuch").exists()


def test_no_sweep_at_all_is_said() -> None:
    assert "no sweep has results yet" in mmctl("report").err
    Path("runs/sweeps").mkdir(parents=True)
    done = mmctl("report", "--all")
    assert (done.code, done.err) == (0, "")  # the scoreboard of an empty laboratory: everything is still to be run
    assert "from 0 sweeps." in Path("runs/scoreboard.md").read_text()
