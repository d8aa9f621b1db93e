"""What `mmctl.kernels.inspect` compiles: every kernel and configuration that ships, and the gates each must pass."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .triton_tiles import SHARED_MEMORY

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WIDTHS = (16, 32, 64, 96, 128)


@dataclasses.dataclass(frozen=True)
class Case:
    """One call to compile: operation, architecture, dtype, head width, and the flags kernels are specialised on."""

    operation: str
    arch: int
    dtype: str
    width: int
    span: str
    documented: bool

    def __str__(self) -> str:
        span = "" if self.span == "-" else f" {self.span}-term"
        docs = "with" if self.documented else "without"
        return f"{self.operation}{span}, sm_{self.arch}, {self.dtype}, width {self.width}, {docs} documents"


OPERATIONS = ("memory_attention", "key_scan", "value_extract", "state_space_scan")


def cases(
    archs: Iterable[int],
    dtypes: Iterable[str],
    widths: Iterable[int],
    quick: bool,
    operations: Iterable[str] = OPERATIONS,
) -> Iterator[Case]:
    """Every configuration that ships; ``quick``: only the larger half of it, the kernels that take documents."""
    for arch, dtype, width, operation in itertools.product(archs, dtypes, widths, operations):
        spans = ("long", "short") if operation == "memory_attention" else ("-",)
        for span, documented in itertools.product(spans, (True,) if quick else (False, True)):
            yield Case(operation, arch, dtype, width, span, documented)


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


def state_call(case: Case) -> Callable[[], None]:
    """Forward and backward of `state_space_scan`, N = P = the width, with a state carried in and out."""
    from . import triton_state_space

    dtype, length, heads, width = DTYPES[case.dtype], 512, 8, case.width
    x = torch.zeros(1, length, heads, width, dtype=dtype).transpose(1, 2)
    decay, shared = torch.zeros(1, length, heads).transpose(1, 2), torch.zeros(1, 1, length, width, dtype=dtype)
    documents = torch.zeros(1, length, dtype=torch.int32) if case.documented else None
    state = torch.zeros(1, heads, width, width, dtype=dtype)

    def call() -> None:
        y, end, starts = triton_state_space.forward(x, decay, shared, shared, documents, state)
        triton_state_space.backward(y, end, x, decay, shared, shared, documents, starts)

    return call


def kernels_of(operation: str) -> list[Any]:
    """The compiled functions of an operation."""
    from . import (
        triton_attention,
        triton_scan,
        triton_states,
        triton_states_gradient,
        triton_states_outputs,
        triton_values,
    )

    modules = {
        "memory_attention": (triton_attention,),
        "key_scan": (triton_scan,),
        "value_extract": (triton_values,),
        "state_space_scan": (triton_states, triton_states_outputs, triton_states_gradient),
    }
    return [value for module in modules[operation] for name, value in vars(module).items() if name.endswith("_kernel")]


CALLS: dict[str, Callable[[Case], Callable[[], None]]] = {
    "memory_attention": attention_call,
    "key_scan": scan_call,
    "value_extract": value_call,
    "state_space_scan": state_call,
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
        and row["operation"] in ("memory_attention", "state_space_scan")
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
