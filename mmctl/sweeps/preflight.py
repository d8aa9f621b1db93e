"""Before the first run of a sweep: how many fit beside each other, and is there room for what they leave?

What cannot work is refused in one line, and what would not fit at once is run with fewer jobs, said in one line.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from mmctl.errors import MmctlError, UsageError
from mmctl.runs import files, memory
from mmctl.runs.preflight import size
from mmctl.sweeps.cells import Cell
from mmctl.sweeps.launchers import Resources
from mmctl.sweeps.plan import Plan
from mmctl.sweeps.resources import cores, device_memory, places_on, visible_devices


def resources(
    plan: Plan, jobs: int = 0, gpus: float | None = None, elsewhere: bool = False
) -> tuple[Resources, list[str]]:
    """What each run gets, and what to tell the user. jobs 0: as many as fit; gpus None: one device each, where there
    are. elsewhere: the runs are for other machines, so what this one has limits nothing.

    UsageError or MmctlError, one line, when the runs cannot be carried out here as asked.
    """
    cells = list(plan.cells.values())
    threads = max(cell.config.training.threads for cell in cells)
    different = {memory.sizes(cell.config): cell for cell in reversed(cells)}
    largest = max(different.values(), key=lambda cell: memory.estimate(cell.config).total)
    need = memory.estimate(largest.config)
    notes: list[str] = []
    if elsewhere:
        return Resources(jobs or len(plan.runs()), threads, gpus or 0, need.total), notes
    if not _on_devices(cells):
        if gpus:
            raise UsageError(
                f"--gpus-per-run {gpus:g}: these runs are on the CPU (operation.device, and what torch sees)"
            )
        wanted = min(jobs or max(1, cores() // threads), len(plan.runs()))
        if wanted * threads > cores():
            notes.append(f"{wanted} jobs of {threads} threads share {cores()} cores")
        wanted = _in_memory(wanted, largest, notes)
        return Resources(wanted, threads, 0, need.total), notes
    if any(":" in cell.config.operation.device for cell in cells):
        if gpus:
            raise UsageError(f"--gpus-per-run {gpus:g}: operation.device names the device of each run already")
        return Resources(min(jobs or 1, len(plan.runs())), threads, 0, need.total), notes
    devices = visible_devices()
    if not devices:  # the driver's tool is not there, torch sees one all the same
        return Resources(min(jobs or 1, len(plan.runs())), threads, 0, need.total), notes
    if gpus is None:
        gpus = 1 / math.ceil(jobs / len(devices)) if jobs > len(devices) else 1.0
    if gpus == 0:
        return Resources(min(jobs or len(devices), len(plan.runs())), threads, 0, need.total), notes
    places = places_on(devices, gpus)
    if not places:
        raise UsageError(f"--gpus-per-run {gpus:g}: {len(devices)} CUDA device{'s' * (len(devices) != 1)} here")
    if jobs > places:
        raise UsageError(f"--jobs {jobs} with --gpus-per-run {gpus:g}: {len(devices)} CUDA devices carry {places}")
    gpus, places = _on_device_memory(devices, gpus, places, largest, notes)
    return Resources(min(jobs or places, places, len(plan.runs())), threads, gpus, need.total), notes


def check_disk(root: Path, needed: int, runs: int) -> None:
    """MmctlError if the disk of `root` is short of what `runs` missing runs will write, `needed` bytes together."""
    place = files.existing(root)
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise MmctlError(f"cannot look at {place}: {error.strerror or error}") from None
    if free < needed:
        raise MmctlError(
            f"disk: the {runs} missing runs need about {size(needed)} in {root}, {size(free)} are free "
            "(operation.keep=1 keeps one checkpoint a run)"
        )


def _on_devices(cells: Sequence[Cell]) -> bool:
    from mmctl.training.run import pick_device

    return any(pick_device(name).startswith("cuda") for name in {cell.config.operation.device for cell in cells})


def _in_memory(wanted: int, largest: Cell, notes: list[str]) -> int:
    """How many of the largest run this machine's memory holds, at most `wanted`."""
    need = memory.estimate(largest.config)
    each, have, free = need.total + memory.PROCESS, memory.whole(), memory.available()
    if have is not None and each > have:
        raise MmctlError(_too_large(largest, have - memory.PROCESS, "this machine"))
    fitting = wanted if free is None else max(1, free // each)
    if fitting < wanted:
        notes.append(
            f"memory: a run of {largest.name} takes about {size(each)}, {size(free or 0)} are free: "
            f"{fitting} at once instead of {wanted}"
        )
    return min(wanted, fitting)


def _on_device_memory(
    devices: Sequence[str], gpus: float, places: int, largest: Cell, notes: list[str]
) -> tuple[float, int]:
    """(gpus, places), with fewer runs on each device if its free memory does not hold that many."""
    found = [device_memory(device) for device in devices]
    known = [pair for pair in found if pair is not None]
    if not known:
        return gpus, places
    whole, free = min(total for total, _ in known), min(left for _, left in known)
    need = memory.estimate(largest.config).total
    if need > whole * max(1.0, gpus):
        raise MmctlError(_too_large(largest, whole, "a device"))
    sharing = round(1 / gpus) if gpus < 1 else 1
    fitting = max(1, free // need)
    if fitting < sharing:
        notes.append(
            f"memory: a run of {largest.name} takes about {size(need)}, {size(free)} of a device are free: "
            f"{fitting} on each instead of {sharing}"
        )
        return 1 / fitting, len(devices) * fitting
    return gpus, places


def _too_large(largest: Cell, have: int, what: str) -> str:
    need = memory.estimate(largest.config)
    setting = memory.fitting(largest.config, have)
    hint = f"; {setting} would fit" if setting else "; a smaller model, data.batch or data.length might"
    return (
        f"memory: {largest.name} needs about {size(need.total)} ({need.words()}), {what} has {size(max(0, have))}{hint}"
    )
