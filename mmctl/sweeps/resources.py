"""What a sweep may use of this machine: cores, CUDA devices, compile caches; and how many jobs they carry."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmctl.errors import UsageError

if TYPE_CHECKING:
    from mmctl.runs.lock import Lock


def cores() -> int:
    """CPU cores this process may use: its affinity, and the cgroup's quota where one is set."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            available = min(available, max(1, round(int(quota) / int(period))))
    return max(1, available)


def visible_devices() -> list[str]:
    """CUDA devices this process may use, as CUDA_VISIBLE_DEVICES names them: that variable, else what the driver lists.

    Asked of the driver's own tool, not of torch: the parent of a sweep must not hold a context on a device.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        # As CUDA reads it: the list ends at the first entry that names no device.
        found: list[str] = []
        for word in given.split(","):
            if not word.strip() or word.strip() == "-1" or word.strip().lower() in ("none", "nodevfiles"):
                break
            found.append(word.strip())
        return found
    return [index for index in (line.strip() for line in _driver("index")) if index.isdigit()]


def device_memory(device: str) -> tuple[int, int] | None:
    """(bytes in all, bytes free) of the device that CUDA_VISIBLE_DEVICES calls `device`; None where the driver does not
    say."""
    for line in _driver("index,uuid,memory.total,memory.free"):
        words = [word.strip() for word in line.split(",")]
        if len(words) == 4 and (device == words[0] or words[1].startswith(device)):
            try:
                return int(words[2]) * 2**20, int(words[3]) * 2**20
            except ValueError:
                return None
    return None


def _driver(fields: str) -> list[str]:
    """Lines of the driver's own tool; [] where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        done = subprocess.run(
            [tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def assign(devices: Sequence[str], gpus: float, jobs: int) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each of `jobs` places: `gpus` whole devices each, or one shared by 1/gpus places.

    UsageError when there are too few.
    """
    if jobs > places_on(devices, gpus):
        have = f"{len(devices)} CUDA device{'s' * (len(devices) != 1)}"
        raise UsageError(f"--jobs {jobs} with --gpus-per-run {gpus:g}: {have} carry {places_on(devices, gpus)}")
    if gpus < 1:
        each = round(1 / gpus)
        return [devices[place // each] for place in range(jobs)]
    count = round(gpus)
    return [",".join(devices[place * count : (place + 1) * count]) for place in range(jobs)]


def places_on(devices: Sequence[str], gpus: float) -> int:
    """Jobs that can be on `devices` at once. UsageError for a `gpus` that is neither whole nor 1/n."""
    if (
        not 0 < gpus <= 1024
        or (gpus >= 1 and gpus != round(gpus))
        or (gpus < 1 and abs(1 / gpus - round(1 / gpus)) > 0.02)
    ):
        raise UsageError(f"--gpus-per-run {gpus:g}: expected 0, a whole number, or one part of a device (0.5, 0.25)")
    return len(devices) * round(1 / gpus) if gpus < 1 else len(devices) // round(gpus)


CACHES = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
"""Environment variable -> folder, of what is compiled while a run goes."""


class CacheSlots:
    """Folders for compiled kernels, one a worker, so that no two write one file at once (triton#11512).

    On local disk: a file system shared by machines loses the renames that such caches rely on. A slot belongs to one
    process at a time, through a lock, and is kept when it goes: the next sweep finds there what has been compiled.
    """

    def __init__(self) -> None:
        self.held: list[Lock] = []

    def take(self) -> dict[str, str]:
        """Environment variables of a worker that has a slot of its own now. Below what the user has set, if he has."""
        from mmctl.runs.lock import Lock, Locked

        base = _private(Path(tempfile.gettempdir()) / f"mmctl-{os.getuid()}")
        number = 0
        while True:
            lock = Lock(base / f"slot-{number}.lock")
            try:
                self.held.append(lock.acquire(notify=lambda text: None))
                break
            except Locked:
                number += 1
        return {
            variable: str(Path(os.environ.get(variable) or base, f"slot-{number}", name))
            for variable, name in CACHES.items()
        }

    def close(self) -> None:
        while self.held:
            self.held.pop().release()


def _private(folder: Path) -> Path:
    """`folder`, made for this user alone. What is compiled there is loaded as code: another's folder is not used."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return folder
    return Path(tempfile.mkdtemp(prefix="mmctl-"))
