"""`--at KEY=VALUES`: the same claims at other settings, so that no verdict hangs on one.

The sweep is run as it is and once more for every value, each as a sweep of its own with its own manifest, report and
correction for the number of its claims; a table then puts every claim's verdicts side by side. It says which verdicts
agree, and counts nothing: a claim is not better for holding at many settings that somebody chose.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.config import separate
from mmctl.errors import UsageError
from mmctl.sweeps.reporting import words
from mmctl.sweeps.reporting.document import Block, Code, Document, Fields, Heading, Paragraph, Table, Text, Word
from mmctl.sweeps.verdicts import MEANINGS, NOT_RUN

if TYPE_CHECKING:
    from mmctl.sweeps.plan import Plan

AS_IS = "as it is"
"""The setting without any --at."""


def parse(given: Sequence[str], overrides: Sequence[str], tuned: str | None = None) -> list[str]:
    """`KEY=VALUE` words, one a further setting, from `--at KEY=VALUE,VALUE` (repeated for several keys). UsageError."""
    settings: list[str] = []
    typed = {text.partition("=")[0].strip() for text in overrides}
    for text in given:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not key or not all(separate(values)):
            raise UsageError(
                f"--at {text}: expected KEY=VALUE or KEY=VALUE,VALUE, such as training.learning_rate=2e-3,8e-3"
            )
        if key in typed:
            raise UsageError(f'--at {text}: "{key}" is given as an override too: leave that out')
        if key == tuned:
            raise UsageError(f'--at {text}: "{key}" is what --tune chooses')
        settings += [f"{key}={value}" for value in separate(values)]
    twice = next((one for i, one in enumerate(settings) if one in settings[:i]), None)
    if twice is not None:
        raise UsageError(f"--at {twice}: is given twice")
    return settings


def plans(settings: Sequence[str], make: Callable[[list[str]], Plan]) -> dict[str, Plan]:
    """{setting: its plan}, the first as it is; `make` composes the sweep with further overrides. UsageError for a setting
    that changes nothing."""
    found = {AS_IS: make([])}
    for setting in settings:
        made = make([setting])
        same = next((name for name, other in found.items() if other.name == made.name), None)
        if same is not None:
            raise UsageError(f"--at {setting}: is the same sweep as {'without it' if same == AS_IS else same}")
        found[setting] = made
    return found


def folder(sweeps: Mapping[str, Plan], root: Path) -> Path:
    """Where the table of these sweeps lies."""
    first = next(iter(sweeps.values()))
    digest = hashlib.sha256(json.dumps([plan.name for plan in sweeps.values()]).encode()).hexdigest()[:8]
    return root / "sweeps" / f"{first.profile.name}-at-{digest}"


def table_of(results: Mapping[str, Mapping[str, Any]], command: str) -> dict[str, Any]:
    """{"command", "settings": {setting: sweep}, "claims": [...]} from {setting: results.json's dictionary}."""
    claims: dict[tuple[str, str], dict[str, Any]] = {}
    for setting, result in results.items():
        for ablation in result["ablations"]:
            for claim in ablation["claims"]:
                about = {"ablation": ablation["name"], "id": claim["id"], "statement": claim["statement"]}
                row = claims.setdefault((ablation["name"], claim["id"]), {**about, "metric": claim["metric"], "at": {}})
                kept = ("verdict", "reason", "difference", "parts", "control", "p_holm", "at_chance", "unmatched")
                row["at"][setting] = {key: claim[key] for key in kept}
    for row in claims.values():
        said = {entry["verdict"] for entry in row["at"].values()}
        row["agree"] = len(said) == 1 and said != {NOT_RUN} and len(row["at"]) == len(results)
    return {
        "command": command,
        "settings": {setting: result["sweep"] for setting, result in results.items()},
        "claims": list(claims.values()),
    }


def document(found: Mapping[str, Any]) -> Document:
    """The table for people: a row a claim, a column a setting."""
    settings = list(found["settings"])
    agree = sum(claim["agree"] for claim in found["claims"])
    facts: list[tuple[str, Text]] = [("Command", Code(found["command"]))]
    facts += [(setting, ["sweep ", Code(sweep)]) for setting, sweep in found["settings"].items()]
    blocks: list[Block] = [
        Fields(facts),
        Paragraph(
            f"Claims: {len(found['claims'])}; settings: {len(settings)}; with the same verdict at every one: {agree}. Each "
            "setting is a sweep of its own: its verdicts are corrected over its own claims of a direction, not over the "
            "settings. Means with 95% intervals, as in each sweep's report, which has the rest."
        ),
    ]
    rows: list[list[Text]] = []
    for claim in found["claims"]:
        cells: list[Text] = [_cell(claim, claim["at"].get(setting)) for setting in settings]
        rows.append([f"{claim['ablation']}: {claim['statement']}", *cells, "yes" if claim["agree"] else "no"])
    blocks.append(Table("Verdicts by setting", ["claim", *settings, "same verdict"], rows))
    met = {entry["verdict"] for claim in found["claims"] for entry in claim["at"].values()}
    blocks.append(Heading("The words of the verdicts"))
    blocks.append(Fields([(word, f"{meaning}.") for word, meaning in MEANINGS.items() if word in met]))
    return Document("The same claims at other settings", blocks)


def as_csv(found: Mapping[str, Any]) -> str:
    """One row a claim and setting."""
    text = io.StringIO()
    names = ["ablation", "claim", "metric", "setting", "sweep", "value", "low", "high", "n", "verdict", "same_verdict"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for claim in found["claims"]:
        for setting, entry in claim["at"].items():
            difference = entry["difference"] or {"mean": "", "interval": None, "n": 0}
            low, high = difference["interval"] or ("", "")
            writer.writerow(
                {
                    "ablation": claim["ablation"], "claim": claim["id"], "metric": claim["metric"], "setting": setting,
                    "sweep": found["settings"][setting], "value": difference["mean"], "low": low, "high": high,
                    "n": difference["n"], "verdict": entry["verdict"], "same_verdict": claim["agree"],
                }
            )  # fmt: skip
    return text.getvalue()


def _cell(claim: Mapping[str, Any], entry: Mapping[str, Any] | None) -> Text:
    if entry is None:
        return words.MISSING
    return [Word(entry["verdict"]), f": {words.ours({**claim, **entry})}"]
