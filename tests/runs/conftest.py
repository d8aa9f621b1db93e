"""A run in a fresh root, and one tracking store for the whole session (a new one costs seconds)."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_run import small

from mmctl.config import Config
from mmctl.runs import RunFolder


@pytest.fixture(autouse=True)
def own_store_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shell that started the tests says about MLflow must not reach them."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def config() -> Config:
    return small()


@pytest.fixture
def run(tmp_path: Path, config: Config) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", config, ["training.steps=20"])


@pytest.fixture(scope="session")
def store_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root whose store is made once; the space in its path is deliberate."""
    return tmp_path_factory.mktemp("store") / "the runs"
