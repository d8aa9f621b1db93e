"""Progress as people see it: lines in a log, a table on a terminal; both on stderr."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmctl.evaluation.changes import Changes
from mmctl.sweeps import live
from mmctl.sweeps.launchers import Event, Job
from mmctl.sweeps.matrix import load


class Task:
    def __init__(self, kind: str = "train", changes: tuple[Changes, ...] = ()) -> None:
        self.kind, self.changes = kind, changes


def job(number: int, kind: str = "train") -> Job:
    return Job(number, kind, f"cell/seed{number}", {}, Path("."), [], {}, [])


def progress(number: int, place: int = 0, **values: Any) -> Event:
    known = {"phase": "training", "step": 5, "steps": 10, "loss": 1.25, "seconds_left": 75.0}
    return Event("progress", job(number), place, {**known, **values})


def done(number: int, state: str = "finished", kind: str = "train", **values: Any) -> Event:
    return Event("done", job(number, kind), 0, {"state": state, "seconds": 61.0, "reason": None, **values})


def test_lines_say_progress_ends_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    board = live.LineBoard()
    board.begin([Task(), Task("train", (Changes(True),))], 4)
    board.event(progress(0))
    board.event(progress(0, step=6))  # too soon for another line
    board.event(done(0))
    board.event(done(1, "failed", reason="disk full"))
    captured = capsys.readouterr()
    lines = [line[9:] for line in captured.err.splitlines()]
    assert captured.out == ""
    assert lines[0].startswith("0/3 jobs, 4 runs already finished")
    assert lines[1] == "cell/seed0: training 5/10, loss 1.2500, 1:15 left"
    assert lines[2].startswith("cell/seed0: finished in 1:01 (1/3 jobs")
    assert lines[3].startswith("cell/seed1: failed: disk full (2/3 jobs, 4 runs already finished, 1 failed")
    assert len(lines) == 4


def test_time_left_weighs_trainings_more_than_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    counts = live._Counts()
    counts.begin([Task("train", (Changes(True),)), Task()], 0)
    assert counts.left() is None
    now[0] = 110.0
    counts.count(done(0))
    assert counts.left() == pytest.approx(10.0 * (1 + live.EVALUATION))


def test_a_job_that_is_tried_again_is_one_job() -> None:
    counts = live._Counts()
    counts.begin([Task(), Task()], 0)
    for event in (done(0), done(1, "failed", reason="disk full"), done(1, "failed", reason="disk full")):
        counts.count(event)
    assert counts.summary().startswith("2/2 jobs, 1 failed")
    counts.count(done(1))
    assert (counts.done, counts.failed) == (2, 0)


def test_the_table_has_a_row_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    board = live.TableBoard()
    board.counts.begin([Task(), Task()], 0)
    board.counts.count(progress(0, place=0))
    board.counts.count(progress(1, place=1, phase="evaluating [bold]", loss=None, seconds_left=None))
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(board._table())
    text = console.export_text()
    assert "0/2 jobs" in text
    assert "cell/seed0" in text
    assert "1.2500" in text
    assert "evaluating [bold]" in text  # what runs are called is never markup


def test_the_example_in_the_loaders_docstring_loads(tmp_path: Path) -> None:
    from mmctl.sweeps import matrix

    example = (matrix.__doc__ or "").partition("    name: window")[2].partition("\n\n")[0]
    path = tmp_path / "window.yaml"
    path.write_text("name: window" + example.replace("\n    ", "\n"))
    found = load(path)
    assert [a.name for a in found.arms] == [
        "baseline",
        "remove_long_term=true",
        "window=48",
        "window=64",
        "window=64+remove_long_term=true",
    ]
    assert len(found.excluded) == 1
