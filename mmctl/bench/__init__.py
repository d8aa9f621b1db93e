"""Benchmarks, one file each. A new benchmark is one file here, with a `command(...)`, and one line in `BENCHMARKS`."""

from __future__ import annotations

BENCHMARKS: dict[str, str] = {
    "step": "mmctl.bench.step",
    "cli": "mmctl.bench.cli",
    "kernels": "mmctl.bench.kernels",
    "generate": "mmctl.bench.generate",
    "runner": "mmctl.bench.runner",
}
