"""``python -m mmctl.kernels.inspect``: compiles every Triton kernel without a GPU and checks what came out.

One row a kernel and configuration: registers, spilled bytes, shared memory against the architecture's limit, tensor-core
instructions (wgmma on sm_90, tcgen05 on sm_100, mma.sync elsewhere), whether the assembler serialised wgmma, float64
instructions, atomics; and once a kernel, the number of variants over 64 <= m <= 256. Exits with 1 where a gate fails:

- no spills, shared memory (and on sm_100 tensor memory) within the limit, no float64, no atomics, no serialised wgmma;
- on sm_90 with 16-bit inputs of head width 64 or more, wgmma in every kernel of `memory_attention`;
- one variant over all delays.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch

from .triton_tiles import SHARED_MEMORY

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WIDTHS = (32, 64, 96, 128)
VARIANTS = "variants over m"


@dataclasses.dataclass(frozen=True)
class Case:
    """One call to compile: operation, architecture, dtype, head width, and the flags kernels are specialised on."""

    operation: str
    arch: int
    dtype: str
    width: int
    span: str
    documented: bool


def cases(archs: Iterable[int], dtypes: Iterable[str], widths: Iterable[int], quick: bool) -> Iterator[Case]:
    """Every configuration that ships; ``quick``: only the larger half of it, the kernels that take documents."""
    for arch, dtype, width in itertools.product(archs, dtypes, widths):
        for span, documented in itertools.product(("long", "short"), (True,) if quick else (False, True)):
            yield Case("memory_attention", arch, dtype, width, span, documented)
        for operation, documented in itertools.product(
            ("key_scan", "value_extract"), (True,) if quick else (False, True)
        ):
            yield Case(operation, arch, dtype, width, "-", documented)


def attention_call(case: Case, delays: Iterable[int] = (64,)) -> Callable[[], None]:
    """Forward and backward of `memory_attention`, laid out as in the model."""
    from . import triton_memory

    dtype, length, heads = DTYPES[case.dtype], 512, 2
    keys = torch.zeros(1, heads, length, case.width, dtype=dtype)
    values, parameter = torch.zeros_like(keys), torch.ones(heads)
    grad = torch.zeros(1, length, heads, case.width, dtype=dtype).transpose(1, 2)
    documents = torch.zeros(1, length, dtype=torch.int32) if case.documented else None
    inputs = (keys, values, parameter, parameter, parameter, documents, None)

    def call() -> None:
        for delay in delays:
            span = (0, delay, 0) if case.span == "long" else (256, 0, 0)
            out, statistics = triton_memory.forward(*inputs, *span)
            triton_memory.backward(grad, *inputs, out, statistics, *span)

    return call


def scan_call(case: Case) -> Callable[[], None]:
    """Forward and backward of `key_scan`, with a carried state."""
    from . import triton_key_scan

    dtype, length, heads = DTYPES[case.dtype], 512, 2
    x = torch.zeros(1, length, heads, case.width, dtype=dtype).transpose(1, 2)
    gates = torch.zeros(1, length, heads).transpose(1, 2)
    documents = torch.zeros(1, length, dtype=torch.int32) if case.documented else None
    state = (torch.zeros(1, heads, case.width), torch.zeros(1, heads))

    def call() -> None:
        keys, total, _, tops, sums = triton_key_scan.forward(x, gates, gates, documents, *state)
        triton_key_scan.backward(keys, total, x, gates, gates, documents, state[0], tops, sums)

    return call


def value_call(case: Case) -> Callable[[], None]:
    """Forward and backward of `value_extract`."""
    from . import triton_values

    psi = torch.zeros(1, 512, 2, case.width, dtype=DTYPES[case.dtype]).transpose(1, 2)
    documents = torch.zeros(1, 512, dtype=torch.int32) if case.documented else None
    inputs = (psi, torch.ones(2), torch.ones(2), documents)

    def call() -> None:
        values, norms = triton_values.forward(*inputs)
        triton_values.backward(values, *inputs, norms)

    return call


def kernels_of(operation: str) -> list[Any]:
    """The compiled functions of an operation."""
    from . import triton_attention, triton_scan, triton_values

    modules = {"memory_attention": triton_attention, "key_scan": triton_scan, "value_extract": triton_values}
    module = modules[operation]
    return [value for name, value in vars(module).items() if name.endswith("_kernel")]


CALLS: dict[str, Callable[[Case], Callable[[], None]]] = {
    "memory_attention": attention_call,
    "key_scan": scan_call,
    "value_extract": value_call,
}


def examine(case: Case) -> list[dict[str, Any]]:
    """Compile one case; a row a kernel, with the gates it fails."""
    from .triton_compile import compiled_by

    rows = []
    for found in compiled_by(CALLS[case.operation](case), kernels_of(case.operation), case.arch):
        row = {**dataclasses.asdict(case), **dataclasses.asdict(found), "limit": SHARED_MEMORY[case.arch]}
        row["failures"] = failures(row)
        rows.append(row)
    return rows


def failures(row: dict[str, Any]) -> list[str]:
    """The gates one row fails."""
    gates = {
        "spills": row["spill_stores"] + row["spill_loads"] > 0,
        "shared memory": row["shared_memory"] > row["limit"],
        "tensor memory": row["tensor_memory"] > 512,
        "float64": row["float64"],
        "atomics": row["atomics"],
        "wgmma serialized": row["serialized"],
        "no wgmma": row["arch"] == 90
        and row["dtype"] != "fp32"
        and row["operation"] == "memory_attention"
        and row["width"] >= 64
        and row["wgmma"] == 0,
    }
    return [name for name, failed in gates.items() if failed]


def variants_over_delays(arch: int = 90) -> dict[str, int]:
    """How often each kernel of `memory_attention` is compiled over 64 <= m <= 256: 1 is right."""
    from .triton_compile import compiled_by

    call = attention_call(Case("memory_attention", arch, "bf16", 64, "long", False), range(64, 257))
    functions = kernels_of("memory_attention")
    names = [found.kernel for found in compiled_by(call, functions, arch)]
    return {function.__name__: names.count(function.__name__) for function in functions}


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


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mmctl.kernels.inspect", description=__doc__.splitlines()[0])
    parser.add_argument("--arch", type=numbers, default=list(SHARED_MEMORY), help="e.g. 80,90 (default: all)")
    parser.add_argument("--dtype", type=lambda text: text.split(","), default=list(DTYPES), help="bf16,fp16,fp32")
    parser.add_argument("--width", type=numbers, default=list(WIDTHS), help="head widths, e.g. 64,128")
    parser.add_argument("--jobs", type=int, default=1, help="processes to compile in")
    parser.add_argument("--quick", action="store_true", help="only kernels with documents; no variants over m")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    chosen = parser.parse_args(arguments)
    if unknown := [arch for arch in chosen.arch if arch not in SHARED_MEMORY]:
        parser.error(f"--arch: {unknown} not in {list(SHARED_MEMORY)}")
    if unknown_types := [dtype for dtype in chosen.dtype if dtype not in DTYPES]:
        parser.error(f"--dtype: {unknown_types} not in {list(DTYPES)}")
    todo = list(cases(chosen.arch, chosen.dtype, chosen.width, chosen.quick))
    rows: list[dict[str, Any]] = []
    if not chosen.json:
        print(HEADER)
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        for found in pool.map(examine, todo):
            rows += found
            if not chosen.json:
                print(*map(line, found), sep="\n", flush=True)
        variants = {} if chosen.quick else pool.submit(variants_over_delays).result()
    failed = sum(bool(row["failures"]) for row in rows) + sum(count != 1 for count in variants.values())
    if chosen.json:
        print(json.dumps({"kernels": rows, VARIANTS: variants, "failed": failed}, indent=2))
    else:
        print(*(f"{VARIANTS}: {name} {count}" for name, count in variants.items()), sep="\n")
        print(f"{len(rows)} kernels, {failed} failed gates")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
