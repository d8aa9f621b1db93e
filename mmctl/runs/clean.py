"""What can be deleted without losing a result: found first, deleted only when told to.

- checkpoints of finished runs, except the last one and the best one; of runs that will resume, all but the two newest;
- half-written files and folders (`.tmp`) whose process is gone;
- the content of lock files whose owner is dead (the file stays: deleting it would let two owners hold two locks).

Never a result, an evaluation, metrics or a log, and nothing at all of a run that somebody is writing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mmctl.errors import MmctlError
from mmctl.runs import checkpoints, process
from mmctl.runs.folder import RunFolder
from mmctl.runs.lock import SILENT_AFTER, Lock, Locked
from mmctl.runs.preflight import used

RESUMABLE = 2
"""Checkpoints left to a run that is not finished: one may turn out damaged."""
_TEMPORARY = re.compile(r"\..*\.(\d+)-[0-9a-f]+\.tmp")
_HALF = re.compile(r"step_\d+\.tmp")


@dataclass(frozen=True)
class Item:
    """Something that can go: `kind` is checkpoint, temporary or lock, `bytes` what it frees, `run` its run's label."""

    kind: str
    path: Path
    bytes: int
    why: str
    run: str | None = None
    step: int | None = None


@dataclass
class Cleaned:
    """What was deleted, and what was not with the reason."""

    done: list[Item]
    left: list[tuple[Item, str]]


def find(root: Path, runs: Iterable[RunFolder]) -> Iterator[Item]:
    """What can go of these runs, and the temporaries beside them in `root`. Reads only."""
    seen: set[Path] = set()
    for run in runs:
        if (folder := run.path.parent) not in seen:
            seen.add(folder)
            yield from _temporaries(folder)
        if run.state() == "running":
            continue
        lock = Lock(run.path / "lock", run.label)
        owner = lock.owner()
        if owner is not None:
            if lock.alive():
                continue
            yield Item("lock", lock.path, 0, f"held by {owner}, which is gone", run.label)
        yield from _checkpoints(run)
        for inside in (run.path, run.path / "eval"):
            yield from _temporaries(inside, run.label)
    yield from _temporaries(root)


def delete(items: Iterable[Item], root: Path) -> Cleaned:
    """Delete them, each run's under its lock; what has changed since it was found, or is in use by now, stays."""
    cleaned = Cleaned([], [])
    by_run: dict[str | None, list[Item]] = {}
    for item in items:
        by_run.setdefault(item.run, []).append(item)
    for label, mine in by_run.items():
        try:
            with _held(root, label):
                for item in mine:
                    try:
                        _delete(item)
                        cleaned.done.append(item)
                    except (OSError, MmctlError) as error:
                        cleaned.left.append((item, getattr(error, "strerror", None) or str(error)))
        except Locked as error:
            cleaned.left += [(item, str(error)) for item in mine]
    return cleaned


@contextlib.contextmanager
def _held(root: Path, label: str | None) -> Iterator[None]:
    if label is None:
        yield
        return
    lock = Lock(root / label / "lock", label)
    lock.acquire(notify=lambda message: None)  # a dead owner's lock was said already: it is one of the items
    try:
        yield
    finally:
        lock.release()


def _delete(item: Item) -> None:
    if item.kind == "lock":
        return  # taking it over and releasing it has emptied it
    if item.kind == "checkpoint":
        kept = _kept(item.path.parent, finished=item.why == FINISHED)
        if item.step in kept:
            raise MmctlError("it is the last or the best one by now")
        half = item.path.with_name(f"step_{item.step}.tmp")
        shutil.rmtree(half, ignore_errors=True)
        os.rename(item.path, half)  # a kill in the middle leaves rubbish, not half a checkpoint
        shutil.rmtree(half)
    elif item.path.is_dir() and not item.path.is_symlink():
        shutil.rmtree(item.path)
    else:
        item.path.unlink(missing_ok=True)


FINISHED = "neither the last nor the best of a finished run"
WAITING = f"older than the {RESUMABLE} newest of a run that is not finished"


def _kept(folder: Path, finished: bool) -> set[int]:
    """Steps that stay: the best, and the last whole one (the newest ones of a run that will resume)."""
    steps = checkpoints.steps(folder)
    whole = [step for step in steps if checkpoints.looks_whole(folder, step)]
    kept = set((whole or steps)[-(1 if finished else RESUMABLE) :])
    best = checkpoints.best_step(folder)
    return kept | ({best} if best is not None else set()) | set(steps[-1:])


def _checkpoints(run: RunFolder) -> Iterator[Item]:
    folder = run.checkpoints
    if not folder.is_dir():
        return
    finished = run.finished
    kept = _kept(folder, finished)
    for step in checkpoints.steps(folder):
        if step not in kept:
            path = checkpoints.place_of(folder, step)
            yield Item("checkpoint", path, used(path), FINISHED if finished else WAITING, run.label, step)
    for path in sorted(folder.iterdir()):
        if _HALF.fullmatch(path.name):
            yield Item("temporary", path, used(path), "a checkpoint that was never completed", run.label)


def _temporaries(folder: Path, label: str | None = None) -> Iterator[Item]:
    """Files and folders that `files.temporary_name` named for a process that is gone; young ones stay: the process may
    be another machine's."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for path in entries:
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or process.alive(int(match[1])):
            continue
        try:
            found = path.lstat()
        except OSError:
            continue
        if time.time() - found.st_mtime >= SILENT_AFTER:
            size = used(path) if path.is_dir() and not path.is_symlink() else found.st_size
            yield Item("temporary", path, size, f"left by process {match[1]}, which is gone", label)
