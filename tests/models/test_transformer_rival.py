"""Every variant of the rival transformer against its formula, and the plain transformer when all are off."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mmctl import models
from mmctl.config import load
from mmctl.errors import UsageError
from mmctl.models import flops
from mmctl.models.base import Model


def build(name: str, *words: str) -> Model:
    return models.build(load("smoke", [f"model.name={name}", "training.precision=float32", *words])).double().eval()


def tokens(length: int = 40) -> Tensor:
    return torch.randint(0, 512, (2, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
@pytest.mark.parametrize("words", [[], ["model.position=none"], ["model.initialisation=mosaic"]])
def test_with_everything_off_it_is_the_plain_transformer(words: list[str]) -> None:
    plain, rival = build("transformer", *words), build("transformer-rival", *words)
    for (name, a), (other, b) in zip(plain.named_parameters(), rival.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(a, b)
    torch.testing.assert_close(rival(tokens()), plain(tokens()), rtol=0, atol=1e-13)


@torch.no_grad()
def test_a_short_convolution_starts_as_the_identity() -> None:
    plain, rival = build("transformer"), build("transformer-rival", "model.short_convolution=4")
    torch.testing.assert_close(rival(tokens()), plain(tokens()), rtol=0, atol=1e-13)


@torch.no_grad()
@pytest.mark.parametrize(
    "words",
    [
        ["model.key_smear=true"],
        ["model.short_convolution=3"],
        ["model.qk_norm=true"],
        ["model.position=alibi"],
        ["model.position=none", "model.attention_scale=log-n"],
    ],
)
def test_attention_is_the_formula_of_its_variant(words: list[str]) -> None:
    """One head and query at a time, in plain sums."""
    model = build("transformer-rival", *words)
    c, attention, n = model.config, model.blocks[0].attention, 12
    generator = torch.Generator().manual_seed(2)
    for p in attention.parameters():
        p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    x = torch.randn(1, n, c.width, generator=generator, dtype=torch.float64)
    context = model.context(torch.zeros(1, n, dtype=torch.long), None, None)
    q, k, v = (x[0] @ attention.qkv.weight.T).split(c.width, -1)
    if c.key_smear:
        s = attention.smear.sigmoid().repeat_interleave(c.width // c.heads)
        k = (1 - s) * k + s * torch.cat([torch.zeros(1, c.width, dtype=k.dtype), k[:-1]])
    if c.short_convolution:
        kv = torch.cat([k, v], -1)
        mixed = torch.zeros_like(kv)
        for t in range(n):
            for lag in range(min(t + 1, c.short_convolution)):
                mixed[t] += attention.convolution[lag] * kv[t - lag]
        k, v = mixed.split(c.width, -1)
    d, reads = c.width // c.heads, torch.zeros(n, c.width, dtype=torch.float64)
    for h in range(c.heads):
        part = slice(h * d, (h + 1) * d)
        qh, kh, vh = q[:, part], k[:, part], v[:, part]
        if c.qk_norm:
            qh = qh * (qh.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * attention.query_norm.weight
            kh = kh * (kh.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * attention.key_norm.weight
        if c.position == "rope":
            for rows in (qh, kh):
                turned = rows.clone()
                for t in range(n):
                    for j in range(d // 2):
                        angle = t * c.rope_base ** (-2 * j / d)
                        turned[t, j] = rows[t, j] * math.cos(angle) - rows[t, j + d // 2] * math.sin(angle)
                        turned[t, j + d // 2] = rows[t, j + d // 2] * math.cos(angle) + rows[t, j] * math.sin(angle)
                rows.copy_(turned) if rows.is_contiguous() else rows.set_(turned)
        for t in range(n):
            logits = qh[t] @ kh[: t + 1].T / math.sqrt(d)
            if c.attention_scale == "log-n":
                logits = logits * math.log(t + 1) / math.log(128)
            if c.position == "alibi":
                logits = logits - 2 ** (-8 * (h + 1) / c.heads) * torch.arange(t, -1, -1, dtype=torch.float64)
            reads[t, part] = logits.softmax(-1) @ vh[: t + 1]
    torch.testing.assert_close(attention(x, context)[0], reads @ attention.output.weight.T, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("words", [["model.key_smear=true", "model.qk_norm=true"], ["model.short_convolution=4"]])
def test_every_parameter_is_counted(words: list[str]) -> None:
    model = build("transformer-rival", *words)
    assert flops.parameters(model.config, 512) == model.parameter_count()


def test_impossible_combinations_are_named() -> None:
    for words, message in (
        (["model.short_convolution=1"], r"model\.short_convolution=1"),
        (["model.short_convolution=3", "model.key_smear=true"], "beside model.key_smear"),
        (["model.position=alibbi"], "rope"),
        (["model.attention_scale=log"], "log-n"),
    ):
        with pytest.raises(UsageError, match=message):
            build("transformer-rival", *words)
