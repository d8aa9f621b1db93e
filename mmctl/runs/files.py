"""Writing files so that a kill, a full disk or a power cut leaves the old content or the new one, never half of it."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError

LARGEST_JSON = 1 << 28
"""Bytes of a JSON file beyond which it is not read: all of ours are far below."""
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class WriteError(MmctlError):
    """The disk refused: full, read-only, gone. The previous content is untouched."""


@contextmanager
def _explained(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot {verb} {path}: {error.strerror or error}") from error


def fsync_folder(folder: Path) -> None:
    """Make a rename or a new name in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def temporary_name(path: Path) -> Path:
    """A name beside `path` that no other writer uses; it carries the pid so that leftovers can be told from work."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def write_bytes(path: Path | str, data: bytes, *, durable: bool = True) -> Path:
    """Replace `path` by `data` in one step.

    `durable=False` skips the two fsyncs: still atomic for every reader and any kill, but a power cut may bring the
    old content back. For a heartbeat, not for a result.
    """
    path = Path(path)
    temporary = temporary_name(path)
    with _explained("write", path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            fsync_folder(path.parent)
    return path


def check_writable(path: Path) -> None:
    """WriteError in one line where no file could be written at `path`, which may be in folders still to be made. Leaves
    nothing behind: it is asked before work whose result would be lost."""
    folder = existing(path.parent)
    probe = temporary_name(folder / path.name)
    with _explained("write", path):
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{folder} is no folder")
        try:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        finally:
            probe.unlink(missing_ok=True)


def write_text(path: Path | str, text: str, *, durable: bool = True) -> Path:
    # surrogateescape: a file name or an argument that is not UTF-8 must not stop a run.
    return write_bytes(path, text.encode("utf-8", "surrogateescape"), durable=durable)


def write_json(path: Path | str, value: Any, *, durable: bool = True) -> Path:
    """`value` as indented JSON; NaN and infinities become the strings "nan", "inf", "-inf"."""
    text = json.dumps(json_ready(value), indent=1, ensure_ascii=True, allow_nan=False)
    return write_bytes(path, text.encode() + b"\n", durable=durable)


def read_json(path: Path | str) -> Any:
    """Parsed content. MmctlError in one line, naming the file, if it is missing, unreadable or damaged."""
    try:
        if (count := os.stat(path).st_size) > LARGEST_JSON:
            raise MmctlError(f"{path}: damaged, {count:,} bytes are more than any file of its kind has")
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise MmctlError(f"{path}: no such file") from None
    except OSError as error:
        raise MmctlError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are both ValueError
        raise MmctlError(f"{path}: damaged, not valid JSON") from None


def read_object(path: Path | str) -> dict[str, Any]:
    """`read_json` for a file that must hold an object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise MmctlError(f"{path}: damaged, not a JSON object")
    return value


def json_ready(value: Any) -> Any:
    """Plain JSON types: non-finite floats as strings, numpy and torch scalars as numbers, paths as strings."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else ("nan" if math.isnan(value) else str(float(value)))
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy arrays and scalars, torch tensors
        return json_ready(value.tolist())
    raise TypeError(f"not writable as JSON: {type(value).__name__}")


def number(value: Any) -> Any:
    """The inverse of `json_ready` for one metric: "nan", "inf", "-inf" become floats again."""
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def append_line(path: Path | str, value: dict[str, Any]) -> None:
    """Append one object as one line in one write; a torn line left by a crash is cut off first.

    A write cut short (disk full) is undone before WriteError is raised. One writer at a time (the run's lock).
    """
    path = Path(path)
    line = json.dumps(json_ready(value), ensure_ascii=True, allow_nan=False).encode() + b"\n"
    with _explained("append to", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                size = _cut_torn_line(descriptor, size)
            written = 0
            try:
                while written < len(line):
                    written += os.pwrite(descriptor, line[written:], size + written)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def _cut_torn_line(descriptor: int, size: int) -> int:
    """Truncate after the last newline and return the new size."""
    end = size
    while end > 0:
        start = max(0, end - 65536)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    os.ftruncate(descriptor, end)
    return end


def read_lines(path: Path | str, *, skip_damaged: bool = False) -> list[dict[str, Any]]:
    """Objects of a JSONL file; [] if it does not exist.

    A last line without its newline is torn and left out. Damage before that raises MmctlError with the line's number,
    or with `skip_damaged` leaves those lines out.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MmctlError(f"cannot read {path}: {error.strerror or error}") from error
    lines = content.split(b"\n")[:-1]  # what follows the last newline is either nothing or torn
    objects = []
    for index, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            objects.append(value)
        elif not skip_damaged:
            raise MmctlError(f"{path}: line {index} is damaged, not a JSON object")
    return objects


def remove_leftovers(folder: Path) -> list[Path]:
    """Delete temporary files and folders named by `temporary_name` whose process is gone; return what was deleted."""
    from mmctl.runs.process import alive

    removed = []
    for path in folder.glob(".*.tmp"):
        owner = path.name.rsplit(".", 2)[1].split("-")[0]
        if owner.isdigit() and int(owner) != os.getpid() and not alive(int(owner)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def stamp(path: Path) -> list[int] | None:
    """[size, modification time in ns], which changes when the file does; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]
