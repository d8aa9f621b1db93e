"""A small part of the fault campaign, and proof that its judge sees what it is there to see.

The whole of it is `python tests/faults/campaign.py --kills 200 --summary FILE`; what it found last is in summary.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import fault_checks as checks
import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(sys.platform != "linux", reason="its processes are made with Linux's subreaper")
def test_a_part_of_the_campaign_finds_nothing_broken(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    options = ["--kills", "8", "--seed", "5", "--seeds", "0,1", "--no-mlflow", "--only", "duplicate-starts"]
    done = subprocess.run(
        [sys.executable, str(HERE / "campaign.py"), *options, "--folder", str(tmp_path), "--summary", str(summary)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(summary.read_text())
    assert found["broken"] == []
    assert found["kills"] >= 8
    assert found["sweeps"]["runs"] == 6 * found["sweeps"]["rounds"]
    assert found["scenarios"]["duplicate-starts"].startswith("three commands")


def journal(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


WHOLE = """1 begin a 0
1 step a 1
1 step a 2
1 saved a 2
1 step a 3
2 begin a 2
2 step a 3
2 saved a 3
2 result a"""


def test_a_resumed_run_is_trained_once() -> None:
    counts = {"runs": 1, "starts": 2, "steps": 4, "steps_again": 1}
    assert checks.trained_once(journal(WHOLE)) == counts


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("2 result a", "2 result a\n3 begin a 3", "after its result"),
        ("2 begin a 2", "2 begin a 0", "begun from step 0, the last saved one is 2"),
        ("2 step a 3", "1 step a 4\n2 step a 3", "which had lost the run"),
        ("1 step a 3", "1 step a 2", "step 2 after step 2"),
        ("2 step a 3", "2 step a 4", "step 4 after step 2"),
    ],
)
def test_what_is_trained_twice_or_by_two_is_seen(old: str, new: str, words: str) -> None:
    with pytest.raises(checks.Broken, match=words):
        checks.trained_once(journal(WHOLE.replace(old, new)))


def test_a_finished_result_that_goes_or_changes_is_seen(tmp_path: Path) -> None:
    run = tmp_path / "x-12345678" / "seed0"
    (run / "eval").mkdir(parents=True)
    for name in ("result.json", "metrics.jsonl", "eval/in-context.json"):
        (run / name).write_text("{}")
    before = checks.finished(tmp_path)
    (run / "eval" / "in-context+remove-long-term.json").write_text("{}")
    assert checks.kept(before, tmp_path) != before  # more is no harm
    (run / "metrics.jsonl").write_text("{} ")
    with pytest.raises(checks.Broken, match=r"metrics\.jsonl of a finished run changed"):
        checks.kept(before, tmp_path)
    (run / "result.json").unlink()
    with pytest.raises(checks.Broken, match="its result is gone"):
        checks.kept(before, tmp_path)


def test_only_times_may_differ() -> None:
    assert checks.plain({"a": [{"seconds": 1, "loss": 2}], "time": 3}) == {"a": [{"loss": 2}]}
