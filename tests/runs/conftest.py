"""A small configuration, a root for runs, and one tracking store for the whole session (a new one costs seconds)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmctl.config import Config, load
from mmctl.runs import RunFolder

SMALL = (
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "data.length=64",
    "data.mixture={recall: 1}",
    "training.steps=20",
    "training.warmup=2",
    "evaluation.suites=[new-knowledge]",
)
"""No text in the mixture: its identity needs no corpus."""


def small(*overrides: str) -> Config:
    return load("smoke", [*SMALL, *overrides])


@pytest.fixture
def config() -> Config:
    return small()


@pytest.fixture
def run(tmp_path: Path, config: Config) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", config, ["training.steps=20"])


@pytest.fixture
def no_tracking_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def store_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root whose store exists; the space in its path is deliberate."""
    return tmp_path_factory.mktemp("store") / "the runs"


def scores(**values: float) -> dict[str, Any]:
    """An evaluation as `mmctl.evaluation` writes it: recall/accuracy@1x and so on."""
    entries = {k: {"value": v, "n": 4, "interval": [v - 0.1, v + 0.1]} for k, v in values.items()}
    return {
        "suite": "new-knowledge",
        "changes": {"remove_long_term": False, "delay": None},
        "settings": {"training_length": 64},
        "tasks": {"recall@1x": {"chance": 0.1}},
        "skipped": {},
        "scores": entries,
    }


