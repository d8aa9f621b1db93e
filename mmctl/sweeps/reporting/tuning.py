"""What a sweep's report says of `--tune`: every arm's values, their validation losses, and the choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmctl.sweeps.reporting.document import Block, Code, Heading, Paragraph, Strong, Table, Text

DIVERGED = "diverged"


def tuning_blocks(results: Mapping[str, Any]) -> Iterator[Block]:
    """Nothing for a sweep without --tune."""
    tuning = results.get("tuning")
    if tuning is None:
        return
    key, seeds = tuning["key"], ", ".join(map(str, tuning["seeds"]))
    yield Heading("Tuning", id="tuning")
    yield Paragraph(
        [
            "Each arm runs with its own value of ",
            Code(key),
            f": the one with the {tuning['chosen_by']}, of trials with the same values, steps and seeds ({seeds}) for every "
            "arm. Validation sequences are used for nothing else; of a fixed table or corpus they are sequences of its "
            "training part. A trial with the chosen value is the arm's run with that seed.",
        ]
    )
    rows: list[list[Text]] = []
    for choice in tuning["arms"] or ():
        tried: list[Text] = []
        for one in choice["tried"]:
            loss = DIVERGED if one["mean"] is None else f"{one['mean']:.4f}"
            tried.append([Strong(loss)] if one["value"] == choice["chosen"] else loss)
        note = "at the edge of the grid: a better value may lie beyond" if choice["edge"] else ""
        arm: Text = [f"{choice['ablation']}/", Code(choice["arm"])]
        rows.append([arm, *tried, shown(choice["chosen"]), note])
    head = ["arm", *(f"validation loss at {value}" for value in tuning["values"]), "chosen", "remark"]
    yield Table(f"Validation losses by {key}", head, rows)


def shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
