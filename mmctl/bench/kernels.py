"""`mmctl bench kernels`: how fast the operations are beside other people's kernels and the machine's own ceilings.

A contender whose result, forward and every gradient, is not the reference's in this very run gets no time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.bench.measure import device_of, numbers
from mmctl.errors import MmctlError, UsageError, nearest

if TYPE_CHECKING:
    from mmctl.bench.kernel_cases import Size

CASES = {
    "long": "mmctl.bench.kernel_cases:read",
    "short": "mmctl.bench.kernel_cases:read",
    "key-scan": "mmctl.bench.kernel_cases:key_extractor",
    "value-extract": "mmctl.bench.kernel_cases:value_extractor",
    "state-space": "mmctl.bench.kernel_states:recurrence",
    "layer": "mmctl.bench.kernel_models:layer",
    "step": "mmctl.bench.kernel_models:training_step",
}
DTYPES = {"bf16": "bfloat16", "float16": "float16", "float32": "float32"}
# What a call works on at least: enough to fill the machine, so that a time is the kernels' and not the launch's.
TOKENS = {"cuda": "512,2048,4096,16384,65536", "cpu": "512,1024,2048"}
WIDTHS = {"cuda": "128,64", "cpu": "64"}
HEADS = {"cuda": 16, "cpu": 4}
TOGETHER = {"cuda": 65_536, "cpu": 2_048}
WIDER = {"key-scan": 4, "value-extract": 4}
LONG = 16_384
"""Beyond this length a case waits until all others are done."""
STEP_TOKENS = {"cuda": (4096,), "cpu": (512,)}
"""Lengths at which a training step is timed: its models take seconds to build."""


def command(
    tokens: Annotated[
        str | None, typer.Option("--tokens", help="Lengths T, such as 512,65536.", show_default=False)
    ] = None,
    widths: Annotated[str | None, typer.Option("--widths", help="Head widths D.", show_default=False)] = None,
    cases: Annotated[
        str, typer.Option("--cases", help="Of long, short, key-scan, value-extract, state-space, layer, step.")
    ] = "long,short,key-scan,value-extract,state-space,layer,step",
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            help="bf16, float16 or float32 (default: bf16 on a GPU, float32 on a CPU).",
            show_default=False,
        ),
    ] = None,
    heads: Annotated[int | None, typer.Option("--heads", min=1, help="Heads H.", show_default=False)] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads (a run's default is 1).")] = 1,
    rounds: Annotated[int, typer.Option("--rounds", min=3, help="Timed rounds at most.")] = 15,
    budget: Annotated[
        float, typer.Option("--budget", min=1, help="Seconds after which no further case is begun.")
    ] = 330.0,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda or cuda:N (default: a GPU if any).", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for kernel-speed.csv, its figure and its summary.")] = Path(
        "benchmarks"
    ),
    seed: Annotated[int, typer.Option("--seed", help="Of all inputs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object on stdout instead of a table.")] = False,
) -> None:
    """Speed and memory of memory_attention, key_scan, value_extract, state_space_scan, a layer and a training step, beside
    their peers.

    Ratios come first: how many times as fast ours is. Every result is compared with a float64 reference before it is
    timed; one that is off gets no time, and ours being off is exit code 1. The longest sequences come last; what the
    budget does not reach is listed. Times are medians of interleaved rounds.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch

    from mmctl.bench import kernel_report as report
    from mmctl.bench.kernel_timing import ceilings

    began = time.perf_counter()
    torch.set_num_threads(threads)
    place = device_of(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    kind = place.type
    dtype = getattr(torch, DTYPES[_one("--precision", precision or ("bf16" if kind == "cuda" else "float32"), DTYPES)])
    chosen = [_one("--cases", name, CASES) for name in cases.split(",")]
    lengths = sorted(numbers("--tokens", tokens or TOKENS[kind], 2))
    sizes = numbers("--widths", widths or WIDTHS[kind], 1)
    print("measuring the machine's ceilings ...", file=sys.stderr, flush=True)
    machine = report.machine(place, dtype) | ceilings(place, dtype)
    rows: list[dict[str, Any]] = []
    spent: dict[str, float] = {}
    step_lengths = [t for t in lengths if t in STEP_TOKENS[kind]] or lengths[:1]
    for case, length, width in _plan(chosen, lengths, sizes, step_lengths):
        size = _size(case, length, width, heads or HEADS[kind], dtype, place)
        elapsed = time.perf_counter() - began
        # Four times the tokens a read: at most sixteen times the pairs. An estimate, to end in time.
        expected = spent.get(f"{case}/{width}", 0.0)
        if elapsed + expected > budget:
            rows.append(report.missing(size, case, f"not reached: {elapsed:.0f} of {budget:.0f} s were spent"))
            continue
        print(f"{elapsed:4.0f} s: {case}, T = {length}, D = {width} ...", file=sys.stderr, flush=True)
        rows += _measure(case, size, seed, rounds)
        spent[f"{case}/{width}"] = time.perf_counter() - began - elapsed
        report.write_csv(out, rows, machine)
    paths = report.finish(out, rows, machine)
    if as_json:
        print(json.dumps({"machine": machine, "rows": rows}, indent=1))
    else:
        report.print_table(rows, machine)
    print(f"wrote {paths['csv']} and {paths['png']}", file=sys.stderr)
    refused = [row for row in rows if row["contender"] == "ours" and row["status"].startswith(("refused", "failed"))]
    if refused:
        first = refused[0]
        raise MmctlError(
            f"{first['case']}, T = {first['tokens']}, D = {first['width']}: {first['status']}"
            + (f" (and {len(refused) - 1} more)" if len(refused) > 1 else "")
        )


def _plan(
    cases: list[str], lengths: list[int], widths: list[int], step_lengths: list[int]
) -> Iterator[tuple[str, int, int]]:
    """The longest sequences last, for they cost most; before them the first width, at which the targets are stated."""
    for long in (False, True):
        for width in widths:
            for length in lengths:
                for case in cases:
                    if (length > LONG) == long and (case != "step" or length in step_lengths):
                        yield case, length, width


def _size(case: str, length: int, width: int, heads: int, dtype: Any, place: Any) -> Size:
    from mmctl.bench.kernel_cases import Size

    together = TOGETHER[place.type] * WIDER.get(case, 1)
    if case == "step":
        together //= 4
    return Size(length, width, heads, max(1, together // length), dtype, place)


def _measure(case: str, size: Size, seed: int, rounds: int) -> list[dict[str, Any]]:
    """All rows of one case at one size."""
    import importlib

    import torch

    from mmctl.bench import kernel_report as report
    from mmctl.bench.kernel_timing import compared, timed
    from mmctl.bench.peers import Unavailable, first_line

    module, _, function = CASES[case].partition(":")
    try:
        group = getattr(importlib.import_module(module), function)(case, size, seed)
        verdicts = compared(group)
        rows = report.rows(group, verdicts, timed(group, verdicts, rounds))
    except Unavailable as reason:
        return [report.missing(size, case, f"unavailable: {reason}")]
    except torch.OutOfMemoryError as error:
        rows = [report.missing(size, case, f"unavailable: {first_line(error)}")]
    except Exception as error:  # a fault in one case must not cost the others; it is exit code 1 all the same
        rows = [report.missing(size, case, f"failed: {type(error).__name__}: {first_line(error)}")]
    if size.device.type == "cuda":
        torch.cuda.empty_cache()
    return rows


def _one(option: str, value: str, valid: Any) -> str:
    if value not in valid:
        raise UsageError(f'{option} "{value}": not known{nearest(value, valid)}')
    return value
