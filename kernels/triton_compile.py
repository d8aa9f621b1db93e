"""Compiles kernels for GPUs that are not there: the launchers run as they are, on CPU tensors, under a stub driver.

Every argument, tile and specialisation is then exactly that of a real call; only the launch itself does nothing.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from . import triton_support


class StubDriver:
    """The part of a Triton driver that compiling and "launching" takes; claims to be one GPU of ``capability``."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)
        self.utils = SimpleNamespace(
            load_binary=lambda *args: (0, 0, 0, 0, 1024),
            # Nothing is refused here: the shared memory is compared with the limit afterwards, and reported.
            get_device_properties=lambda device: {"max_shared_mem": 1 << 30},
            unload_module=lambda module: None,
        )

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *args: None

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> str:
        return "cpu"


@contextlib.contextmanager
def stub_driver(capability: int) -> Iterator[None]:
    """Compile for ``capability`` inside; nothing is taken from or left in Triton's cache folder."""
    if triton_support.interpreted():
        raise ValueError("TRITON_INTERPRET: interpreted kernels are not compiled; unset it")
    before = (knobs.cache.dir, knobs.compilation.always_compile, knobs.nvidia.dump_ptxas_log)
    with tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir, knobs.compilation.always_compile, knobs.nvidia.dump_ptxas_log = folder, True, True
        # Not `reset_active`: it asks for the real driver, and there may be none.
        active = driver._active
        driver.set_active(StubDriver(capability))
        triton_support.assumed_capability = capability
        try:
            yield
        finally:
            triton_support.assumed_capability = None
            driver._active = active
            knobs.cache.dir, knobs.compilation.always_compile, knobs.nvidia.dump_ptxas_log = before


@dataclass(frozen=True)
class Compiled:
    """What the compiler says about one kernel."""

    kernel: str
    registers: int
    spill_stores: int  # bytes
    spill_loads: int
    shared_memory: int  # bytes
    tensor_memory: int  # columns, of 512
    wgmma: int
    tcgen05: int
    mma: int
    serialized: bool
    float64: bool
    atomics: bool


def compiled_by(call: Any, functions: list[JITFunction], capability: int) -> list[Compiled]:
    """Run ``call`` under a stub driver and describe every kernel of ``functions`` it compiled."""
    for function in functions:
        function.device_caches.clear()
    log = io.StringIO()
    with stub_driver(capability), contextlib.redirect_stdout(log):
        call()
    reports = []
    for function in functions:
        for kernel in variants(function):
            reports.append(describe(function.__name__, kernel, log.getvalue()))
        function.device_caches.clear()
    return reports


def variants(function: JITFunction) -> list[triton.compiler.CompiledKernel]:
    """The variants of a kernel that are compiled so far."""
    return [kernel for cache in function.device_caches.values() for kernel in cache[0].values()]


def describe(name: str, kernel: triton.compiler.CompiledKernel, log: str) -> Compiled:
    """Read off the assembly, the metadata and the assembler's log (``ptxas -v``)."""
    parts = re.split(r"(?=Compiling entry function)", log)
    part = "".join(p for p in parts if p.startswith(f"Compiling entry function '{name}'"))
    ptx = kernel.asm["ptx"]
    registers = re.search(r"Used (\d+) registers", part)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
    if registers is None or spills is None:
        raise RuntimeError(f"{name}: no register count in the assembler's log:\n{log}")
    return Compiled(
        kernel=name,
        registers=int(registers[1]),
        spill_stores=int(spills[1]),
        spill_loads=int(spills[2]),
        shared_memory=kernel.metadata.shared,
        tensor_memory=getattr(kernel.metadata, "tmem_size", None) or 0,
        wgmma=ptx.count("wgmma.mma_async"),
        tcgen05=ptx.count("tcgen05.mma"),
        mma=len(re.findall(r"\bmma\.sync", ptx)),
        serialized=any("serializ" in text and name in text for text in log.splitlines()),
        float64=".f64" in ptx,
        atomics=re.search(r"\b(atom|red)\.", ptx) is not None,
    )
