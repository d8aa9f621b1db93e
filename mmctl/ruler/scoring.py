"""Scores as published (scripts/eval/synthetic/constants.py): lower-cased containment of references in the
prediction."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x1f]")


def cleaned(prediction: str) -> str:
    """As the published evaluation cleans a prediction: control characters become line breaks, ends are stripped."""
    return _CONTROL.sub("\n", prediction.strip()).strip()


def score(prediction: str, references: list[str], any_match: bool) -> float:
    """Share of the references found (string_match_all), or 1 if any is (string_match_part)."""
    text = cleaned(prediction).lower()
    found = [reference.lower() in text for reference in references]
    return float(any(found)) if any_match else sum(found) / len(found)
