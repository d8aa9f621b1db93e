"""`mmctl bench cli`: how long `mmctl --help` takes in a fresh process, and whether it stays free of heavy imports."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Annotated, Any

import typer

from mmctl.errors import MmctlError

HEAVY = ("torch", "mlflow", "numpy", "matplotlib", "scipy", "pandas")
FORBIDDEN = ("torch", "mlflow")
HELP = "import sys; sys.argv = ['mmctl', '--help']\nfrom mmctl.cli import main\nmain()"
LOOK = (
    "import sys; sys.argv = ['mmctl', '--help']\nfrom mmctl.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
    f"print(' '.join(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
)


def command(
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Fresh processes timed.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object on stdout.")] = False,
) -> None:
    """Median time of `mmctl --help` in fresh processes (beside that of an empty Python), and what it imports.

    Exits 1 when it imports torch or mlflow.
    """
    result = measure(rounds)
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        print(
            f"mmctl --help: {result['seconds'] * 1e3:.0f} ms (median of {rounds}; {result['fastest'] * 1e3:.0f} to "
            f"{result['slowest'] * 1e3:.0f}), an empty Python: {result['python_seconds'] * 1e3:.0f} ms"
        )
        print(f"heavy modules imported: {', '.join(result['heavy_imports']) or 'none'}")
    bad = [name for name in result["heavy_imports"] if name in FORBIDDEN]
    if bad:
        raise MmctlError(f"mmctl --help imports {', '.join(bad)}")


def measure(rounds: int) -> dict[str, Any]:
    """Seconds of `rounds` fresh processes, interleaved with empty ones, and the heavy modules that help imports."""
    imported = _python(LOOK).stderr.split()
    ours: list[float] = []
    empty: list[float] = []
    for _ in range(rounds):
        for code, into in ((HELP, ours), ("", empty)):
            began = time.perf_counter()
            _python(code)
            into.append(time.perf_counter() - began)
    return {
        "seconds": statistics.median(ours),
        "fastest": min(ours),
        "slowest": max(ours),
        "python_seconds": statistics.median(empty),
        "rounds": rounds,
        "heavy_imports": imported,
        "python": sys.version.split()[0],
    }


def _python(code: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise MmctlError(f"mmctl --help failed in a fresh process: {last}")
    return done
