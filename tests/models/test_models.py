"""What every model must do: count itself, respect documents and causality, and show its attention."""

from __future__ import annotations

import pytest
import torch

from mmctl import models
from mmctl.config import Config, load
from mmctl.errors import UsageError
from mmctl.models.base import Model
from mmctl.models.mosaic_v2 import MosaicV2Config

AXES = {
    "mosaic-v2": [],
    "constant": ["model.bandwidth=constant"],
    "matched": ["model.bandwidth=constant-matched"],
    "fixed-key": ["model.key_extractor=fixed"],
    "long-only": ["model.short_term=false"],
    "short-only": ["model.long_term=false"],
    "no-look-ahead": ["model.value_look_ahead=false"],
    "mosaic-v1": ["model.name=mosaic-v1"],
    "transformer": ["model.name=transformer"],
    "nope": ["model.name=transformer", "model.position=none"],
    "masks": ["model.name=transformer-masks"],
    "mamba2": ["model.name=mamba2"],
    "rival": ["model.name=transformer-rival"],
    "rival-smear": ["model.name=transformer-rival", "model.key_smear=true", "model.qk_norm=true"],
    "rival-convolution": ["model.name=transformer-rival", "model.short_convolution=3", "model.position=alibi"],
    "rival-log-n": ["model.name=transformer-rival", "model.position=none", "model.attention_scale=log-n"],
}


def config(*overrides: str) -> Config:
    return load("smoke", [*overrides, "training.precision=float32"])


@pytest.fixture(params=AXES)
def built(request: pytest.FixtureRequest) -> Model:
    model = models.build(config(*AXES[request.param])).eval()
    with torch.no_grad():  # away from the symmetric start, where some faults cancel
        generator = torch.Generator().manual_seed(1)
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model.double()


def tokens(batch: int = 2, length: int = 100, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 512, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_nothing_is_read_from_the_future(built: Model) -> None:
    """A change of token t changes the logits from t on, and only those."""
    x = tokens()
    y = x.clone()
    y[:, 60] = (y[:, 60] + 1) % 512
    before, after = built(x), built(y)
    assert torch.equal(before[:, :60], after[:, :60]) or (before - after)[:, :60].abs().max() < 1e-12
    assert (before - after)[:, 60].abs().max() > 1e-6


@torch.no_grad()
def test_a_document_is_computed_as_if_alone(built: Model) -> None:
    x = tokens()
    documents = torch.zeros(2, 100, dtype=torch.int32)
    documents[:, 37:] = 1
    documents[:, 38:] = 2
    together = built(x, documents=documents)
    alone = torch.cat([built(x[:, :37]), built(x[:, 37:38]), built(x[:, 38:])], dim=1)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)


@torch.no_grad()
def test_logits_at_labelled_positions_are_the_same_logits(built: Model) -> None:
    x = tokens()
    labelled = torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) < 0.2
    torch.testing.assert_close(built(x, labelled=labelled), built(x)[labelled])


@torch.no_grad()
def test_attention_of_the_last_query_is_a_distribution_over_what_it_may_see(built: Model) -> None:
    c = built.config
    if c.name == "mamba2":
        with pytest.raises(UsageError, match="no attention weights"):
            built.last_query_weights(tokens())
        return
    for name, weights in built.last_query_weights(tokens()).items():
        assert weights.shape == (2, c.heads, 100)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, c.heads, dtype=weights.dtype))
        seen = (weights > 0).any(0).any(0).nonzero().flatten()
        first, last = int(seen.min()), int(seen.max())
        if name.endswith("/long-term"):
            assert (first, last) == (0, 99 - c.delay_min)
        elif name.endswith("/short-term"):
            assert (first, last) == (99 - c.window, 98)
        elif name.endswith("-long"):
            assert (first, last) == (0, 99 - c.delay_min)
        elif name.endswith("-short"):
            assert (first, last) == (100 - c.window, 99)
        else:
            assert (first, last) == (0, 98 if "contextual" in name else 99)


