"""`mmctl ablate --tune` and `--at` as typed: what contradicts, and what a dry run of both says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inprocess import mmctl

RATE = "training.learning_rate"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tune", f"{RATE}=1e-3,4e-3", "--force"], "--force and --tune: give one of them"),
        (["--tune", f"{RATE}=1e-3"], "expected at least two values"),
        (["--tune-seeds", "3"], "--tune-seeds 0,1,2: is for --tune"),
        (["--tune", "training.learning_rat=1,2"], 'did you mean "training.learning_rate"'),
        (["--tune", "model.rope_base=10,20", "--dry-run"], "model.rope_base"),
        (["--at", "model.widht=32"], 'did you mean "model.width"'),
        (["--at", f"{RATE}=1e-3", "--tune", f"{RATE}=1e-3,4e-3"], "is what --tune chooses"),
    ],
)
def test_contradictions_are_one_line_and_exit_2(words: list[str], says: str, tmp_path: Path) -> None:
    done = mmctl("ablate", "key-extractor", *words, "--dry-run", "--runs", tmp_path / "runs")
    assert done.code == 2, done.err
    assert says in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_of_both_shows_the_trials_of_every_setting(tmp_path: Path) -> None:
    words = ["--tune", f"{RATE}=1e-3,4e-3", "--tune-seeds", "7,", "--at", "model.width=32", "--seeds", "2", "--json"]
    done = mmctl("ablate", "key-extractor", *words, "--dry-run", "--runs", tmp_path / "runs")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert list(told) == ["as it is", "model.width=32"]
    for setting in told.values():
        assert (setting["trials"]["runs"], {row["seed"] for row in setting["trials"]["plan"]}) == (4, {7})
        assert setting["after"]["missing"] == 4  # two arms, two seeds, none of which is a trial
    assert told["as it is"]["trials"]["sweep"] != told["model.width=32"]["trials"]["sweep"]
    assert not (tmp_path / "runs").exists()
