"""Parity with the official v1 implementation: its logits, loss and every gradient (reference tensors, float64)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn import functional as F

from mmctl.errors import MmctlError
from mmctl.models import load_official_v1
from mmctl.models.official_v1 import official_to_ours


@pytest.fixture(scope="module")
def path(shared: Path) -> Path:
    file = shared / "fixtures" / "memory_mosaics_v1_small.safetensors"
    if not file.is_file():
        pytest.skip(f"reference tensors not found: {file}")
    return file


def test_logits_loss_and_every_gradient(path: Path) -> None:
    with safe_open(str(path), framework="pt") as file:
        stored = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 - not a mapping
    model = load_official_v1(path).double()
    logits = model(stored["tokens"])
    assert relative(logits, stored["logits"]) < 1e-9
    loss = F.cross_entropy(logits.flatten(0, 1), stored["targets"].flatten())
    assert relative(loss, stored["loss"][0]) < 1e-9
    loss.backward()
    own = dict(model.named_parameters())
    compared = set()
    for name, gradient in stored.items():
        if not name.startswith("grad."):
            continue
        ours = official_to_ours(name.removeprefix("grad."))
        assert ours is not None, name
        assert relative(own[ours].grad.reshape(gradient.shape), gradient) < 1e-5, name
        compared.add(ours)
    assert compared == set(own), "a parameter without a reference gradient"


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    theirs = theirs.double()
    return float((ours.detach().double() - theirs).norm() / theirs.norm())


def test_files_that_are_not_official_weights_are_refused_in_one_line(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.safetensors"
    garbage.write_bytes(b"\x00" * 64)
    other = tmp_path / "other.safetensors"
    save_file({"x": torch.ones(2)}, str(other))
    partial = tmp_path / "partial.safetensors"
    sizes = '{"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 5, "pmem_size": 3, "pmem_count": 1}'
    save_file({"lm_head.weight": torch.ones(5, 8)}, str(partial), metadata={"config": sizes})
    for file, told in (
        (garbage, "safetensors"),
        (other, "config"),
        (partial, "missing"),
        (tmp_path / "none", "safetensors"),
    ):
        with pytest.raises(MmctlError, match=told) as error:
            load_official_v1(file)
        assert "\n" not in str(error.value)
