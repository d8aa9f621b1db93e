"""Where a result came from: code, versions, machine and command line. Never the environment, never a password."""

from __future__ import annotations

import platform
import subprocess
import sys
import uuid
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mmctl import plugins
from mmctl.runs.redaction import redact, redact_arguments

LARGEST_DIFF = 100_000
"""Characters of uncommitted changes kept; a longer diff is cut and says so."""
PACKAGES = ("mmctl", "torch", "triton", "numpy", "scipy", "omegaconf", "safetensors", "mlflow")


def collect() -> dict[str, Any]:
    """The content of provenance.json, fresh for each run; what does not change within a process is computed once."""
    return {
        "id": uuid.uuid4().hex,  # this folder's own name in the tracking store, wherever it is moved
        "command": redact_arguments(sys.argv),
        "git": _git(),
        "versions": _versions(),
        "machine": _machine(),
        "plugins": plugins.provenance(),
    }


def kernels(model: Any, device: Any, precision: str) -> dict[str, str]:
    """Which implementation each operation of `model` takes on `device`: "triton", or "native" and why; {} for a model
    with none. `precision`: "bf16" or "float32", as the run's configuration has it."""
    import torch

    from mmctl.kernels.dispatch import TRITON_OPERATIONS, path_taken

    used = vars(sys.modules[type(model).__module__])
    width = model.config.width // model.config.heads
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return {name: path_taken(name, device, dtype, width) for name in sorted(TRITON_OPERATIONS) if name in used}


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
        "processor": processor(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def processor() -> str:
    """What the processor calls itself, or its architecture where it does not say."""
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
        "diff": redact(diff, code=True),
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
