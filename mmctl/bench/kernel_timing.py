"""Comparing and timing the contenders of a group, and the machine's own ceilings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mmctl.bench.kernel_cases import Group
from mmctl.bench.kernel_checks import worst
from mmctl.bench.measure import Times, interleaved, peak_allocated
from mmctl.bench.peers import Contender, first_line

SHORTEST = {"cuda": 5e-3, "cpu": 0.0}
"""Seconds one timed round lasts at least: a call is repeated until the wait for the device at its end is nothing beside
it."""
LONGEST = 1.0
"""Seconds all rounds of one contender may take."""
HOST = 0.9
"""Share of a round spent issuing work from which the host, not the kernels, sets the time."""


@dataclass(frozen=True)
class Verdict:
    """How far a contender's worst result is off, or why it has none. `error` None: nothing was compared."""

    name: str = ""
    error: float | None = None
    limit: float = 0.0
    reason: str = ""

    @property
    def passed(self) -> bool:
        return not self.reason


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compared(group: Group) -> dict[str, Verdict]:
    """Each contender's results against the reference's, in this process, on the inputs that are timed."""
    assert group.expected is not None
    expected, terms = group.expected()
    return {contender.name: _verdict(group, contender, expected, terms) for contender in group.contenders}


def _verdict(group: Group, contender: Contender, expected: dict[str, Any], terms: dict[str, float]) -> Verdict:
    limit = group.tolerance * contender.slack
    try:
        out, grads = torch.empty(0), []
        if group.check_grad is not None:
            out = contender.forward()
            finite = bool(out.isfinite().all())
            grads = list(torch.autograd.grad(out, contender.leaves, contender.upstream(group.check_grad)))
            if not finite:
                return Verdict("out", float("inf"), limit, "refused: the output is not finite")
        results = contender.results(out.detach(), grads)
    except Exception as error:  # whatever a kernel raises, here and not in the middle of the timing
        kind = "refused" if contender.ours else "unavailable"
        return Verdict(reason=f"{kind}: {type(error).__name__}: {first_line(error)}")
    if not results:
        return Verdict()
    name, off = worst(group.pick(results), expected, terms)
    reason = "" if off <= limit else f"refused: {name} is off by {off:.2g} (at most {limit:.2g})"
    return Verdict(name, off, limit, reason)


@dataclass(frozen=True)
class Timed:
    """One contender in one phase: seconds of a call in each round, peak bytes, and whether the host set the time."""

    seconds: list[float]
    peak: int
    calls: int
    host_bound: bool


def timed(group: Group, verdicts: dict[str, Verdict], rounds: int) -> dict[tuple[str, str], Timed]:
    """Time every contender that passed, in every phase; (phase, name) -> `Timed`."""
    running = [contender for contender in group.contenders if verdicts[contender.name].passed]
    device = group.size.device
    found: dict[tuple[str, str], Timed] = {}
    for phase in group.phases:
        works = {contender.name: Work(group, contender, phase) for contender in running}
        for work in works.values():
            work.settle(SHORTEST[device.type])
        if not works:
            continue
        slowest = max(work.last for work in works.values())
        count = max(3, min(rounds, int(LONGEST / max(slowest, 1e-9))))
        times: dict[str, Times] = interleaved(works, count, warmup=1)
        for name, work in works.items():
            peak = peak_allocated(work.once, device)
            seconds = [wall / work.calls for wall in times[name].wall]
            found[phase, name] = Timed(seconds, peak, work.calls, work.host_share > HOST and device.type == "cuda")
    return found


class Work:
    """A contender's phase as something to time: so many calls, then wait for the device."""

    def __init__(self, group: Group, contender: Contender, phase: str) -> None:
        self.device, self.calls, self.last, self.host_share = group.size.device, 1, 0.0, 0.0
        grad = None if group.grad is None else contender.upstream(group.grad)
        kept = contender.forward() if phase == "backward" else None

        def forward() -> None:  # as in training: with what a backward needs
            contender.forward()

        def backward() -> None:
            torch.autograd.grad(kept, contender.leaves, grad, retain_graph=True)  # type: ignore[arg-type]

        def both() -> None:
            torch.autograd.grad(contender.forward(), contender.leaves, grad)

        phases: dict[str, Callable[[], None]] = {
            "step": forward,
            "forward": forward,
            "backward": backward,
            "both": both,
        }
        self.call = phases[phase]

    def once(self) -> None:
        self.call()
        synchronise(self.device)

    def settle(self, shortest: float) -> None:
        """Warm up, and find how many calls make a round."""
        self.once()
        self()
        self.calls = max(1, min(100, int(shortest / max(self.last, 1e-9)) + 1)) if shortest else 1

    def __call__(self) -> None:
        began = time.perf_counter()
        for _ in range(self.calls):
            self.call()
        issued = time.perf_counter()
        synchronise(self.device)
        self.last = time.perf_counter() - began
        self.host_share = (issued - began) / self.last if self.last else 0.0


def ceilings(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """What this machine reaches in a matrix product of `dtype` (TFLOP/s) and in a copy (GB/s, read and written)."""
    size = 8192 if device.type == "cuda" else 1024
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
    source = torch.zeros(1 << (30 if device.type == "cuda" else 27), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def product() -> None:
        torch.mm(a, b)
        synchronise(device)

    def copy() -> None:
        target.copy_(source)
        synchronise(device)

    # The best of many: a ceiling, where the contenders' times are medians.
    times = {name: min(interleaved({name: work}, 20)[name].wall) for name, work in (("mm", product), ("copy", copy))}
    return {
        "matmul_tflops": 2 * size**3 / times["mm"] / 1e12,
        "copy_gbytes": 2 * source.numel() / times["copy"] / 1e9,
    }
