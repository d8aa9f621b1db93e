"""Is this machine ready: what runs depend on, each looked at for itself, with what to do about it.

Every check returns a `Line`; what it looks at failing is its result, never an exception. Nothing is changed: what a
check writes it takes away again.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError
from mmctl.runs import files
from mmctl.runs.preflight import size

PACKAGES = ("torch", "triton", "numpy", "scipy", "omegaconf", "typer", "safetensors", "mlflow", "matplotlib", "pandas")
LITTLE = 2 * 2**30
"""Bytes of free disk below which a sweep soon ends."""
COMPILE_TIMEOUT = 120.0
CLOCK_APART = 2.0
"""Seconds by which the clock and the file system's may differ."""


@dataclass(frozen=True)
class Line:
    """One finding. `state` is ok, warn (works, but) or fail; `todo` what to do about it; `values` for a program."""

    check: str
    state: str
    found: str
    todo: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def examine(root: Path) -> Iterator[Line]:
    """Every check, for runs that land in `root`."""
    checks: list[tuple[str, Callable[[Path], Line]]] = [
        ("versions", _versions),
        ("device", _device),
        ("triton", _triton),
        ("kernels", _kernels),
        ("threads", _threads),
        ("memory", _memory),
        ("runs folder", _folder),
        ("disk", _disk),
        ("clock", _clock),
        ("tracking store", _store),
        ("signals", _signals),
        ("plugins", _plugins),
    ]
    for name, check in checks:
        try:
            yield check(root)
        except MmctlError as error:
            yield Line(name, "fail", str(error))
        except Exception as error:  # a broken installation breaks anywhere
            first = (str(error).splitlines() or [""])[0]
            yield Line(name, "fail", f"{type(error).__name__}: {first}", "reinstall mmctl in a fresh environment")


