"""What a sweep leaves behind: results.json, numbers.csv, figures and report.md, each written atomically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmctl.sweeps import figures, numbers, report
from mmctl.sweeps.plan import Plan
from mmctl.sweeps.results import collect


def finish(
    plan: Plan,
    root: Path,
    folder: Path,
    manifest: Mapping[str, Any],
    failures: Sequence[Mapping[str, Any]] = (),
    draw: bool = True,
) -> tuple[dict[str, Any], list[str]]:
    """Collect, judge and write everything. Returns (results, problems with figures)."""
    from mmctl.runs.files import write_json, write_text

    results = collect(plan, root, manifest, failures)
    folder.mkdir(parents=True, exist_ok=True)
    # Numbers first: whatever happens while figures are drawn, they are there.
    write_json(folder / "results.json", results)
    write_text(folder / "numbers.csv", numbers.numbers_csv(results))
    wanted = [name for matrix in plan.matrices for name in matrix.figures] if draw else []
    drawn, problems = figures.draw(folder, wanted)
    write_text(folder / "report.md", report.markdown(results, drawn))
    return results, problems
