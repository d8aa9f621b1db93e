"""Merging an archive of finished runs into a folder of runs: by identity and seed, never overwriting, each run whole.

Everything is unpacked and checked first; if anything is wrong, or a run is here already with another result, nothing
changes. A run that is here unfinished is set aside (to `replaced/`) and the finished one takes its place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError, UsageError
from mmctl.runs import files, making, names
from mmctl.runs.folder import RunFolder
from mmctl.runs.lock import waiting_lock
from mmctl.runs.unpacking import Refused, unpack

NOT_A_RESULT = ("seconds", "device", "versions")
"""What may differ between two machines' result.json of the same training."""


@dataclass
class Imported:
    """What was done. `conflicts` (label -> what differs): then nothing was."""

    runs: list[str] = field(default_factory=list)
    already: list[str] = field(default_factory=list)
    set_aside: dict[str, str] = field(default_factory=dict)
    sweeps: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def merge(path: Path, root: Path, *, with_checkpoints: bool = True) -> Imported:
    """Import the archive at `path` into `root`. MmctlError in one line, with nothing changed, if it is not sound."""
    created = not root.exists()
    try:
        root.mkdir(parents=True, exist_ok=True)
        files.remove_leftovers(root)
        staging = files.temporary_name(root / "import")
        staging.mkdir()
    except OSError as error:
        raise files.WriteError(f"cannot write in {root}: {error.strerror or error}") from error
    try:
        manifest = unpack(path, staging, with_checkpoints=with_checkpoints)
        done = Imported()
        new: list[tuple[RunFolder, RunFolder | None]] = []
        found = names.index(root)
        for label in manifest["runs"]:
            run = _sound(staging, label, path, done)
            here = [RunFolder(place) for place in found.get((run.identity, run.seed), [])]
            if not any(other.finished for other in here):
                new.append((run, here[0] if here else None))
                if here and here[0].state() == "running":
                    done.conflicts[label] = f"{here[0].label} is running here"
            elif problem := _differs(run, next(other for other in here if other.finished)):
                done.conflicts[label] = problem
            else:
                done.already.append(label)
        if done.conflicts:
            return done
        for run, unfinished in new:
            _place(run, unfinished, root, done)
        for name in manifest["sweeps"]:
            _place_sweep(staging / "sweeps" / name, root / "sweeps" / name, done)
        return done
    except OSError as error:
        raise files.WriteError(f"cannot write in {root}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if created:
            with contextlib.suppress(OSError):
                root.rmdir()  # only if nothing came into it


def _sound(staging: Path, label: str, path: Path, done: Imported) -> RunFolder:
    """The unpacked run, if it is finished and is what its name says. Refused otherwise."""
    from mmctl.config import identity

    try:
        run = RunFolder.open(staging / "runs" / label)
        result = files.read_object(run.path / "result.json")
        content = run.config_dict()
    except MmctlError as error:
        raise Refused(f"{path}: {label} is no finished run ({_shortened(error, staging)})") from None
    if result.get("seed", run.seed) != run.seed or result.get("identity", run.identity) != run.identity:
        raise Refused(f"{path}: the result of {label} is that of another run")
    try:
        config = run.config()
    except MmctlError as error:
        if content.get("plugins"):
            done.notes.append(f"{label}: imported without checking its identity: {_shortened(error, staging)}")
            return run
        raise Refused(f"{path}: {label}: {_shortened(error, staging)}") from None
    # Its corpora need not be here: their fingerprints stand in its provenance.
    corpora = run.provenance().get("corpora") or {}
    if config.seed != run.seed or identity(config, corpora) != run.identity:
        raise Refused(f"{path}: {label} is not the run its configuration describes")
    return run


def _shortened(error: MmctlError, staging: Path) -> str:
    return str(error).replace(f"{staging}/runs/", "")


def _differs(theirs: RunFolder, ours: RunFolder) -> str | None:
    """What differs between two finished runs of one identity and seed; None if they have the same result and scores."""
    mine, other = _numbers(ours.result()), _numbers(theirs.result())
    if mine != other:
        key = next(k for k in (*mine, *other) if mine.get(k) != other.get(k))
        return f"{key} is {other.get(key)} in the archive and {mine.get(key)} here ({ours.label})"
    here = ours.evaluations()
    for stem, evaluation in theirs.evaluations().items():
        known = here.get(stem)
        if known is None or known.get("settings") != evaluation.get("settings"):
            continue
        if known.get("scores") != evaluation.get("scores"):
            return f"eval/{stem}.json has other scores in the archive than here ({ours.label})"
    return None


def _numbers(result: Mapping[str, Any]) -> dict[str, Any]:
    from mmctl.runs.listing import flat

    return {k: v for k, v in flat(result).items() if k.partition(".")[0] not in NOT_A_RESULT}


def _place(run: RunFolder, unfinished: RunFolder | None, root: Path, done: Imported) -> None:
    """Give an unpacked run its place in one rename; refused if somebody has finished or begun it meanwhile."""
    if unfinished is not None:
        moved = making.set_aside(unfinished, root)
        done.set_aside[unfinished.label] = str(moved)
    target = root / run.path.parent.name / run.path.name
    (run.path / "checkpoints").mkdir(exist_ok=True)
    (run.path / "eval").mkdir(exist_ok=True)
    if not names.inside(root, target.parent):
        raise MmctlError(f"{target.parent}: leads out of {root}; nothing is imported through it")
    target.parent.mkdir(exist_ok=True)
    with waiting_lock(root / ".create.lock"):
        if any(place.seed == run.seed for place in names.places(root, run.identity)):
            raise MmctlError(f"run {run.label} was made here meanwhile; import again to compare the two")
        os.rename(run.path, target)
        files.fsync_folder(target.parent)
    done.runs.append(run.label)


def _place_sweep(unpacked: Path, target: Path, done: Imported) -> None:
    if target.exists():
        done.notes.append(f"sweep {target.name} is here already and was left as it is")
        return
    if not (unpacked / "manifest.json").is_file():
        raise UsageError(f"sweep {target.name}: no manifest in the archive")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.rename(unpacked, target)
    files.fsync_folder(target.parent)
    done.sweeps.append(target.name)
