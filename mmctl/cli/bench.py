"""`mmctl bench`: one command a benchmark, from the registry of benchmarks."""

from __future__ import annotations

from mmctl.bench import BENCHMARKS
from mmctl.cli.options import into_a_folder
from mmctl.cli.registered import group

app = group(BENCHMARKS, "Measure speed and memory on this machine; ratios come first.", into_a_folder)
