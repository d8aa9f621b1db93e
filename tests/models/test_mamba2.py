"""Mamba-2 against its equations, its published initialisation, and itself decoded token by token."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mmctl import models
from mmctl.config import load
from mmctl.errors import UsageError
from mmctl.models import flops


def build(*words: str) -> models.Model:  # type: ignore[name-defined]
    model = models.build(load("smoke", ["model.name=mamba2", "training.precision=float32", *words]))
    return model.double().eval()


def some_tokens(length: int = 90) -> torch.Tensor:
    return torch.randint(0, 512, (2, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_a_block_computes_the_published_equations() -> None:
    """Step by step, with torch's own convolution and a loop over positions."""
    model = build("model.state=16")
    mixer, c = model.blocks[0].mixer, model.config
    u = torch.randn(1, 20, c.width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z, xbc, dt = (u @ mixer.input.weight.T).split([c.inner, c.inner + 2 * c.state, c.heads], -1)
    kernel = mixer.convolution.flip(0).T.unsqueeze(1)  # torch correlates: the oldest position comes first
    conv = F.conv1d(F.pad(xbc.mT, (3, 0)), kernel, mixer.convolution_bias, groups=kernel.shape[0])
    x, b, read = F.silu(conv).mT.split([c.inner, c.state, c.state], -1)
    delta = F.softplus(dt + mixer.step_bias)
    state = torch.zeros(c.heads, c.state, c.inner // c.heads, dtype=torch.float64)
    outputs = []
    for t in range(20):
        alpha = (-delta[0, t] * mixer.log_decay_rate.exp()).exp()
        x_t = x[0, t].view(c.heads, -1)
        state = alpha[:, None, None] * state + delta[0, t][:, None, None] * b[0, t][None, :, None] * x_t[:, None]
        o = torch.einsum("n,hnp->hp", read[0, t], state) + mixer.skip[:, None] * x_t
        gated = o.flatten() * F.silu(z[0, t])
        outputs.append(gated * (gated.square().mean() + 1e-5).rsqrt() * mixer.norm.weight)
    expected = torch.stack(outputs) @ mixer.output.weight.T
    got = mixer.recur(u, None, None, None, model.changes)[0]
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def test_the_initialisation_is_the_published_one() -> None:
    model = build("model.width=256", "model.heads=64", "model.layers=4")
    steps = torch.cat([F.softplus(b.mixer.step_bias) for b in model.blocks])
    rates = torch.cat([b.mixer.log_decay_rate.exp() for b in model.blocks])
    assert steps.min() >= 1e-3 - 1e-9
    assert steps.max() <= 0.1 + 1e-9
    assert steps.log().mean().item() == pytest.approx(-4.605, abs=0.3)  # log-uniform: half-way between the logarithms
    assert rates.min() >= 1
    assert rates.max() <= 16
    assert rates.mean().item() == pytest.approx(8.5, abs=1)
    mixer = model.blocks[0].mixer
    assert mixer.input.weight.std().item() == pytest.approx((3 * 256) ** -0.5, rel=0.02)
    assert mixer.output.weight.std().item() == pytest.approx((3 * 512) ** -0.5 / 2, rel=0.02)  # / sqrt(layers)
    assert torch.equal(mixer.skip, torch.ones(64, dtype=mixer.skip.dtype))


def test_decay_rate_step_bias_and_skip_do_not_decay() -> None:
    model = build()
    _, kept = model.parameter_groups(0.1)
    assert kept["weight_decay"] == 0
    kept_ids = {id(p) for p in kept["params"]}
    for block in model.blocks:
        for p in (block.mixer.log_decay_rate, block.mixer.step_bias, block.mixer.skip):
            assert id(p) in kept_ids


@torch.no_grad()
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("pieces", [[1] * 90, [2, 1, 64, 1, 20, 2], [90]])
def test_decoding_from_the_state_equals_the_whole_pass(pieces: list[int], documents: bool) -> None:
    model, x = build(), some_tokens()
    ids = torch.arange(90).div(11, rounding_mode="floor").expand(2, 90).to(torch.int32) if documents else None
    cache, got, at = model.init_cache(2), [], 0
    for count in pieces:
        part = slice(at, at + count)
        got.append(model.step(x[:, part], cache, documents=None if ids is None else ids[:, part]))
        at += count
    torch.testing.assert_close(torch.cat(got, 1), model(x, documents=ids), rtol=1e-9, atol=1e-10)


@torch.no_grad()
def test_the_state_does_not_grow() -> None:
    model = build()
    cache, sizes = model.init_cache(2), []
    for _ in range(3):
        model.prefill(some_tokens(), cache)
        sizes.append(cache.bytes())
    assert sizes[0] == sizes[1] == sizes[2]
    assert sum(entry.state.numel() for entry in cache.layers) == 2 * model.config.state_size  # two sequences


@torch.no_grad()
def test_counted_parameters_and_flops_are_executed_ones() -> None:
    for length in (40, 128, 200):
        model = build().float()
        assert flops.parameters(model.config, 512) == model.parameter_count()
        with FlopCounterMode(display=False) as counter:
            model(some_tokens(length)[:1])
        counted = flops.flops_per_token(model.config, 512, length, "executed")
        assert counter.get_total_flops() / length == pytest.approx(counted, rel=0.01)


@torch.no_grad()
def test_changes_of_the_state_are_what_they_say_and_are_undone() -> None:
    model, x = build(), some_tokens(60)
    before = model(x)
    with model.state_changes(decay=0.9999):
        slower = model.log_retentions(x), model(x)
    with model.state_changes(insert=0.75):
        less = model(x)
    with model.state_changes(window=1000):
        torch.testing.assert_close(model(x), before, rtol=1e-10, atol=1e-12)
    with model.state_changes(window=5):
        short = model(x)
    assert torch.equal(model(x), before)
    assert not torch.allclose(slower[1], before)
    assert not torch.allclose(less, before)
    torch.testing.assert_close(short[:, :5], before[:, :5], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(short[:, 20:], before[:, 20:])
    with pytest.raises(UsageError, match=r"decay=1\.5"), model.state_changes(decay=1.5):
        pass


@torch.no_grad()
def test_state_statistics_are_those_of_the_states_passed_through() -> None:
    model, x = build(), some_tokens(64)
    rows = model.state_statistics(x, 16)
    cache = model.init_cache(2)
    model.prefill(x, cache)
    torch.testing.assert_close(rows[1]["mean"][-1], cache.layers[1].state.mean((-1, -2)))
    assert rows[0]["variance"].shape == (4, 2, model.config.heads)