@torch.no_grad()
def test_long_term_removal_drops_exactly_the_long_term_outputs() -> None:
    """Removal equals zeroing the long-term half of every W_o, and is undone on leaving."""
    model = models.build(config()).eval()
    x = tokens()
    before = model(x)
    with model.evaluation_changes(remove_long_term=True):
        removed = model(x)
    assert torch.equal(model(x), before)
    for block in model.blocks:
        block.memories.output.weight[:, : model.config.width] = 0
    torch.testing.assert_close(model(x), removed, rtol=1e-5, atol=1e-5)
    assert (before - removed).abs().max() > 1e-3


@torch.no_grad()
def test_m_changes_what_long_term_memory_reads() -> None:
    model = models.build(config()).eval()
    x = tokens()
    with model.evaluation_changes(delay=32):
        changed = model(x)
    assert not torch.allclose(changed, model(x))
    torch.testing.assert_close(changed, model(x, delay=32))


def test_changes_a_model_cannot_make_are_refused() -> None:
    for words in (
        ["model.name=transformer"],
        ["model.name=mosaic-v1"],
        ["model.long_term=false"],
        ["model.short_term=false"],
    ):
        with pytest.raises(UsageError), models.build(config(*words)).evaluation_changes(remove_long_term=True):
            pass
    with pytest.raises(UsageError, match="m=0"), models.build(config()).evaluation_changes(delay=0):
        pass


def test_initial_bandwidths_are_the_published_ones() -> None:
    """exp(1.5) n^(1/3) + exp(1.5): 31 at n = 200; constant 9.0; constant-matched the adaptive value at T/2."""
    adaptive = models.build(config()).blocks[0].memories.bandwidth()
    beta_0, beta_1, alpha = (float(x[0, 0]) for x in adaptive)
    assert beta_1 * 200**alpha + beta_0 == pytest.approx(30.7, abs=0.1)
    constant = models.build(config("model.bandwidth=constant")).blocks[0].memories.bandwidth()
    assert float(constant[0][0, 0] + constant[1][0, 0]) == pytest.approx(8.96, abs=0.01)
    assert not constant[2].any()
    matched = models.build(config("model.bandwidth=constant-matched")).blocks[0].memories.bandwidth()
    for memory, pairs in ((0, 64), (1, 32)):  # T/2 = 64, and h = 32 for short-term memory
        assert float(matched[0][memory, 0] + matched[1][memory, 0]) == pytest.approx(
            beta_1 * pairs**alpha + beta_0, rel=1e-5
        )


def test_initial_deviations_are_those_of_table_6() -> None:
    model = models.build(load("lab", ["model.width=256", "model.heads=8", "training.precision=float32"]))
    for layer, block in enumerate(model.blocks):
        expected = (2 * 256 * (layer + 1)) ** -0.5
        for linear in (block.memories.key_value, block.memories.gates, block.memories.output, block.persistent.gate_up):
            assert linear.weight.std().item() == pytest.approx(expected * 0.987, rel=0.03)  # clipped at 3 deviations
            assert linear.weight.abs().max().item() <= 3 * expected + 1e-6
        down = (2 * model.config.ffn_width * (layer + 1)) ** -0.5
        assert block.persistent.down.weight.std().item() == pytest.approx(down * 0.987, rel=0.03)
    assert model.embedding.weight.std().item() == pytest.approx((2 * 256) ** -0.5 * 0.987, rel=0.03)


def test_weights_are_a_function_of_the_seed() -> None:
    one, same, other = (models.build(config(f"seed={s}")) for s in (1, 1, 2))
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        if a.dim() == 2 and a.std() > 0 and MosaicV2Config.name == "mosaic-v2":
            assert a.shape[0] <= 2 or not torch.equal(a, c)


def test_every_parameter_gets_a_gradient(built: Model) -> None:
    built(tokens()).square().sum().backward()
    assert not [name for name, p in built.named_parameters() if p.grad is None or not p.grad.isfinite().all()]


@torch.no_grad()
def test_values_without_look_ahead_are_those_of_gamma_one() -> None:
    plain, ahead = models.build(config("model.value_look_ahead=false")).eval(), models.build(config()).eval()
    for block, other in zip(ahead.blocks, plain.blocks, strict=True):
        block.memories.gamma.fill_(1.0)
        other.load_state_dict({k: v for k, v in block.state_dict().items() if not k.endswith("gamma")})
    plain.embedding, plain.classifier = ahead.embedding, ahead.classifier
    assert torch.equal(plain(tokens()), ahead(tokens()))
