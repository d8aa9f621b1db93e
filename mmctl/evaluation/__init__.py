"""Evaluation: the three dimensions (suites), at multiples of the training length, paired over models.

Importing this imports neither torch nor numpy; names resolve on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmctl.evaluation.config import EvaluationConfig
    from mmctl.evaluation.scoring import evaluate
    from mmctl.evaluation.suites import (
        SUITES,
        file_stem,
        find_evaluation,
        lacks_evaluation,
        reported,
        same_settings,
        scored_at_end,
        stem_in,
        wanted_suites,
    )

__all__ = [
    "SUITES",
    "EvaluationConfig",
    "evaluate",
    "file_stem",
    "find_evaluation",
    "lacks_evaluation",
    "reported",
    "same_settings",
    "scored_at_end",
    "stem_in",
    "wanted_suites",
]

_HOME = {"EvaluationConfig": "config", "evaluate": "scoring"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'suites')}"), name)
    globals()[name] = found
    return found
