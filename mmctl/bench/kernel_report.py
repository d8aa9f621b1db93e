"""Rows, table and files of `mmctl bench kernels`: ratios first, everything beside the machine's own ceilings."""

from __future__ import annotations

import csv
import io
import math
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from mmctl.bench.kernel_cases import Group, Size
from mmctl.bench.kernel_timing import Timed, Verdict
from mmctl.bench.measure import quartiles
from mmctl.errors import MmctlError
from mmctl.runs import files

STEM = "kernel-speed"
FIELDS = (
    "case", "tokens", "width", "phase", "contender", "speedup", "milliseconds", "first_quartile", "third_quartile",
    "tflops", "of_matmul", "gbytes", "of_copy", "peak_bytes", "mask_milliseconds", "worst_result", "error", "tolerance",
    "compared", "status", "batch", "heads", "calls", "rounds", "host_bound",
)  # fmt: skip


def machine(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Device and versions, which every row of the CSV carries."""
    cuda = device.type == "cuda"
    try:
        triton: str | None = version("triton")
    except PackageNotFoundError:
        triton = None
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"CPU, {torch.get_num_threads()} thread(s)",
        "precision": str(dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "triton": triton,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def row(size: Size, case: str, phase: str, contender: str, **known: Any) -> dict[str, Any]:
    """One row with every field, None where nothing is known."""
    sizes = {"tokens": size.tokens, "width": size.width, "batch": size.batch, "heads": size.heads}
    return {**dict.fromkeys(FIELDS), "case": case, "phase": phase, "contender": contender, **sizes, **known}


def missing(size: Size, case: str, status: str) -> dict[str, Any]:
    """A case that was not measured at all."""
    return row(size, case, "all", "ours", status=status)


def rows(group: Group, verdicts: dict[str, Verdict], times: dict[tuple[str, str], Timed]) -> list[dict[str, Any]]:
    """One row a phase and contender; those without a time say why."""
    made = []
    for phase in group.phases:
        ours = times.get((phase, "ours"))
        for contender in group.contenders:
            verdict, found = verdicts[contender.name], times.get((phase, contender.name))
            known: dict[str, Any] = {
                "worst_result": verdict.name or None,
                "error": verdict.error if verdict.error is None or math.isfinite(verdict.error) else None,
                "tolerance": verdict.limit or None,
                "compared": group.checked
                if verdict.error is not None
                else "another model or composed of compared kernels",
                "status": "measured" if found else verdict.reason,
            }
            if contender.mask_seconds is not None:
                known["mask_milliseconds"] = contender.mask_seconds * 1e3
            if found:
                known |= _times(group, phase, contender.name, found)
                if ours and not contender.ours:
                    known["speedup"] = statistics.median(found.seconds) / statistics.median(ours.seconds)
            made.append(row(group.size, group.case, phase, contender.name, **known))
    made += [
        row(group.size, group.case, "all", name, status=f"unavailable: {reason}")
        for name, reason in group.unavailable.items()
    ]
    return made


def _times(group: Group, phase: str, name: str, found: Timed) -> dict[str, Any]:
    seconds = statistics.median(found.seconds)
    low, high = quartiles(found.seconds)
    known: dict[str, Any] = {
        "milliseconds": seconds * 1e3,
        "first_quartile": low * 1e3,
        "third_quartile": high * 1e3,
        "peak_bytes": found.peak,
        "calls": found.calls,
        "rounds": len(found.seconds),
        "host_bound": found.host_bound,
    }
    if phase in group.flops and not name.startswith("transformer"):
        known["tflops"] = group.flops[phase] / seconds / 1e12
    if phase in group.bytes:
        known["gbytes"] = group.bytes[phase] / seconds / 1e9
    return known


def shares(rows: list[dict[str, Any]], machine: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows with their shares of the machine's ceilings."""
    for found in rows:
        for field, share, ceiling in (("tflops", "of_matmul", "matmul_tflops"), ("gbytes", "of_copy", "copy_gbytes")):
            if found[field] is not None:
                found[share] = found[field] / machine[ceiling]
    return rows


def write_csv(folder: Path, rows: list[dict[str, Any]], machine: dict[str, Any]) -> Path:
    """kernel-speed.csv with what there is so far: a run that is cut short leaves its rows."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*FIELDS, *machine], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {k: "" if v is None else v for k, v in (found | machine).items()} for found in shares(rows, machine)
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MmctlError(f"cannot create {folder}: {error.strerror or error}") from None
    files.write_text(folder / f"{STEM}.csv", text.getvalue())
    return folder / f"{STEM}.csv"


def finish(folder: Path, rows: list[dict[str, Any]], machine: dict[str, Any]) -> dict[str, Path]:
    """The CSV, and its figure."""
    from mmctl.plots import figure

    path = write_csv(folder, rows, machine)
    return {**figure(STEM).draw(path, folder), "csv": path}


def print_table(rows: Sequence[dict[str, Any]], machine: dict[str, Any]) -> None:
    """A block a case and size: ratios first, then times, rates with their share of the ceilings, memory and error."""
    print(
        f"{machine['device']}, {machine['precision']}, torch {machine['torch']}, triton {machine['triton']}; ceilings "
        f"measured here: matrix product {machine['matmul_tflops']:.3g} TFLOP/s, copy {machine['copy_gbytes']:.4g} GB/s"
    )
    print("x: how many times as fast as this contender ours is; %: share of the ceiling; memory: at the peak of a call")
    block = None
    for found in rows:
        here = (found["case"], found["tokens"], found["width"], found["batch"], found["heads"])
        if here != block:
            block = here
            compared = f"; compared: {found['compared']}" if found["compared"] else ""
            print(f"\n{here[0]}, T = {here[1]:,}, D = {here[2]}, B = {here[3]}, H = {here[4]}{compared}")
        if found["milliseconds"] is None:
            print(f"  {found['phase']:8} {found['contender']:18} {found['status']}")
            continue
        ratio = "" if found["speedup"] is None else f"{found['speedup']:.2f}x"
        spread = f"({found['first_quartile']:.4g} to {found['third_quartile']:.4g})"
        rates = [
            f"{found[field]:.4g} {unit} ({found[share]:.0%})"
            for field, share, unit in (("tflops", "of_matmul", "TFLOP/s"), ("gbytes", "of_copy", "GB/s"))
            if found[field] is not None
        ]
        notes = [*rates, f"{found['peak_bytes'] / 2**20:.4g} MiB"]
        if found["error"] is not None:
            notes.append(f"{found['worst_result']} off by {found['error']:.1e}")
        if found["mask_milliseconds"] is not None:
            notes.append(f"mask built in {found['mask_milliseconds']:.3g} ms")
        if found["host_bound"]:
            notes.append("time set by the host, not the kernels")
        print(
            f"  {found['phase']:8} {found['contender']:18} {ratio:>7} {found['milliseconds']:9.4g} ms {spread:22} {', '.join(notes)}"
        )
