"""Who a process is: enough to tell a living owner from a dead one whose pid was given to somebody else."""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any


def start_ticks(pid: int) -> float | None:
    """Start time of a living process in a unit that does not move with the wall clock; None if it is gone.

    Linux gives clock ticks since boot. (psutil's create_time adds the boot time, which jumps when the clock is set.)
    A zombie is gone: it will never write again.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()  # the command name may hold spaces and brackets
        return None if fields[0] in (b"Z", b"X") else float(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        if os.path.exists("/proc/self/stat"):
            return None
    except (OSError, IndexError, ValueError):
        pass
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def alive(pid: int) -> bool:
    return start_ticks(pid) is not None


def end_with_parent() -> None:
    """Ask the kernel for SIGTERM when this process's parent dies (Linux), so that nothing is left running."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)


@lru_cache(maxsize=1)
def host() -> str:
    return socket.gethostname()


@lru_cache(maxsize=1)
def boot() -> str:
    """Identifies this boot and this pid namespace, so that two containers of one name are not one host; "" unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()[:8]}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


@dataclass(frozen=True)
class Owner:
    """A process on some machine."""

    host: str
    pid: int
    start: float
    boot: str = ""

    @classmethod
    def me(cls) -> Owner:
        return cls(host(), os.getpid(), start_ticks(os.getpid()) or 0.0, boot())

    @classmethod
    def of(cls, record: Any) -> Owner | None:
        """From a JSON object; None if it does not describe a process."""
        try:
            return cls(str(record["host"]), int(record["pid"]), float(record["start"]), str(record.get("boot", "")))
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def here(self) -> bool:
        """Whether its pid means something on this machine."""
        return self.host == host() and self.boot == boot()

    def gone(self) -> bool | None:
        """True or False if this machine can know, None for a process of another machine."""
        if self.here():
            return start_ticks(self.pid) != self.start
        if self.host == host() and self.boot.partition("-")[0] != boot().partition("-")[0]:
            return True  # this machine has been booted since
        return None

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"
