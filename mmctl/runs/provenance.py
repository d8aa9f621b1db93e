"""Where a result came from: code, versions, machine and command line. Never the environment, never a password."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import uuid
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LARGEST_DIFF = 100_000
"""Characters of uncommitted changes kept; a longer diff is cut and says so."""
_SECRET = re.compile(r"(?i)((?<![a-z])(?:password|passwd|secret|token|api[_-]?key|credentials?)\s*[=:]\s*)\S+")
PACKAGES = ("mmctl", "torch", "triton", "numpy", "scipy", "omegaconf", "safetensors", "mlflow")


def collect() -> dict[str, Any]:
    """The content of provenance.json, fresh for each run; what does not change within a process is computed once."""
    return {
        "id": uuid.uuid4().hex,  # this folder's own name in the tracking store, wherever it is moved
        "command": [redact(argument) for argument in sys.argv],
        "git": _git(),
        "versions": _versions(),
        "machine": _machine(),
    }


def redact(text: str) -> str:
    """`text` without what looks like a secret: user:password in a URL, and the value of a key such as api-token=...."""
    return _SECRET.sub(r"\1***", redact_urls(text))


def redact_urls(text: str) -> str:
    """`text` without the user:password part of its URLs."""
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1***@", text)


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@lru_cache(maxsize=1)
def _machine() -> dict[str, Any]:
    import psutil

    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@lru_cache(maxsize=1)
def _git() -> dict[str, Any] | None:
    """Commit and uncommitted changes of the code that runs; None if it was installed rather than checked out."""
    package = Path(__file__).parents[1]
    # Tracked by its repository? A copy in the site-packages of somebody else's project is not.
    if _run(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _run(package, "rev-parse", "HEAD")
    top = _run(package, "rev-parse", "--show-toplevel")
    if commit is None or top is None:
        return None
    diff = _run(Path(top), "diff", "HEAD", "--no-color", "--no-ext-diff") or ""
    untracked = (_run(Path(top), "ls-files", "--others", "--exclude-standard") or "").splitlines()
    if len(diff) > LARGEST_DIFF:
        diff = diff[:LARGEST_DIFF] + f"\n... cut, {len(diff)} characters in all\n"
    return {
        "commit": commit,
        "dirty": bool(diff or untracked),
        "diff": redact_urls(diff),
        "untracked": untracked[:200],
    }


def _run(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=10,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None
