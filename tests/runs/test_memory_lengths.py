"""Lengths that this machine cannot score are refused before anything is trained or loaded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmctl.config import load
from mmctl.errors import UsageError
from mmctl.runs import memory
from mmctl.training import run

MIB = 2**20


@pytest.mark.parametrize("mib", [256, 1024, 4096])
def test_the_longest_that_fits_is_named_and_fits(monkeypatch: pytest.MonkeyPatch, mib: int) -> None:
    monkeypatch.setattr(memory, "memory", lambda: mib * MIB)
    with pytest.raises(UsageError, match=r"evaluation\.lengths: 100000 \(12,800,000 tokens\)") as caught:
        memory.check_lengths(load("smoke", ["evaluation.lengths=[1,100000]"]))
    assert "\n" not in str(caught.value)
    (most,) = map(int, re.findall(r"expected at most (\d+)", str(caught.value)))
    memory.check_lengths(load("smoke", [f"evaluation.lengths=[1,{most}]"]))
    with pytest.raises(UsageError, match=f"evaluation.lengths: {most + 1} "):
        memory.check_lengths(load("smoke", [f"evaluation.lengths=[1,{most + 1}]"]))


def test_nothing_is_proposed_where_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory", lambda: MIB)
    with pytest.raises(UsageError, match=r"of memory$"):
        memory.check_lengths(load("smoke", []))


def test_training_asks_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "memory", lambda: 1024 * MIB)
    config = load("smoke", ["evaluation.lengths=[1,100000]", "operation.mlflow=false", "operation.device=cpu"])
    with pytest.raises(UsageError, match=r"evaluation\.lengths"):
        run.execute(config, tmp_path)
    assert list(tmp_path.iterdir()) == []
