"""Dropout drawn from (seed, step, sequence, site): its rate, its scale, and that how a batch is passed changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmctl import models
from mmctl.config import load
from mmctl.data.mixture import Mixture
from mmctl.errors import UsageError
from mmctl.models.dropout import Noise, dropout
from mmctl.training.losses import step_losses
from mmctl.training.prepare import prepare

WORDS = [
    "model.name=mosaic-v1", "model.layers=2", "model.width=16", "model.heads=2", "model.persistent_slots=8",
    "data.length=32", "data.batch=4", "data.mixture={recall: 1}", "training.precision=float32",
]  # fmt: skip
CPU = torch.device("cpu")


def test_a_share_is_dropped_and_the_rest_scaled() -> None:
    x = torch.ones(8, 100, 50)
    y = dropout(x, 0.25, Noise(0, 1, np.arange(8)), 0)
    assert y.unique().tolist() == pytest.approx([0, 4 / 3])
    assert abs((y == 0).float().mean().item() - 0.25) < 0.01
    assert dropout(x, 0.25, None, 0) is x
    assert dropout(x, 0.0, Noise(0, 1, np.arange(8)), 0) is x


def test_masks_differ_by_seed_step_sequence_and_site_and_by_nothing_else() -> None:
    def mask(seed: int = 0, step: int = 1, row: int = 0, site: int = 0, beside: tuple[int, ...] = ()) -> bytes:
        rows = np.array([row, *beside])
        return dropout(torch.ones(len(rows), 16, 16), 0.5, Noise(seed, step, rows), site)[0].numpy().tobytes()

    assert mask(beside=(3, 7)) == mask()
    assert len({mask(), mask(seed=1), mask(step=2), mask(row=1), mask(site=1)}) == 5


def gradients(accumulation: int = 1, noise: tuple[int, int] | None = (0, 3), *words: str) -> torch.Tensor:
    config = load("smoke", [*WORDS, "model.dropout=0.3", *words])
    model = prepare(models.build(config), config.training)
    model.train()
    batch = Mixture(config.data, 0).batch(3)
    for part, _, _ in step_losses(model, batch, None, CPU, "float32", accumulation, noise=noise):
        part.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_parts_of_a_batch_and_recomputed_blocks_drop_the_same() -> None:
    whole = gradients()
    assert torch.allclose(gradients(accumulation=4), whole, atol=1e-6)
    assert torch.allclose(gradients(1, (0, 3), "training.activation_checkpointing=true"), whole, atol=1e-6)
    assert not torch.allclose(gradients(noise=(0, 4)), whole, atol=1e-4)
    assert not torch.allclose(gradients(noise=None), whole, atol=1e-4)


@pytest.mark.parametrize("rate", ["1", "-0.1", ".nan"])
def test_a_rate_outside_of_0_to_1_is_refused(rate: str) -> None:
    with pytest.raises(UsageError, match=r"model\.dropout"):
        load("smoke", [*WORDS, f"model.dropout={rate}"])
