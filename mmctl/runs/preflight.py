"""Before step 0: is there room for the checkpoints, and may we write? Learning it at the end costs the run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from mmctl.errors import MmctlError
from mmctl.runs.files import WriteError, temporary_name

BYTES_PER_PARAMETER = 12
"""float32 weights and AdamW's two moments."""
MARGIN = 32 * 2**20
"""Bytes for metrics, evaluations, the log and file system overhead."""


def checkpoint_bytes(parameters: int, bytes_per_parameter: int = BYTES_PER_PARAMETER) -> int:
    """Size of one checkpoint (generator states and names included)."""
    return parameters * bytes_per_parameter + 2**16


def check(folder: Path, *, parameters: int, keep: int, best: bool = False) -> None:
    """MmctlError in one line if `folder` is not writable or its disk is short of the checkpoints to come."""
    probe = temporary_name(folder / "write-test")
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, b"x" * 4096)
        finally:
            os.close(descriptor)
            probe.unlink(missing_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise WriteError(f"cannot write in {folder}: {error.strerror or error}") from error
    one = checkpoint_bytes(parameters)
    count = keep + bool(best) + 1  # the new one is written before the oldest is deleted
    need = one * count - used(folder / "checkpoints") + MARGIN
    if free < need:
        raise MmctlError(
            f"disk: {folder} needs {size(need)} more for {count} checkpoints of {size(one)} "
            f"({keep} kept{' and the best' if best else ''}, one being written), {size(free)} are free"
        )


def used(folder: Path) -> int:
    """Bytes of the files under `folder`."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:  # another process deleted it
                continue
    return total


def size(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def memory() -> int | None:
    """Bytes of memory this machine has; None where it cannot be asked."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
