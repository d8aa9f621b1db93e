"""What a sweep leaves behind: results.json, numbers.csv, figures, report.md and report.html, each written atomically.

Only what differs is written: the same numbers again leave every file, date and figure as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError
from mmctl.sweeps.plan import Plan
from mmctl.sweeps.reporting import as_html, as_markdown, figures, numbers, sweep
from mmctl.sweeps.reporting.document import Document
from mmctl.sweeps.results import collect

FORMS = {".md": as_markdown.markdown, ".html": as_html.html}
"""What a report can be written as, by the file's suffix."""


@dataclass
class Finished:
    """The results as they stand on disk, what could not be drawn, and what had to be written (nothing, if all was
    there)."""

    results: dict[str, Any]
    problems: list[str]
    written: list[str] = field(default_factory=list)


def finish(
    plan: Plan,
    root: Path,
    folder: Path,
    manifest: Mapping[str, Any],
    failures: Sequence[Mapping[str, Any]] = (),
    draw: bool = True,
) -> Finished:
    """Collect, judge, and bring every file of the sweep up to date."""
    from mmctl.runs.files import json_ready, write_json

    results = json.loads(json.dumps(json_ready(collect(plan, root, manifest, failures))))
    folder.mkdir(parents=True, exist_ok=True)
    before = _before(folder)
    done = Finished(results, [])
    if before is not None and {**before, "date": results["date"]} == results:
        done.results = results = before
    else:
        # Numbers first: whatever happens while figures are drawn, they are there.
        write_json(folder / "results.json", results)
        done.written.append("results.json")
    _write(folder / "numbers.csv", numbers.numbers_csv(results), done)
    bring_up_to_date(folder, done, draw)
    return done


def bring_up_to_date(folder: Path, done: Finished, draw: bool = True) -> None:
    """The figures and both forms of the report of results that stand in `folder`. draw=False: without figures."""
    drawn = figures.Drawn()
    if draw:
        asked = [name for ablation in done.results["ablations"] for name in ablation["figures"]]
        drawn = figures.draw(folder, [sweep.FIRST, *asked], done.results)
    done.problems += drawn.problems
    done.written += [f"figure {name}" for name in drawn.anew]
    made = sweep.document(done.results, {name: folder / path for name, path in drawn.paths.items()})
    for suffix in FORMS:
        _write(folder / f"report{suffix}", rendered(made, folder, suffix), done)


def rendered(document: Document, base: Path, suffix: str) -> str:
    """The document in the form that a file's suffix asks for, to lie in the folder `base`."""
    return FORMS[suffix](document, base)


def _before(folder: Path) -> dict[str, Any] | None:
    from mmctl.runs.files import read_object

    try:
        return read_object(folder / "results.json")
    except MmctlError:  # none yet, or damaged: written anew
        return None


def _write(path: Path, text: str, done: Finished) -> None:
    from mmctl.runs.files import write_text

    if not path.is_file() or path.read_bytes() != text.encode("utf-8", "surrogateescape"):
        write_text(path, text)
        done.written.append(path.name)
