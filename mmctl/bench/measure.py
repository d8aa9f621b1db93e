"""How benchmarks measure: interleaved rounds, medians, and the exact peak of what a step allocates. Torch only where
used."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmctl.errors import MmctlError, UsageError


@dataclass(frozen=True)
class Times:
    """Seconds of each round, on the wall and summed over this process's threads (steadier on a shared machine)."""

    wall: list[float]
    cpu: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.wall)

    @property
    def cpu_median(self) -> float:
        return statistics.median(self.cpu)


def interleaved(candidates: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 2) -> dict[str, Times]:
    """Time each candidate once a round, in an order that turns every round, so that drift hits all of them alike.

    A candidate must return only when its work is done (on an accelerator: after synchronising).
    """
    for _ in range(warmup):
        for work in candidates.values():
            work()
    measured = {name: Times([], []) for name in candidates}
    order = list(candidates)
    for number in range(rounds):
        turn = number % len(order)
        for name in order[turn:] + order[:turn]:
            wall, cpu = time.perf_counter(), time.process_time()
            candidates[name]()
            measured[name].wall.append(time.perf_counter() - wall)
            measured[name].cpu.append(time.process_time() - cpu)
    return measured


def numbers(option: str, text: str, least: int) -> list[int]:
    """`256,1024` of an option, each number once. UsageError for anything else."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < least:
        raise UsageError(f'{option} "{text}": expected whole numbers of at least {least}, separated by commas')
    return list(dict.fromkeys(found))


def device_of(chosen: str) -> Any:
    """The torch device that --device names. UsageError when there is none such here."""
    import torch

    try:
        place = torch.device(chosen)
    except RuntimeError:
        place = torch.device("meta")
    if place.type not in ("cpu", "cuda"):
        raise UsageError(f'--device "{chosen}": expected cpu, cuda or cuda:N')
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise UsageError(f'--device "{chosen}": torch sees {torch.cuda.device_count() or "no"} CUDA devices here')
    return place


def quartiles(values: list[float]) -> tuple[float, float]:
    """First and third quartile."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def peak_allocated(work: Callable[[], Any], device: Any) -> int:
    """Largest number of bytes in tensors that `work` allocates, above what is allocated when it starts.

    CPU: the sum of torch's own allocation events (torch.profiler, profile_memory), so it is exact, repeatable, and sees
    inside custom operators. The process's peak RSS is not: at these sizes most of its growth is code and workspaces
    that libraries load at the first step, which hides the difference between models. CUDA: torch's allocator
    statistics.
    """
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    if not events:
        raise MmctlError(
            f"torch {torch.__version__} reported no allocations to its profiler: memory cannot be measured"
        )
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
