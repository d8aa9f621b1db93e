"""Ahead-of-time compilation without a GPU: the gates of `mmctl.kernels.inspect`, and what surrounds the kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from cases import bandwidth, unit_keys

from mmctl.kernels import memory_attention
from mmctl.kernels.triton_tiles import KERNELS, SHARED_MEMORY, attention_tile, family, padded

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def inspect(*arguments):
    command = [sys.executable, "-m", "mmctl.kernels.inspect", "--json", *arguments]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode in (0, 1), result.stderr
    report = json.loads(result.stdout)
    assert (report["failed"] == 0) == (result.returncode == 0)
    return report


@pytest.mark.parametrize(
    ("arch", "dtype", "width"),
    [(80, "bf16", "128"), (90, "bf16", "32,64,128"), (90, "fp16", "128"), (120, "bf16", "128")],
    ids=str,
)
def test_no_spills_atomics_or_float64_shared_memory_fits_and_wgmma_is_used(arch, dtype, width):
    """Among them the consumer cards' limit: sm_120 has 99 KiB of shared memory a program, sm_90 has 227."""
    operations = "memory_attention,key_scan,value_extract"
    report = inspect("--quick", "--arch", str(arch), "--dtype", dtype, "--width", width, "--operation", operations)
    bad = [row for row in report["kernels"] if row["failures"]]
    assert not bad
    kernels = {row["kernel"] for row in report["kernels"]}
    assert {f"memory_attention_{kernel}_kernel" for kernel in KERNELS} <= kernels
    for row in report["kernels"]:
        if row["operation"] == "memory_attention" and arch == 90:
            assert row["wgmma"] > 0


@pytest.mark.parametrize(
    ("arch", "dtype", "width"), [(80, "bf16", "128"), (90, "bf16", "64"), (120, "fp32", "64")], ids=str
)
def test_the_same_of_the_state_space_scan(arch, dtype, width):
    words = ("--quick", "--arch", str(arch), "--dtype", dtype, "--width", width, "--operation", "state_space_scan")
    report = inspect(*words)
    assert not [row for row in report["kernels"] if row["failures"]]
    kernels = {row["kernel"] for row in report["kernels"]}
    parts = ("states", "outputs", "adjoints", "input_gradient", "shared_gradient")
    assert kernels == {f"state_space_{part}_kernel" for part in parts}


def test_one_compiled_variant_over_all_delays():
    """Run-time m without recompiles: 64 <= m <= 256 at a stub driver."""
    code = "from mmctl.kernels.triton_cases import variants_over_delays as v; print(set(v().values()))"
    result = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert result.stdout.strip() == "{1}", result.stderr


def test_every_architecture_has_a_tile_for_every_kernel():
    for arch in (*SHARED_MEMORY, 87, 103, 121):
        for kernel in KERNELS:
            for itemsize in (2, 4):
                for width in (16, 64, 80, 128):
                    for windowed in (False, True):
                        tile = attention_tile(kernel, arch, itemsize, width, windowed)
                        assert min(tile.rows, tile.pairs) >= 16
    assert [family(arch) for arch in (80, 87, 89, 90, 103, 121)] == [80, 86, 89, 90, 100, 120]
    assert [padded(width) for width in (1, 16, 17, 80, 128)] == [16, 16, 32, 128, 128]
    with pytest.raises(ValueError, match=r"8\.0 or newer"):
        family(75)


def test_a_cpu_tensor_given_to_the_cuda_path_is_a_clear_error():
    keys, values = unit_keys(1, 1, 5, 16, torch.float32), torch.randn(1, 1, 5, 16)
    with pytest.raises(ValueError, match=r"^path: .*memory_attention.*CUDA tensors, got one on cpu"):
        memory_attention(keys, values, bandwidth(1, torch.float32), window=2, path="triton")


def test_triton_is_imported_only_where_it_is_used():
    code = (
        "import sys, torch; before = set(sys.modules); import mmctl.kernels as k; x = torch.ones(1, 1, 4, 4); b = (torch.ones(1),) * 3; "
        "assert 'triton' not in set(sys.modules) - before; k.memory_attention(x, x, b, window=2); "
        "assert 'mmctl.kernels.triton_attention' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True)
