"""The manifest: what a sweep is about, written before its first run and never rewritten.

It fixes the claims (with the hash of the file they stand in), the cells and the seeds. A claim that was added or
changed after the first run is marked as such in the report: the manifest says what was registered.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError
from mmctl.sweeps.claims import Claim
from mmctl.sweeps.matrix import Matrix
from mmctl.sweeps.plan import Plan, Run
from mmctl.sweeps.verdicts import ANALYSIS

SCHEMA = 1

WORDING = ("statement", "stand_in", "caveat")
"""Keys of a claim that say it and do not test it."""


def folder(plan: Plan, root: Path) -> Path:
    return root / "sweeps" / plan.name


def write(plan: Plan, root: Path, versions: dict[str, str]) -> dict[str, Any]:
    """The sweep's manifest: the one on disk if there is one, else written now, atomically."""
    from mmctl.runs.files import WriteError, write_json
    from mmctl.runs.lock import waiting_lock

    path = folder(plan, root) / "manifest.json"
    if path.exists():
        return read(path.parent)
    content = {**_content(plan, versions), "finished_before": _finished(plan, root)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot write in {path.parent}: {error.strerror or error}") from error
    with waiting_lock(root / ".create.lock"):  # of two that begin at once, the first one's claims count
        if not path.exists():
            write_json(path, content)
    return read(path.parent)


def read(sweep: Path) -> dict[str, Any]:
    """MmctlError, one line, when the manifest is missing or damaged."""
    from mmctl.runs.files import read_json

    path = sweep / "manifest.json"
    if not path.exists():
        raise MmctlError(f"{sweep}: not a sweep (it has no manifest.json)")
    found = read_json(path)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise MmctlError(f"{path}: not a manifest of schema {SCHEMA}")
    return found


def registered(manifest: dict[str, Any], matrix: Matrix, claim: Claim) -> str | None:
    """None if the claim stands in the manifest as it stands now; else what happened to it after the first run."""
    ablation = next((a for a in manifest["ablations"] if a["name"] == matrix.name), None)
    known = next((c for c in (ablation or {}).get("claims", []) if c["id"] == claim.id), None)
    if known is None:
        return "added after the first run"
    # A key that did not exist when the manifest was written, and that the claim does not use, changes nothing.
    now = _claim(claim)
    changed = [key for key in sorted({*known, *now}) if known.get(key) != now.get(key)]
    tested = [key for key in changed if key not in WORDING]
    if tested:
        return f"changed after the first run ({', '.join(tested)})"
    return "reworded after the first run" if changed else None


def digest_of(manifest: dict[str, Any], matrix: Matrix) -> str | None:
    """SHA-256 of the ablation's file when its claims were fixed; None for an ablation that was not there."""
    return next((a["sha256"] for a in manifest["ablations"] if a["name"] == matrix.name), None)


def _content(plan: Plan, versions: dict[str, str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "sweep": plan.name,
        "profile": plan.profile.name,
        "preset": plan.profile.preset,
        "command": plan.command(),
        "overrides": plan.overrides,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "analysis": ANALYSIS,
        **({} if plan.tuned is None else {"tuning": plan.tuned.tuning.record()}),
        "ablations": [
            {
                "name": matrix.name,
                "file": matrix.file.name,
                "sha256": matrix.digest,
                "question": matrix.question,
                "seeds": list(plan.seeds[matrix.name]),
                "arms": [
                    {
                        "name": arm.name,
                        "label": arm.label,
                        "set": dict(arm.set),
                        "evaluate": arm.evaluate.record(),
                        "identity": plan.arms[matrix.name, arm.name],
                    }
                    for arm in matrix.arms
                ],
                "excluded": [{"arm": arm.name, "reason": reason} for arm, reason in matrix.excluded],
                **({"across": [entry.record() for entry in matrix.across]} if matrix.across else {}),
                "claims": [_claim(claim) for claim in matrix.claims],
                "figures": list(matrix.figures),
            }
            for matrix in plan.matrices
        ],
        "cells": [
            {
                "identity": cell.identity,
                "name": cell.name,
                "seeds": cell.seeds,
                "uses": [f"{u.ablation}/{u.arm}" for u in cell.uses],
            }
            for cell in plan.cells.values()
        ],
    }


def _finished(plan: Plan, root: Path) -> list[str]:
    """Runs that another command had finished before the claims were fixed: the report says so."""
    from mmctl.runs import RunFolder
    from mmctl.runs.names import index

    known = index(root)
    runs = plan.runs()
    if plan.tuned is not None:  # its cells are trials: the chosen ones will be asked for with the other seeds too
        others = {seed for seeds in plan.seeds.values() for seed in seeds}
        runs = [Run(cell, seed) for cell in plan.cells.values() for seed in sorted({*cell.seeds, *others})]
    found = [(run, RunFolder.among(known.get(run.key, []))) for run in runs]
    return [run.label for run, folder in found if folder is not None and folder.finished]


def _claim(claim: Claim) -> dict[str, Any]:
    """As JSON gives it back, so that two can be compared."""
    return json.loads(json.dumps(asdict(claim)))
