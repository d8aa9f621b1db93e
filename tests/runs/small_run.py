"""A configuration that costs nothing to make a run of, an evaluation to put in it, and waiting for what a thread
does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mmctl.config import Config, load

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


def scores(values: dict[str, float]) -> dict[str, Any]:
    """An evaluation as `mmctl.evaluation` writes it, with `values` under names such as recall/accuracy@1x."""
    entries = {k: {"value": v, "n": 4, "interval": [v - 0.1, v + 0.1]} for k, v in values.items()}
    return {
        "suite": "new-knowledge",
        "changes": {"remove_long_term": False, "delay": None},
        "settings": {"training_length": 64},
        "tasks": {"recall@1x": {"chance": 0.1}},
        "skipped": {},
        "scores": entries,
    }


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Until `condition()` holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
