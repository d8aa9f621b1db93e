"""PaceLLM's plug-ins against their equations: what must change nothing, what must not leak, and the bank slot by
slot."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mmctl import models
from mmctl.config import load
from mmctl.errors import UsageError
from mmctl.models.base import Model
from mmctl.models.pace import PacedFeedForward, PaceSettings, paced
from mmctl.models.pace_experts import cluster_units

LOOSE = PaceSettings(slots=6, nearest=3, farthest=2, high=0.35, low=0.1, chunk=8)
"""Thresholds that random activations meet in all three ways."""


@pytest.fixture
def model() -> Model:
    return models.build(load("smoke", ["training.precision=float32"])).double().eval()


def tokens(batch: int = 3, length: int = 60) -> Tensor:
    return torch.randint(0, 512, (batch, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_experts_as_a_permutation_change_nothing(model: Model) -> None:
    before = model(tokens())
    for kept in (0, 16):
        with paced(model, PaceSettings(bank=False, experts=16, kept_experts=kept)):
            torch.testing.assert_close(model(tokens()), before, rtol=0, atol=1e-12)
    with paced(model, PaceSettings(bank=False, experts=16, kept_experts=4)):
        assert (model(tokens()) - before).abs().max() > 1e-4
    assert torch.equal(model(tokens()), before)  # and the plug-ins are gone


@torch.no_grad()
def test_an_empty_bank_changes_nothing(model: Model) -> None:
    """Nothing is stored before the first chunk ends."""
    x = tokens(length=8)
    with paced(model, LOOSE) as counts:
        changed = model(x)
    torch.testing.assert_close(changed, model(x), rtol=0, atol=1e-12)
    assert {layer: c.low for layer, c in counts.items()} == {0: 24, 1: 24}


@torch.no_grad()
@pytest.mark.parametrize("settings", [LOOSE, replace(LOOSE, random=True), replace(LOOSE, update="batch")])
def test_nothing_passes_between_sequences_documents_or_from_the_future(model: Model, settings: PaceSettings) -> None:
    x = tokens()
    documents = (torch.arange(60) >= 23).to(torch.int32).expand(3, 60)
    with paced(model, settings):
        together = model(x)
        alone = torch.cat([model(row) for row in x.split(1)]) if not settings.random else together
        apart = torch.cat([model(x[:, :23]), model(x[:, 23:])], dim=1)
        later = x.clone()
        later[:, 40] = (later[:, 40] + 1) % 512
        torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)
        if not settings.random:
            torch.testing.assert_close(model(x, documents=documents), apart, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(model(later)[:, :40], together[:, :40], rtol=1e-10, atol=1e-10)
    assert not torch.allclose(together, model(x))  # the bank did act


def expected_bank(a: Tensor, s: PaceSettings) -> Tensor:
    """The published procedure token by token, with Python lists: an independent derivation for one sequence (T, F)."""
    slots: list[dict] = [{"k": None, "v": None, "u": 0} for _ in range(s.slots)]
    outputs: list[Tensor] = []
    for start in range(0, len(a), s.chunk):
        chunk, records = a[start : start + s.chunk], []
        for token in chunk:
            filled = [i for i, slot in enumerate(slots) if slot["u"] > 0]
            near = sorted(filled, key=lambda i: -float(F.cosine_similarity(token, slots[i]["k"], dim=0)))[: s.nearest]
            far = sorted(filled, key=lambda i: float(F.cosine_similarity(token, slots[i]["k"], dim=0)))[: s.farthest]
            sims = [float(F.cosine_similarity(token, slots[i]["k"], dim=0)) for i in near]
            mean = (sum(sims) - (s.nearest - len(sims))) / s.nearest  # an empty slot counts as -1
            level = mean if s.similarity == "mean" else max(sims, default=-1.0)
            out = token
            if level > s.low:
                positive = torch.stack([slots[i]["v"] for i in near]).mean(0)
                negative = torch.stack([slots[i]["v"] for i in far]).mean(0)
                out = (1 - s.mix) * token + s.mix * ((1.0 if level > s.high else 0.5) * positive + s.noise * negative)
            outputs.append(out)
            records.append((token, out, mean, near))
        middle = [r for r in records if s.low < r[2] <= s.high]
        hit = sorted({i for r in middle for i in r[3]})
        for i in hit:
            group = middle if s.update == "batch" else [r for r in middle if i in r[3]]
            for what, at in (("k", 0), ("v", 1)):
                slots[i][what] = 0.5 * slots[i][what] + 0.5 * torch.stack([r[at] for r in group]).mean(0)
            slots[i]["u"] += 1
        if s.count_similar:
            for i in {i for r in records if r[2] > s.high for i in r[3]}:
                slots[i]["u"] += 1
        low = [r for r in records if r[2] <= s.low][: s.slots]
        for i, r in zip(sorted(range(s.slots), key=lambda i: slots[i]["u"])[: len(low)], low, strict=True):
            slots[i] = {"k": r[0], "v": r[1], "u": 1}
    return torch.stack(outputs)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", [LOOSE, replace(LOOSE, similarity="max", update="batch", count_similar=False)])
def test_the_bank_is_the_published_procedure(model: Model, settings: PaceSettings, seed: int) -> None:
    ffn = PacedFeedForward(model.blocks[0].persistent, settings)
    # Few directions, so that similar, middling and dissimilar activations all occur.
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(4, 192, generator=g, dtype=torch.float64)
    a = base[torch.randint(0, 4, (90,), generator=g)] + 1.5 * torch.randn(90, 192, generator=g, dtype=torch.float64)
    torch.testing.assert_close(ffn.remember(a[None])[0], expected_bank(a, settings), rtol=1e-9, atol=1e-9)
    counts = ffn.counts
    assert counts.high
    assert counts.middle
    assert counts.low
    assert counts.high + counts.middle + counts.low == 90
    assert 0 <= counts.diversity[0] <= 2


def test_clusters_have_equal_sizes_and_find_what_was_planted() -> None:
    g = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(8, 32, generator=g), dim=-1)
    planted = torch.arange(8).repeat(12)[torch.randperm(96, generator=g)]
    rows = (centres[planted] + 0.05 * torch.randn(96, 32, generator=g)) * (0.5 + torch.rand(96, 1, generator=g))
    order = cluster_units(rows, 8, seed=0)
    assert sorted(order.tolist()) == list(range(96))
    for cluster in planted[order].split(12):
        assert len(set(cluster.tolist())) == 1
    assert torch.equal(order, cluster_units(rows, 8, seed=0))


def test_average_k_gating_keeps_the_units_of_the_chosen_clusters(model: Model) -> None:
    ffn = PacedFeedForward(model.blocks[0].persistent, PaceSettings(bank=False, experts=16, kept_experts=3))
    x = torch.randn(1, 5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gate, up = F.linear(x, ffn.gate_up).chunk(2, -1)
    gate = F.silu(gate)
    for t in range(5):
        best = gate[0, t].view(16, 12).mean(-1).topk(3).indices
        kept = torch.zeros(16, 12, dtype=torch.float64)
        kept[best] = 1
        torch.testing.assert_close(ffn(x)[0, t], ffn.down @ (gate[0, t] * up[0, t] * kept.flatten()))


def test_published_layers_and_released_choices(model: Model) -> None:
    large = models.build(load("smoke", ["model.layers=28", "training.precision=float32"]))
    assert PaceSettings().validate(large) == (12, 26)
    code = PaceSettings.released(slots=50)
    assert (code.high, code.low, code.similarity, code.update, code.slots) == (0.75, 0.25, "max", "batch", 50)
    assert PaceSettings().validate(model) == (0, 1)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("pace.slots=0", PaceSettings(slots=0)),
        ("pace.layers=2", PaceSettings(layers=(2,))),
        ("pace.experts=7", PaceSettings(experts=7)),
        ("pace.kept_experts=5", PaceSettings(experts=4, kept_experts=5)),
        ("pace.update", PaceSettings(update="token")),
        ("pace.low", PaceSettings(low=0.8)),
    ],
)
def test_a_wrong_setting_is_named(model: Model, words: str, settings: PaceSettings) -> None:
    with pytest.raises(UsageError, match=words), paced(model, settings):
        pass


def test_models_without_a_swiglu_and_decoding_are_refused(model: Model) -> None:
    other = models.build(load("smoke", ["model.name=mamba2", "training.precision=float32"]))
    with pytest.raises(UsageError, match="no SwiGLU"), paced(other, PaceSettings()):
        pass
    with paced(model, PaceSettings()), pytest.raises(UsageError, match="cache"):
        model.init_cache(1)
    assert model.init_cache(1).length == 0
