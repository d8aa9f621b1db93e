"""`mmctl bench`: one command a benchmark, from the registry of benchmarks."""

from __future__ import annotations

from mmctl.bench import BENCHMARKS
from mmctl.cli.registered import group

app = group(BENCHMARKS, "Measure speed and memory on this machine; ratios come first.")
