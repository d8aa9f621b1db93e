"""A run's provenance says which implementation its operations took, and why."""

from __future__ import annotations

import pytest
import torch
from small_run import small
from typer.testing import CliRunner

from mmctl import models
from mmctl.cli.runs import app
from mmctl.kernels import dispatch, triton_support
from mmctl.runs import RunFolder, provenance

OPERATIONS = {"key_scan", "memory_attention", "value_extract"}


def test_on_a_cpu_every_operation_is_native_and_says_why():
    found = provenance.kernels(models.build(small()), torch.device("cpu"), "float32")
    assert set(found) == OPERATIONS
    assert all(path == "native (the run is on cpu; Triton needs a CUDA device)" for path in found.values())


def test_only_the_operations_a_model_has():
    for name, expected in (("transformer", set()), ("transformer-masks", {"memory_attention"})):
        model = models.build(small(f"model.name={name}"))
        assert set(provenance.kernels(model, torch.device("cpu"), "bf16")) == expected


@pytest.mark.parametrize(
    ("capability", "width", "expected"),
    [
        (90, 64, "triton"),
        (90, 256, "native (it takes head widths up to 128, got 256)"),
        (75, 64, "native (it needs an NVIDIA GPU of compute capability 8.0 or newer)"),
    ],
)
def test_a_gpu_takes_triton_unless_it_cannot_and_then_says_why(monkeypatch, capability, width, expected):
    monkeypatch.setattr(triton_support, "capability", lambda device: capability)
    assert dispatch.path_taken("memory_attention", torch.device("cuda:0"), torch.bfloat16, width) == expected


def test_more_sequences_than_a_grid_has_programs_are_refused(monkeypatch):
    monkeypatch.setattr(triton_support, "capability", lambda device: 90)
    assert "65535" in str(triton_support.unsupported(torch.device("cuda"), torch.float32, 64, programs=65_536))


def test_runs_show_prints_it(tmp_path):
    run = RunFolder.create(tmp_path, small("name=adaptive"))
    run.add_provenance(kernels={"key_scan": "native (the run is on cpu; Triton needs a CUDA device)"})
    shown = CliRunner().invoke(app, ["show", "adaptive", "--runs", str(tmp_path)]).stdout
    assert "native (the run is on cpu" in next(line for line in shown.splitlines() if "key_scan" in line)
