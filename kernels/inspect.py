"""``python -m mmctl.kernels.inspect``: compiles every Triton kernel without a GPU and checks what came out.

One row a kernel and configuration: registers, spilled bytes, shared memory against the architecture's limit,
tensor-core instructions (wgmma on sm_90, tcgen05 on sm_100, mma.sync elsewhere), whether the assembler serialised
wgmma, float64 instructions, atomics; and once a kernel, the number of variants over 64 <= m <= 256. Exits with 1 where
a gate fails:

- no spills, shared memory (and on sm_100 tensor memory) within the limit, no float64, no atomics, no serialised wgmma;
- on sm_90 with 16-bit inputs of head width 64 or more, wgmma in every kernel of `memory_attention` and
  `state_space_scan` (whose state size is the head width here);
- one variant over all delays.

A configuration whose compilation fails, or kills its process, is one line that names it, and exit code 1 as well.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import torch

from .triton_cases import DTYPES, OPERATIONS, WIDTHS, cases, examine, variants_over_delays
from .triton_jobs import Failed, outcomes
from .triton_tiles import MAX_WIDTH, SHARED_MEMORY

VARIANTS = "variants over m"
HEADER = f"{'kernel':42} {'arch':>4} {'type':4} {'D':>3} {'span':5} {'docs':4} {'regs':>4} {'spilled':>9} {'shared':>7} {'limit':>7} {'tensor':>11} notes"


def line(row: dict[str, Any]) -> str:
    """One row of the printed table."""
    kinds = [f"{row[kind]} {kind}" for kind in ("wgmma", "tcgen05", "mma") if row[kind]]
    notes = ", ".join(f"FAILS: {failure}" for failure in row["failures"])
    return (
        f"{row['kernel']:42} {row['arch']:>4} {row['dtype']:4} {row['width']:>3} {row['span']:5} "
        f"{'yes' if row['documented'] else 'no':4} {row['registers']:>4} "
        f"{row['spill_stores']:>4}/{row['spill_loads']:<4} {row['shared_memory']:>7} {row['limit']:>7} "
        f"{' '.join(kinds) or '-':>11} {notes}"
    )


class Table:
    """A CSV that holds what is done so far: rows are written as they come."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.versions = {"torch": torch.__version__, "triton": version("triton")}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")

    def add(self, rows: list[dict[str, Any]]) -> None:
        if self.path is None or not rows:
            return
        first = self.path.stat().st_size == 0
        with self.path.open("a", newline="") as file:
            table = [{**row, "failures": "; ".join(row["failures"]), **self.versions} for row in rows]
            writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
            if first:
                writer.writeheader()
            writer.writerows(table)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line and exit code 2, as everywhere in mmctl."""
        self.exit(2, f"{self.prog}: {message}\n")


def arguments_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m mmctl.kernels.inspect", description=str(__doc__).splitlines()[0])
    parser.add_argument("--arch", type=numbers, default=list(SHARED_MEMORY), help="e.g. 80,90 (default: all)")
    parser.add_argument("--dtype", type=lambda text: text.split(","), default=list(DTYPES), help="bf16,fp16,fp32")
    parser.add_argument("--width", type=numbers, default=list(WIDTHS), help="head widths, e.g. 64,128")
    names = ",".join(OPERATIONS)
    parser.add_argument("--operation", type=lambda text: text.split(","), default=list(OPERATIONS), help=names)
    parser.add_argument("--jobs", type=positive, default=1, help="processes to compile in")
    parser.add_argument("--quick", action="store_true", help="only kernels with documents; no variants over m")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--csv", type=Path, help="also write the rows to this file, as they come")
    chosen = parser.parse_args(arguments)
    choices: dict[str, Collection[Any]] = {
        "arch": SHARED_MEMORY,
        "dtype": DTYPES,
        "width": range(1, MAX_WIDTH + 1),
        "operation": OPERATIONS,
    }
    for option, known in choices.items():
        if unknown := [value for value in getattr(chosen, option) if value not in known]:
            valid = f"1 to {MAX_WIDTH}" if option == "width" else ", ".join(map(str, known))
            parser.error(f"--{option}: {unknown[0]} is not one of {valid}")
    return chosen


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    chosen = arguments_of(arguments)
    rows: list[dict[str, Any]] = []
    crashes: list[str] = []
    table = Table(chosen.csv)
    if not chosen.json:
        print(HEADER)
    todo = cases(chosen.arch, chosen.dtype, chosen.width, chosen.quick, chosen.operation)
    for case, found in outcomes(examine, todo, chosen.jobs):
        if isinstance(found, Failed):
            crashes.append(f"{case}: {found.reason}")
            print(f"inspect: {crashes[-1]}", file=sys.stderr, flush=True)
            continue
        rows += found
        table.add(found)
        if not chosen.json:
            print(*map(line, found), sep="\n", flush=True)
    variants: dict[str, int] = {}
    counting = "memory_attention" in chosen.operation and not chosen.quick
    for _, counted in () if not counting else outcomes(variants_over_delays, [90], 1):
        if isinstance(counted, Failed):
            crashes.append(f"{VARIANTS}: {counted.reason}")
            print(f"inspect: {crashes[-1]}", file=sys.stderr)
        else:
            variants = counted
    failed = len(crashes) + sum(bool(row["failures"]) for row in rows) + sum(n != 1 for n in variants.values())
    if chosen.json:
        report = {"kernels": rows, VARIANTS: variants, "crashes": crashes, "failed": failed, **table.versions}
        print(json.dumps(report, indent=2))
    else:
        for name, count in variants.items():
            print(f"{VARIANTS}: {name} {count}")
        print(f"{len(rows)} kernels, {failed} failed gates or compilations")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
