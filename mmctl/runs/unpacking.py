"""Reading an archive that anybody may have made: what it declares is checked before, and what it holds while, it is
written to a folder of its own. Nothing outside that folder is touched."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError
from mmctl.runs import files, names
from mmctl.runs.archive import BLOCK, FORMAT, safe_path

LARGEST_MANIFEST = 64 * 2**20
MOST_FILES = 500_000
LARGEST_RATIO = 200
"""Times an archive may expand, once beyond LARGEST_SUSPECT bytes: metrics and scores give 10, weights 1.1."""
LARGEST_SUSPECT = 256 * 2**20
HEADERS = 4096
"""Bytes of headers and padding a member may take."""


class Refused(MmctlError):
    """An archive that is damaged, or that no export of ours would write."""


class _Bounded:
    """A stream that refuses to give more than `limit` bytes, so that nothing expands beyond what was declared."""

    def __init__(self, stream: Any, limit: int, path: Path) -> None:
        self.stream, self.limit, self.path = stream, limit, path

    def read(self, size: int = -1) -> bytes:
        data: bytes = self.stream.read(min(size, BLOCK) if size >= 0 else BLOCK)
        self.limit -= len(data)
        if self.limit < 0:
            raise Refused(f"{self.path}: holds more than it declares")
        return data


def unpack(path: Path, staging: Path, *, with_checkpoints: bool = True) -> dict[str, Any]:
    """Write the archive's runs to staging/runs and its sweeps to staging/sweeps, and return its manifest.

    Refused, in one line, if it is truncated, damaged, holds anything but the plain files it declares (a link, a device,
    a path that leads out), or would expand beyond reason or this disk.
    """
    try:
        size = path.stat().st_size
        with gzip.open(path, "rb") as unzipped:
            bounded = _Bounded(unzipped, LARGEST_MANIFEST + 10 * HEADERS, path)
            with tarfile.open(fileobj=bounded, mode="r|", errorlevel=2) as tar:  # type: ignore[call-overload]
                manifest, expected = _manifest(tar, path)
                total = sum(entry["bytes"] for entry in expected.values())
                if total > LARGEST_SUSPECT and total > LARGEST_RATIO * size:
                    raise Refused(f"{path}: {size} bytes that would expand to {total}, which no export of runs does")
                free = shutil.disk_usage(staging.parent).free
                if total > free:
                    raise MmctlError(f"{path}: its files take {total} bytes, {free} are free in {staging.parent}")
                bounded.limit = total + HEADERS * (len(expected) + 10)
                _members(tar, path, staging, dict(expected), with_checkpoints)
    except FileNotFoundError:
        raise MmctlError(f"{path}: no such file") from None
    except (EOFError, tarfile.TarError, zlib.error, gzip.BadGzipFile) as error:
        what = str(error) or type(error).__name__
        raise Refused(f"{path}: truncated or damaged, or no archive of runs ({what.splitlines()[0]})") from None
    except OSError as error:
        raise MmctlError(f"cannot unpack {path}: {error.strerror or error}") from error
    return manifest


def _manifest(tar: tarfile.TarFile, path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The manifest and its files by member name."""
    first = tar.next()
    if first is None or first.name != "manifest.json" or not _plain(first) or first.size > LARGEST_MANIFEST:
        raise Refused(f"{path}: no archive of runs (it does not begin with a manifest)")
    stream = tar.extractfile(first)
    assert stream is not None
    try:
        manifest = json.loads(stream.read())
    except (ValueError, RecursionError):
        raise Refused(f"{path}: its manifest is damaged") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        version = manifest.get("format") if isinstance(manifest, dict) else None
        raise Refused(f"{path}: an archive of format {version!r}, this mmctl reads {FORMAT}")
    expected: dict[str, dict[str, Any]] = {}
    for kind in ("runs", "sweeps"):
        group = manifest.get(kind)
        if not isinstance(group, dict):
            raise Refused(f"{path}: its manifest names no {kind}")
        for label, entries in group.items():
            _check_label(path, kind, label)
            if not isinstance(entries, dict):
                raise Refused(f"{path}: its manifest is damaged at {label}")
            for relative, entry in entries.items():
                expected[f"{kind}/{label}/{relative}"] = _entry(path, label, relative, entry)
    if len(expected) > MOST_FILES:
        raise Refused(f"{path}: declares {len(expected)} files, at most {MOST_FILES} are read")
    return manifest, expected


def _check_label(path: Path, kind: str, label: str) -> None:
    parts = label.split("/")
    if kind == "sweeps":
        good = len(parts) == 1 and safe_path(label)
    else:
        good = len(parts) == 2 and safe_path(label) and names.Place.of(Path("/", *parts)) is not None
    if not good:
        raise Refused(f"{path}: {label!r} is no name of a {'run' if kind == 'runs' else 'sweep'}")


def _entry(path: Path, label: str, relative: str, entry: Any) -> dict[str, Any]:
    if not safe_path(relative):
        raise Refused(f"{path}: {relative!r} of {label} is no path inside it")
    size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if type(size) is not int or size < 0 or not re.fullmatch(r"[0-9a-f]{64}", str(digest)):
        raise Refused(f"{path}: its manifest is damaged at {label}/{relative}")
    return {"bytes": size, "sha256": digest}


def _plain(member: tarfile.TarInfo) -> bool:
    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)


def _members(
    tar: tarfile.TarFile, path: Path, staging: Path, expected: dict[str, dict[str, Any]], with_checkpoints: bool
) -> None:
    while (member := tar.next()) is not None:
        if not _plain(member):
            raise Refused(f"{path}: {member.name!r} is a link or a special file")
        entry = expected.pop(member.name, None)  # also refuses what comes twice
        if entry is None:
            raise Refused(f"{path}: {member.name!r} is not among the files it declares")
        if member.size != entry["bytes"]:
            raise Refused(f"{path}: {member.name} has {member.size} bytes instead of {entry['bytes']}")
        stream = tar.extractfile(member)
        assert stream is not None
        parts = member.name.split("/")
        skipped = not with_checkpoints and len(parts) > 3 and parts[0] == "runs" and parts[3] == "checkpoints"
        digest = _copy(stream, None if skipped else staging / member.name, member.mtime)
        if digest != entry["sha256"]:
            raise Refused(f"{path}: {member.name} is damaged (its SHA-256 is not the declared one)")
    if expected:
        raise Refused(f"{path}: truncated: {len(expected)} declared files are missing, such as {next(iter(expected))}")


def _copy(stream: Any, target: Path | None, modified: float) -> str:
    """SHA-256 of the stream, written to `target` and brought to the disk."""
    digest = hashlib.sha256()
    if target is None:
        while block := stream.read(BLOCK):
            digest.update(block)
        return digest.hexdigest()
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as file:
        while block := stream.read(BLOCK):
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    if 0 <= modified < 2**33:  # a tracking store shows when a score was made
        os.utime(target, (modified, modified))
    files.fsync_folder(target.parent)
    return digest.hexdigest()
