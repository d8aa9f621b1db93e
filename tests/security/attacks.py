"""What the tests of this folder attack with: a run that costs nothing, and objects that act when they are unpickled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

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
    "operation.mlflow=false",
)


def small(*overrides: str) -> Config:
    return load("smoke", [*SMALL, *overrides])


def new_run(root: Path, *overrides: str) -> RunFolder:
    return RunFolder.create(root, small(*overrides))


class Acts:
    """Makes the folder `mark` when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)
