"""One claim of a report in full: what was measured, what was published, the verdict, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmctl.sweeps.reporting import words
from mmctl.sweeps.reporting.document import Block, Code, Fields, Heading, Several, Text, Word
from mmctl.sweeps.reporting.outlook import outlook
from mmctl.sweeps.units import scale_of


def claim_blocks(ablation: Mapping[str, Any], claim: Mapping[str, Any]) -> Iterator[Block]:
    """ablation, claim: as in results.json."""
    source = claim["published"]
    said = f"{words.published(claim)} ({source['metric']}; {source['source']})" if source else words.UNPUBLISHED
    fields: list[tuple[str, Text | Several]] = [
        ("Claim", Code(claim["id"])),
        ("Measured", [Code(claim["metric"]), words.compared(claim)]),
        ("Published", f"{said}."),
        ("Ours", _parts(claim) if claim["parts"] else _ours(claim)),
        ("Verdict", [Word(claim["verdict"]), f": {claim['reason']}."]),
    ]
    if claim["corrected_interval"] is not None:
        fields.append(_corrected(claim))
    fields.append(("What would change it", outlook(claim, ablation["arms"])))
    for name, key in (("Stand-in", "stand_in"), ("Caveat", "caveat")):
        if claim[key]:
            fields.append((name, claim[key]))
    if claim["unmatched"]:
        fields.append(("Unmatched comparison", f"{', '.join(claim['unmatched'])}."))
    if claim["registered"]:
        fields.append(("Pre-registration", f"This claim was {claim['registered']}."))
    yield Heading(claim["statement"], 4, id=f"claim.{ablation['name']}.{claim['id']}")
    yield Fields(fields)


def _ours(claim: Mapping[str, Any]) -> str:
    scale = scale_of(claim["metric"])
    most = 1.0 if "/accuracy" in claim["metric"] else None

    def arm(which: str) -> str:
        summary = claim[f"{which}_score"]
        n = "" if summary is None else f" (n = {summary['n']})"
        return f"{claim[which]} {words.score(summary, scale, most)} {scale.unit if summary else ''}".rstrip() + n

    if claim["control"]:
        return f"{words.ours(claim)}; {arm('treatment')}, {arm('control')}."
    start = "" if claim["start"] is None else f"; before training {scale.value(claim['start'])}"
    return f"{words.ours(claim)}{start}."


def _parts(claim: Mapping[str, Any]) -> Several:
    scale, found = scale_of(claim["metric"]), list[Text]()
    for part in claim["parts"]:
        start = "" if part["start"] is None else f"; before training {scale.value(part['start'])}"
        value = words.measured(part["difference"], scale, False)
        found.append([f"{part['part']}: {value}{start}: ", Word(part["verdict"]), f", {part['reason']}."])
    return Several(found)


def _corrected(claim: Mapping[str, Any]) -> tuple[str, str]:
    scale, p = scale_of(claim["metric"]), words.holm_p(claim)
    p = f"; Holm-adjusted p {p if p.startswith('<') else f'= {p}'}" if p else ""
    level = f"{100 * claim['corrected_level']:.2f}%"
    pair = words.interval(claim["corrected_interval"], scale)
    return f"Corrected interval ({level})", f"{pair} {scale.of_difference}{p}."
