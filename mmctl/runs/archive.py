"""Finished runs as one file, to be merged into the runs of another machine (importing.py does that).

A .tar.gz whose first member says what follows, so that a reader can refuse before it writes anything:

manifest.json                        format, mmctl version, and for every run and sweep its files with size and SHA-256
runs/<name>-<identity>/seed<k>/...   a finished run, without lock, tracking-store place, temporaries; of its checkpoints
                                     the last and the best one, or none
sweeps/<name>/...                    a sweep's manifest, results, report and figures
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError, UsageError, nearest
from mmctl.runs import checkpoints, files, names
from mmctl.runs.folder import RunFolder

FORMAT = 1
SUFFIXES = (".tar.gz", ".tgz")
BLOCK = 1 << 20
NOT_EXPORTED = ("lock", "mlflow.json", "killed")
OF_A_SWEEP = re.compile(r"manifest\.json|results\.json|numbers\.csv|report\.(md|html)|figures/[^/]+")
PART = re.compile(r"[A-Za-z0-9_+=,@-][A-Za-z0-9_.+=,@-]*")
"""One part of a path in an archive: nothing hidden, no `..`, no separator of any system."""


@dataclass
class Exported:
    """What went into the archive, and the runs that did not with the reason."""

    path: Path
    runs: list[str] = field(default_factory=list)
    sweeps: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    bytes: int = 0


def safe_path(text: str) -> bool:
    """Whether a path of an archive stays inside it: relative, of plain names, at most 300 characters and 8 parts."""
    parts = text.split("/")
    return len(text) <= 300 and len(parts) <= 8 and all(PART.fullmatch(part) for part in parts)


def chosen(root: Path, words: Sequence[str]) -> tuple[list[RunFolder], list[Path]]:
    """Runs and sweeps that are named: a sweep (its name or folder) means all its runs. UsageError in one line."""
    sweeps = {path.parent.name: path.parent for path in (root / "sweeps").glob("*/manifest.json")}
    runs: dict[Path, RunFolder] = {}
    folders: list[Path] = []
    for word in words:
        folder = sweeps.get(word.rstrip("/")) or (Path(word) if (Path(word) / "manifest.json").is_file() else None)
        if folder is not None:
            folders.append(folder)
            for place in _of_sweep(root, folder):
                runs.setdefault(place.path, RunFolder(place))
            continue
        try:
            places = names.find_all(root, word)
        except UsageError as error:
            hint = nearest(word, sweeps)
            raise UsageError(
                f"{error}{hint.replace('?', ', a sweep?')}" if "did you mean" in hint else str(error)
            ) from None
        for place in places:
            runs.setdefault(place.path, RunFolder(place))
    return list(runs.values()), folders


def _of_sweep(root: Path, folder: Path) -> Iterator[names.Place]:
    manifest = files.read_object(folder / "manifest.json")
    try:
        wanted = {(str(cell["identity"]), int(seed)) for cell in manifest["cells"] for seed in cell["seeds"]}
    except (KeyError, TypeError, ValueError):
        raise MmctlError(f"{folder / 'manifest.json'}: not the manifest of a sweep") from None
    found = names.index(root)
    for key in sorted(wanted):
        yield from found.get(key, [])[:1]


def export(
    target: Path, runs: Iterable[RunFolder], sweeps: Iterable[Path] = (), *, with_checkpoints: bool = True
) -> Exported:
    """Write finished runs and sweeps to `target`, whole at once or not at all.

    UsageError if `target` has another ending than .tar.gz or exists; MmctlError if no run is finished or the disk
    refuses.
    """
    if not target.name.endswith(SUFFIXES):
        raise UsageError(f"{target}: expected a name ending in {' or '.join(SUFFIXES)}")
    if target.exists():
        raise UsageError(f"{target}: exists already; nothing is overwritten")
    done = Exported(target)
    members: list[tuple[str, Path]] = []
    manifest: dict[str, Any] = {
        "format": FORMAT, "mmctl": _version(), "created": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "checkpoints": with_checkpoints, "runs": {}, "sweeps": {},
    }  # fmt: skip
    for run in runs:
        if not run.finished:
            done.left_out[run.label] = f"is {run.state()}"
            continue
        manifest["runs"][run.label] = _described(f"runs/{run.label}", run.path, _files(run, with_checkpoints), members)
        done.runs.append(run.label)
    if not done.runs:
        raise MmctlError("none of these runs is finished: there is nothing to export")
    for folder in sweeps:
        inside = [p for p in _walk(folder) if OF_A_SWEEP.fullmatch(p)]
        manifest["sweeps"][folder.name] = _described(f"sweeps/{folder.name}", folder, inside, members)
        done.sweeps.append(folder.name)
    _write(target, manifest, members)
    done.bytes = target.stat().st_size
    return done


def _version() -> str:
    from mmctl import __version__

    return __version__


def _walk(folder: Path) -> Iterator[str]:
    """Regular files under `folder`, relative, in order. MmctlError for a link or a name that no archive carries."""
    for place, inner, found in os.walk(folder):
        inner.sort()
        for name in sorted(found):
            path = Path(place, name)
            relative = path.relative_to(folder).as_posix()
            if name.startswith(".") or any(part.endswith((".tmp", ".old")) for part in relative.split("/")):
                continue
            if path.is_symlink() or not path.is_file():
                raise MmctlError(f"{path}: a link or a special file, which no archive carries")
            if not safe_path(relative):
                raise MmctlError(f"{path}: its name cannot be carried by an archive")
            yield relative


def _files(run: RunFolder, with_checkpoints: bool) -> Iterator[str]:
    kept = set(checkpoints.steps(run.checkpoints)[-1:]) | {checkpoints.best_step(run.checkpoints)}
    if isinstance(last := run.result().get("steps"), int):
        kept.add(last)
    for relative in _walk(run.path):
        parts = relative.split("/")
        if relative in NOT_EXPORTED or (parts[0] == "checkpoints" and not with_checkpoints):
            continue
        if parts[0] == "checkpoints" and len(parts) > 2 and parts[1] not in {f"step_{step}" for step in kept}:
            continue
        yield relative


def _described(
    prefix: str, folder: Path, inside: Iterable[str], members: list[tuple[str, Path]]
) -> dict[str, dict[str, Any]]:
    entries = {}
    for relative in inside:
        path = folder / relative
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        entries[relative] = {"bytes": path.stat().st_size, "sha256": digest}
        members.append((f"{prefix}/{relative}", path))
    return entries


def _write(target: Path, manifest: dict[str, Any], members: Sequence[tuple[str, Path]]) -> None:
    temporary = files.temporary_name(target)
    try:
        with open(temporary, "xb") as raw:
            # Level 1: weights hardly compress, and what does (metrics, scores) does at any level.
            with tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1, format=tarfile.GNU_FORMAT) as tar:
                text = json.dumps(manifest, indent=1).encode()
                entry = tarfile.TarInfo("manifest.json")
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text))
                for name, path in members:
                    with open(path, "rb") as file:
                        entry = tarfile.TarInfo(name)  # no owner, no permissions of this machine
                        status = os.fstat(file.fileno())
                        entry.size, entry.mtime = status.st_size, int(status.st_mtime)
                        tar.addfile(entry, file)
            raw.flush()
            os.fsync(raw.fileno())
        os.link(temporary, target)  # refused if somebody has made it meanwhile
        files.fsync_folder(target.parent)
    except OSError as error:
        raise files.WriteError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
