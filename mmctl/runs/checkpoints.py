"""The folder of a run's checkpoints: which are there, whether they are whole, which are kept.

A checkpoint is there under one name, `step_N`, except for a moment while it is replaced (`step_N.old`). Whatever ends
in `.tmp` is half a checkpoint: being written, or being deleted.
"""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path

from mmctl.errors import MmctlError
from mmctl.runs.files import fsync_file, fsync_folder, read_json, write_json

FORMAT = 1
_STEP = re.compile(r"step_(\d+)(\.old)?")


class Damaged(MmctlError):
    """A checkpoint that is not what was written."""


def steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint, ascending, whole or damaged."""
    if not folder.is_dir():
        return []
    return sorted({int(m[1]) for entry in os.scandir(folder) if (m := _STEP.fullmatch(entry.name)) and entry.is_dir()})


def best_step(folder: Path) -> int | None:
    """The step marked best, if its checkpoint is still there."""
    try:
        step = read_json(folder / "best.json")["step"]
    except (MmctlError, KeyError, TypeError):
        return None
    return step if step in steps(folder) else None


def looks_whole(folder: Path, step: int) -> bool:
    """Whether all files are there with the right sizes. Costs a few stats; reads no tensor."""
    try:
        verify(place_of(folder, step), checksums=False)
    except Damaged:
        return False
    return True


def place_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` is."""
    current, old = folder / f"step_{step}", folder / f"step_{step}.old"
    return old if old.is_dir() and not current.is_dir() else current


def settle(path: Path, mode: int | None = None) -> dict[str, int]:
    """Bring one file of a checkpoint to the disk; what the manifest says about it."""
    if mode is not None:
        os.chmod(path, mode)
    entry = {"bytes": path.stat().st_size, "crc32": checksum(path)}
    fsync_file(path)
    return entry


def seal(folder: Path, step: int, files: Mapping[str, Mapping[str, int]]) -> None:
    """Write the manifest of a checkpoint's files, each settled, and bring the folder to the disk."""
    write_json(folder / "manifest.json", {"format": FORMAT, "step": step, "files": files})
    fsync_folder(folder)


def publish(temporary: Path, target: Path) -> None:
    """Give a finished checkpoint its name, in one rename."""
    old = target.with_name(target.name + ".old")
    if target.exists():  # the same step again; at every moment one of the two can be found by `steps`
        os.rename(target, old)
    os.rename(temporary, target)
    fsync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def verify(place: Path, *, checksums: bool) -> None:
    """Damaged, in one line, unless the manifest's files are there with their sizes and, if asked, their checksums."""
    try:
        manifest = read_json(place / "manifest.json")
        files = {str(name): (int(entry["bytes"]), int(entry["crc32"])) for name, entry in manifest["files"].items()}
        version = manifest["format"]
    except (MmctlError, KeyError, TypeError, AttributeError, ValueError):
        raise Damaged(f"checkpoint {place} is damaged: manifest.json is missing or unreadable") from None
    if version != FORMAT:
        raise Damaged(f"checkpoint {place} has format {version}, this version reads {FORMAT}")
    for name, (size, crc) in files.items():
        path = place / Path(name).name
        try:
            actual = path.stat().st_size
            if actual != size:
                raise Damaged(f"checkpoint {place} is damaged: {name} has {actual} bytes instead of {size}")
            if checksums and checksum(path) != crc:
                raise Damaged(f"checkpoint {place} is damaged: the checksum of {name} does not match")
        except OSError as error:
            raise Damaged(f"checkpoint {place} is damaged: {name}: {error.strerror or error}") from None


def checksum(path: Path) -> int:
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return value


def tidy(folder: Path) -> list[str]:
    """Finish what a killed writer left: half-written `.tmp` folders go, a replaced `.old` goes or comes back."""
    removed = []
    for entry in folder.iterdir():
        if entry.name.endswith(".old") and _STEP.fullmatch(entry.name):
            current = entry.with_suffix("")
            if not current.exists():
                os.rename(entry, current)
                continue
        elif not re.fullmatch(r"step_\d+\.tmp", entry.name):
            continue
        shutil.rmtree(entry, ignore_errors=True)
        removed.append(entry.name)
    return removed


def cut(folder: Path, step: int) -> list[int]:
    """Delete the checkpoints beyond `step`, from which a run goes on because they are damaged; return their steps.

    They would count as the newest, and what is saved now would be pruned in their favour.
    """
    removed = [s for s in steps(folder) if s > step]
    for damaged in removed:
        _delete(folder, damaged)
    return removed


def prune(folder: Path, keep: int) -> list[int]:
    """Delete all but the newest `keep` checkpoints and the best one; return the steps deleted.

    A deletion is a rename to `.tmp` first, so that a kill in the middle leaves rubbish, not half a checkpoint.
    """
    have = steps(folder)
    removed = [step for step in have[:-keep] if step != best_step(folder)]
    for step in removed:
        _delete(folder, step)
    return removed


def _delete(folder: Path, step: int) -> None:
    temporary = folder / f"step_{step}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    os.rename(place_of(folder, step), temporary)
    shutil.rmtree(temporary, ignore_errors=True)
