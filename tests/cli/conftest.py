from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runs")]


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own, no MLflow of the shell's, and no plugin left behind."""
    from mmctl import data, models, plugins

    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MMCTL_RUNS", plugins.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    before = dict(models.MODELS), dict(data.TASKS), set(sys.modules), list(sys.path)
    yield
    for registry, kept in ((models.MODELS, before[0]), (data.TASKS, before[1])):
        registry.clear()
        registry.update(kept)
    for name in set(sys.modules) - before[2]:
        if name.startswith(("mmctl_plugin_", "own_")):
            del sys.modules[name]
    sys.path[:] = before[3]
    plugins._loaded.clear()
    plugins._read_from_environment = ""
    os.environ.pop(plugins.VARIABLE, None)