def _versions(root: Path) -> Line:
    from mmctl import __version__

    found: dict[str, Any] = {"mmctl": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    text = ", ".join(f"{k} {v}" for k, v in found.items() if v)
    missing = [name for name in PACKAGES if found[name] is None and name != "triton"]
    if missing:
        return Line("versions", "fail", f"{text}; missing: {', '.join(missing)}", "pip install mmctl", found)
    return Line("versions", "ok", text, values=found)


def _device(root: Path) -> Line:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        if built and shutil.which("nvidia-smi"):
            todo = "check the driver: nvidia-smi is here, torch sees no device (CUDA_VISIBLE_DEVICES?)"
            return Line(
                "device", "warn", f"CPU only, although torch is built for CUDA {built}", todo, {"device": "cpu"}
            )
        return Line("device", "ok", f"CPU only ({platform.machine()}); runs take cpu", values={"device": "cpu"})
    devices: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        devices.append({"name": about.name, "memory": about.total_memory, "capability": [about.major, about.minor]})
    text = ", ".join(f"cuda:{n} {d['name']} ({size(d['memory'])})" for n, d in enumerate(devices))
    return Line("device", "ok", text, values={"device": "cuda", "devices": devices})


COMPILE = """
import sys, torch
from mmctl.kernels import triton_values as values
psi, ones = torch.ones(1, 2, 8, 16), torch.ones(2)
if torch.cuda.is_available():
    psi, ones = psi.cuda(), ones.cuda()
    made, _ = values.forward(psi, ones * 0.5, ones, None)
    from mmctl.kernels import value_extract
    wanted = value_extract(psi, ones * 0.5, ones, path="native")
    assert torch.allclose(made.float(), wanted, atol=1e-5), "its values differ from the native path's"
    print("compiles and runs on", torch.cuda.get_device_name())
else:
    from mmctl.kernels.triton_compile import compiled_by
    compiled_by(lambda: values.forward(psi, ones * 0.5, ones, None), [values.value_extract_forward_kernel], 90)
    print("compiles (tried for compute capability 9.0); without a CUDA device no run takes it")
"""


def _triton(root: Path) -> Line:
    """In a process of its own: a compiler may die."""
    from mmctl.kernels.triton_support import triton_installed

    if not triton_installed():
        import torch

        if torch.cuda.is_available():
            return Line(
                "triton", "warn", "not installed: runs on CUDA take the slower native path", "pip install triton"
            )
        return Line("triton", "ok", "not installed; the CPU does not need it")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", COMPILE],
            capture_output=True, text=True, errors="replace", timeout=COMPILE_TIMEOUT, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Line(
            "triton", "warn", f"does not finish compiling in {COMPILE_TIMEOUT:g} s", "look at the machine's load"
        )
    if done.returncode == 0:
        return Line("triton", "ok", done.stdout.strip().splitlines()[-1])
    reason = ([line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"])[-1]
    todo = "it needs a C compiler (gcc, with Python's headers), its ptxas, and a writable TRITON_CACHE_DIR (~/.triton)"
    import torch

    state = "fail" if torch.cuda.is_available() else "warn"
    return Line("triton", state, f"does not compile: {reason.strip()}", todo)


def _kernels(root: Path) -> Line:
    """Which implementation the operations take on the device that a run would."""
    import torch

    from mmctl.kernels.dispatch import TRITON_OPERATIONS, path_taken

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    paths = {name: path_taken(name, device, dtype, 64) for name in sorted(TRITON_OPERATIONS)}
    text = told(paths)
    slow = device.type == "cuda" and any(path != "triton" for path in paths.values())
    todo = "runs work, but slower than they could" if slow else ""
    return Line("kernels", "warn" if slow else "ok", text, todo, paths)


def told(paths: Mapping[str, str]) -> str:
    """Operations with the implementation each takes, once where all take the same."""
    if len(set(paths.values())) == 1:
        return f"all operations: {next(iter(paths.values()))}"
    return ", ".join(f"{name}: {path}" for name, path in paths.items())


def _threads(root: Path) -> Line:
    from mmctl.sweeps.resources import cores

    usable, there = cores(), os.cpu_count() or 1
    values: dict[str, Any] = {"usable": usable, "cores": there}
    text = f"{usable} of {there} cores usable; a run takes training.threads of them (1 by default)"
    wrong = {k: v for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if (v := os.environ.get(k)) and not v.isdigit()}
    if wrong:
        name, value = next(iter(wrong.items()))
        return Line("threads", "warn", f"{text}; {name}={value} is no number", f"unset {name}", values)
    load = os.getloadavg()[0]
    values["load"] = load
    if load > there:
        todo = "other programs are running: timings will not mean much"
        return Line("threads", "warn", f"{text}; load {load:.1f}", todo, values)
    return Line("threads", "ok", text, values=values)


def _memory(root: Path) -> Line:
    from mmctl.runs.memory import available, whole

    free, total = available(), whole()
    values = {"free": free, "total": total}
    if free is None or total is None:
        return Line("memory", "warn", "how much there is cannot be asked", values=values)
    text = f"{size(free)} of {size(total)} free"
    if free < 2 * 2**30:
        return Line("memory", "warn", text, "close other programs: torch and MLflow alone take 0.7 GiB a run", values)
    return Line("memory", "ok", text, values=values)


def _folder(root: Path) -> Line:
    """Writes, renames, locks and removes a file, as runs do."""
    from mmctl.runs.lock import Lock

    place = files.existing(root)
    values = {"path": str(root), "exists": root.is_dir()}
    if root.exists() and not root.is_dir():
        return Line("runs folder", "fail", f"{root} is a file", "name a folder with --runs or MMCTL_RUNS", values)
    probe = files.temporary_name(place / "doctor")
    try:
        files.write_text(probe, "x")
        with Lock(probe):
            pass
    except MmctlError as error:
        return Line("runs folder", "fail", str(error), "choose another with --runs or MMCTL_RUNS", values)
    finally:
        if os.access(place, os.W_OK):
            probe.unlink(missing_ok=True)
    return Line("runs folder", "ok", f"{root} is writable" + ("" if root.is_dir() else " (to be made)"), values=values)


def _disk(root: Path) -> Line:
    found = shutil.disk_usage(files.existing(root))
    values = {"free": found.free, "total": found.total}
    text = f"{size(found.free)} of {size(found.total)} free"
    if found.free < LITTLE:
        return Line("disk", "warn", text, "free some: mmctl runs clean shows what can go", values)
    return Line("disk", "ok", text, values=values)


def _clock(root: Path) -> Line:
    """Heartbeats are compared with the clock, signs of life with the file system's times."""
    place = files.existing(root)
    if time.time() < 1.7e9:  # before this program was written
        return Line(
            "clock", "warn", time.strftime("%Y-%m-%d %H:%M:%S"), "set the clock: runs would seem silent for years"
        )
    probe = files.temporary_name(place / "clock")
    try:
        probe.touch()
        apart = abs(time.time() - probe.stat().st_mtime)
        probe.unlink()
    except OSError as error:
        return Line("clock", "warn", f"cannot be compared with the disk's: {error.strerror or error}")
    values = {"apart_seconds": apart}
    if apart > CLOCK_APART:
        text = f"this machine's and the disk's are {apart:.0f} s apart"
        return Line("clock", "warn", text, "set both: a living run may seem silent, a dead one alive", values)
    return Line("clock", "ok", "agrees with the disk's", values=values)


def _store(root: Path) -> Line:
    import sqlite3

    from mmctl.runs import probe, store
    from mmctl.runs.redaction import redact

    try:
        uri = store.tracking_uri(root)
        probe.check(uri)
    except (OSError, sqlite3.Error) as error:
        text = f"{redact(uri)}: {(str(error).splitlines() or ['down'])[0]}"
        return Line("tracking store", "warn", text, "runs go on without it; mmctl runs sync catches up once it is back")
    except MmctlError as error:
        return Line("tracking store", "warn", str(error), "unset MLFLOW_TRACKING_URI, or name a database or a server")
    file = probe.sqlite_file(uri)
    new = " (made by the first run)" if file is not None and not file.exists() else ""
    return Line("tracking store", "ok", f"{redact(uri)}{new}", values={"uri": redact(uri)})


def _signals(root: Path) -> Line:
    """A run saves when it is told to stop; where signals were ignored from the start it cannot be told."""
    ignored = [s.name for s in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(s) == signal.SIG_IGN]
    if ignored:
        todo = "started with nohup or in the background of a script? Then stop runs with the other signal"
        return Line("signals", "warn", f"{' and '.join(ignored)} ignored by whatever started this process", todo)
    return Line("signals", "ok", "SIGTERM and SIGINT reach a run, which then saves")


def _plugins(root: Path) -> Line:
    from mmctl import plugins

    found = plugins.provenance()
    if not found:
        return Line("plugins", "ok", "none", values={"plugins": []})
    text = ", ".join(f"{p['plugin']} ({', '.join([*p['models'], *p['tasks']])})" for p in found)
    return Line("plugins", "ok", text, values={"plugins": found})
