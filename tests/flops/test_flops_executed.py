"""The counter against the models themselves: every parameter, and torch's own count of executed FLOPs."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmctl import models
from mmctl.config import Config, load
from mmctl.kernels import attention_native, scan_native
from mmctl.kernels.flops import key_scan_flops, memory_attention_flops, register_flop_formulas
from mmctl.models import flops

VARIANTS = [
    ["model.name=mosaic-v2"],
    ["model.name=mosaic-v2", "model.bandwidth=constant"],
    ["model.name=mosaic-v2", "model.key_extractor=fixed"],
    ["model.name=mosaic-v2", "model.long_term=false"],
    ["model.name=mosaic-v2", "model.short_term=false"],
    ["model.name=mosaic-v1"],
    ["model.name=mosaic-v1", "model.persistent_count=3"],
    ["model.name=transformer"],
    ["model.name=transformer-masks", "model.delay=12"],
]


def config_of(preset: str, *overrides: str) -> Config:
    return load(preset, list(overrides))


def executed(config: Config, batch: int, length: int) -> int:
    """FLOPs torch counts in one forward pass of the built model."""
    register_flop_formulas()
    model = models.build(config).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(batch, length, dtype=torch.int64))
    return counter.get_total_flops()


@pytest.mark.parametrize("preset", ["smoke", "lab", "paper-small", "paper-large"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(v).replace("model.", ""))
def test_parameters_are_exact(preset, variant):
    config = config_of(preset, *variant)
    with torch.device("meta"):
        model = models.build(config)
    assert flops.parameters(config.model, config.data.vocabulary) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("size", "batch", "length"),
    [
        ([], 2, 100),
        ([], 1, 700),
        (["model.width=96", "model.heads=3", "model.layers=3", "data.vocabulary=700"], 1, 257),
    ],
    ids=["smoke-100", "smoke-700", "odd-257"],
)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(v).replace("model.", ""))
def test_executed_agrees_with_torch(variant, size, batch, length):
    config = config_of("smoke", *variant, *size)
    counted = flops.flops_per_token(config.model, config.data.vocabulary, length, "executed")
    assert counted * batch * length == pytest.approx(executed(config, batch, length), rel=0.01)


def test_the_operations_formulas_are_what_their_products_add_up_to():
    """Below the custom operators torch sees the products themselves: the window and the scan are counted as executed;
    a long-term read, by torch's convention for causal attention, at the full square. Short ones, in tiles, compute
    about half of it; long ones are torch's own kernel, which its counter takes at the full square too."""
    register_flop_formulas()
    x = torch.randn(1, 2, 600, 16)
    zeros = torch.zeros(1, 2, 600)
    ones = torch.ones(2)
    with FlopCounterMode(display=False) as counter:
        scan_native.forward(x, zeros, zeros, None, None, None)
    assert counter.get_total_flops() == pytest.approx(key_scan_flops(1, 2, 600, 16), rel=0.01)
    for length, window, delay, low, high in (
        (600, 50, 0, 0.99, 1.01),
        (250, 0, 20, 0.5, 0.75),
        (600, 0, 20, 0.99, 1.01),
    ):
        # Unit vectors: longer keys may make the read look for the maxima of its scores, one product more.
        part = torch.nn.functional.normalize(x[:, :, :length], dim=-1)
        with FlopCounterMode(display=False) as counter:
            attention_native.forward(part, part, ones, 0 * ones, ones, None, None, window, delay, 0)
        formula = memory_attention_flops(1, 2, length, 16, window=window or None, delay=delay or None)
        assert low <= counter.get_total_flops() / formula <= high


def test_removing_long_term_memory_counts_as_a_model_without_it():
    whole = config_of("lab", "model.name=mosaic-v2")
    without = config_of("lab", "model.name=mosaic-v2", "model.long_term=false")
    for convention in flops.CONVENTIONS:
        for n in (64, 1000):
            removed = flops.parts(whole.model, 512, n, convention, remove_long_term=True)
            assert removed == flops.parts(without.model, 512, n, convention)


def test_short_term_cost_stops_growing_and_long_term_grows_with_the_context():
    config = config_of("lab", "model.name=mosaic-v2")
    near, far = (flops.parts(config.model, 512, n, "executed") for n in (1024, 8192))
    assert far["short-term"].flops == pytest.approx(near["short-term"].flops, rel=0.02)
    assert far["long-term"].flops > 5 * near["long-term"].flops


def test_every_registered_model_counts_itself():
    for name in models.MODELS:
        config = config_of("smoke", f"model.name={name}")
        parts = flops.parts(config.model, 512, 128)
        assert parts["embedding"].flops == 0
        assert flops.total(parts).flops == flops.flops_per_token(config.model, 512, 128, "executed")
