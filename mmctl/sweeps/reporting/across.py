"""What a report says of numbers made from several arms of one seed (across.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmctl.sweeps.reporting import words
from mmctl.sweeps.reporting.document import Block, Code, Heading, Paragraph, Table, Text
from mmctl.sweeps.reporting.words import MISSING
from mmctl.sweeps.units import scale_of


def across_blocks(ablation: Mapping[str, Any]) -> Iterator[Block]:
    """ablation: as in results.json. Every number of the functions' own making; where derived arms have their members'
    metrics, those that claims compare."""
    entries = ablation.get("across", [])
    if not entries:
        return
    yield Heading("Across arms", 3)
    claimed = dict.fromkeys(c["metric"] for c in ablation["claims"])
    for entry in entries:
        yield Paragraph(f"{entry['about'][0].upper()}{entry['about'][1:]}.")
        rows: list[list[Text]] = []
        for name, arm in entry["arms"].items():
            own = [m for m in arm["scores"] if m.startswith("across:")] or [m for m in claimed if m in arm["scores"]]
            if not own:
                rows.append([Code(name), MISSING, MISSING, "0"])
            for metric in own:
                summary, scale = arm["scores"][metric], scale_of(metric)
                said = f"{words.score(summary, scale)} {scale.unit}".rstrip()
                rows.append([Code(name), metric.removeprefix("across:"), said, str(summary["n"])])
        yield Table(
            f"{ablation['name']}: {entry['function']}",
            ["made of several arms", "number", "mean, 95% interval", "n"],
            rows,
        )
