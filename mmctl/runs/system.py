"""System metrics of a run, when asked for: processor, memory and GPU, sampled beside the training.

They go to the run's `system.jsonl`, from which the mirror reads them; under the names MLflow gives its own, so that its
page shows them as such. They say how a run was carried out, never what it found: no result is made from them.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from mmctl.runs import files

SAMPLE_EVERY = 10.0
"""Seconds between two samples; one takes about 1 ms."""
FILE = "system.jsonl"
MIB = 1 << 20


class Sampler:
    """A thread that appends a row to `<folder>/system.jsonl` every `SAMPLE_EVERY` seconds, until `stop`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write a last row and end."""
        self._stop.set()
        self._thread.join(SAMPLE_EVERY)

    def _run(self) -> None:
        import psutil

        psutil.cpu_percent()  # the first call has nothing to compare with
        process = psutil.Process()
        process.cpu_percent()
        ended = False
        while not ended:
            ended = self._stop.wait(SAMPLE_EVERY)
            try:
                files.append_line(self.path, {"time": round(time.time(), 3), **sample(process)})
            except (files.WriteError, psutil.Error):  # a full disk is the training's to report
                return


def sample(process: object) -> dict[str, float]:
    """One row: percentages and mebibytes by MLflow's names, the GPU's only where torch already uses one."""
    import psutil

    assert isinstance(process, psutil.Process)
    memory = psutil.virtual_memory()
    row = {
        "system/cpu_utilization_percentage": psutil.cpu_percent(),
        "system/system_memory_usage_megabytes": round((memory.total - memory.available) / MIB, 1),
        "system/system_memory_usage_percentage": memory.percent,
        "system/process_cpu_utilization_percentage": process.cpu_percent(),
        "system/process_memory_usage_megabytes": round(process.memory_info().rss / MIB, 1),
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(device)
            row[f"system/gpu_{device}_memory_usage_megabytes"] = round((total - free) / MIB, 1)
            row[f"system/gpu_{device}_memory_usage_percentage"] = round(100 * (total - free) / total, 2)
    return row
