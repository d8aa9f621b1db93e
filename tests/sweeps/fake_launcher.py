"""The local launcher with workers that run `fake_runs`, for tests that go through a whole command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mmctl.sweeps.launchers import Resources
from mmctl.sweeps.launchers.local import LocalLauncher, checked

__all__ = ["FakeLauncher", "checked"]


class FakeLauncher(LocalLauncher):
    def __init__(self, resources: Resources, folder: Path, options: Mapping[str, str] | None = None) -> None:
        targets = {"train": "fake_runs:execute", "evaluate": "fake_runs:evaluate"}
        super().__init__(resources, folder, options, targets=targets)
