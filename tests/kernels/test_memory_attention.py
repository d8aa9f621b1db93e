"""`memory_attention`: two references, the native path against them, and the cases public kernels got wrong."""

from __future__ import annotations

import math

import pytest
import torch
from cases import bandwidth, documents, read, unit_keys
from closeness import TOLERANCE, assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.kernels import memory_attention

SPANS = [{"window": 1}, {"window": 7}, {"window": 64}, {"delay": 1}, {"delay": 23}, {"delay": 64}]
NAMES = ("out", "dkeys", "dvalues", "dbeta0", "dbeta1", "dalpha", "dquery")


def compare(keys, values, bw, tolerance, **kwargs):
    native, reference = read("native", keys, values, bw, **kwargs), read("reference", keys, values, bw, **kwargs)
    for name, a, e in zip(NAMES, native, reference, strict=False):
        assert a.dtype == (keys.dtype if a.dim() == 4 else bw[0].dtype)
        assert_close(name, a, e, tolerance, floor=1e-12 if keys.dtype == torch.float64 else 1e-6)


def loop_over_pairs(keys, values, bw, window, delay, docs):
    """The equations pair by pair, in python floats."""
    batch, heads, length, _ = keys.shape
    out = torch.zeros(batch, heads, length, values.shape[-1], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            beta0, beta1, alpha = (float(p.detach()[h]) for p in bw)
            for t in range(length):
                newest = t - 1 if window else t - delay
                oldest = t - window if window else 0
                seen = [i for i in range(max(0, oldest), newest + 1) if docs is None or docs[b, i] == docs[b, t]]
                if not seen:
                    continue
                beta = beta1 * len(seen) ** alpha + beta0
                weights = [math.exp(beta * float(keys[b, h, t] @ keys[b, h, i])) for i in seen]
                for w, i in zip(weights, seen, strict=True):
                    out[b, h, t] += w / sum(weights) * values[b, h, i]
    return out


@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("span", [{"window": 5}, {"delay": 4}], ids=str)
def test_the_two_references_agree(span, documented):
    keys, values, bw = unit_keys(2, 2, 30, 4), torch.randn(2, 2, 30, 3, dtype=torch.float64), bandwidth(2)
    docs = documents(2, 30, 8) if documented else None
    dense = memory_attention(keys, values, bw, documents=docs, path="reference", **span)
    assert_close("out", dense, loop_over_pairs(keys, values, bw, span.get("window"), span.get("delay"), docs), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("span", SPANS, ids=str)
def test_native_equals_reference(span, documented, dtype):
    length = 150
    keys, values = unit_keys(2, 3, length, 16, dtype), torch.randn(2, 3, length, 12).to(dtype)
    docs = documents(2, length, 40) if documented else None
    compare(keys, values, bandwidth(3, dtype), TOLERANCE[dtype], documents=docs, **span)


@pytest.mark.parametrize("width", [16, 32, 64, 80, 96, 100, 128])
def test_head_widths_and_a_different_value_width(width):
    keys, values = unit_keys(1, 2, 70, width, torch.float32), torch.randn(1, 2, 70, width // 2 + 1)
    compare(keys, values, bandwidth(2, torch.float32), 1e-5, window=16)
    compare(keys, values, bandwidth(2, torch.float32), 1e-5, delay=16)


@pytest.mark.parametrize("length", [1, 2, 15, 63, 64, 65, 100, 111, 2000])
@pytest.mark.parametrize("span", [{"window": 64}, {"delay": 64}], ids=str)
def test_lengths(length, span):
    keys, values = unit_keys(1, 1, length, 8), torch.randn(1, 1, length, 8, dtype=torch.float64)
    compare(keys, values, bandwidth(1), 1e-10, **span)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("delay", [1, 64, 511, 599, 600])
def test_long_sequences(delay, dtype):
    """From 256 positions on the long-term read takes torch's kernel where nothing forbids it."""
    keys, values = unit_keys(2, 2, 600, 8, dtype), torch.randn(2, 2, 600, 8).to(dtype)
    bw = bandwidth(2, dtype, 1.0)
    compare(keys, values, bw, TOLERANCE[dtype], delay=delay)
    compare(keys, values[..., :5], bw, TOLERANCE[dtype], delay=delay)


@pytest.mark.parametrize("scale", [20.0, 300.0, 5000.0])
def test_large_bandwidths_stay_finite_and_right(scale):
    keys, values = unit_keys(1, 2, 100, 8, torch.float32), torch.randn(1, 2, 100, 8)
    bw = tuple(torch.full((2,), c, requires_grad=True) for c in (scale, scale, 0.0))
    out = memory_attention(keys, values, bw, delay=3)
    # The rounding of a float32 score of this size is the error of the weights.
    expected = memory_attention(keys, values, bw, delay=3, path="reference")
    assert_close("out", out, expected, 1e-5 + 2e-7 * scale)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_shape(data):
    length = data.draw(st.integers(1, 90))
    span = data.draw(st.sampled_from(["window", "delay"]))
    reach = data.draw(st.integers(1, 100))
    batch, heads = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    docs = documents(batch, length, data.draw(st.integers(1, 30))) if data.draw(st.booleans()) else None
    keys, values = unit_keys(batch, heads, length, 5), torch.randn(batch, heads, length, 3, dtype=torch.float64)
    compare(keys, values, bandwidth(heads), 1e-10, documents=docs, **{span: reach})


@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("span", [{"window": 6}, {"delay": 5}], ids=str)
def test_the_visible_set(span, documented):
    """One-hot values: what is read at t, over pairs. Positions around h, m, tile edges and document starts."""
    length = 140
    docs = documents(1, length, 15) if documented else None
    keys, values = unit_keys(1, 1, length, 4, torch.float32), torch.eye(length)[None, None]
    out = memory_attention(keys, values, bandwidth(1, torch.float32, 1.0), documents=docs, **span)[0, 0]
    t, i = torch.arange(length)[:, None], torch.arange(length)[None, :]
    visible = (i >= t - 6) & (i <= t - 1) if "window" in span else i <= t - 5
    if documented:
        visible = visible & (docs[0][:, None] == docs[0][None, :])
    assert torch.equal(out > 0, visible)
    assert torch.equal(out != 0, visible)
    assert_close("sums", out.sum(-1), visible.any(-1).float(), 1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("path", ["native", "reference"])
def test_empty_reads_are_exactly_zero_with_zero_finite_gradients(path, alpha):
    """T <= m; t = 0; documents of length 1: nothing is visible anywhere."""
    docs = torch.arange(20, dtype=torch.int32).expand(2, -1)
    for kwargs in ({"delay": 20}, {"delay": 50}, {"window": 3, "documents": docs}, {"delay": 1, "documents": docs}):
        keys, values = unit_keys(2, 2, 20, 4, torch.float32), torch.randn(2, 2, 20, 4)
        bw = (torch.zeros(2), torch.ones(2), torch.full((2,), alpha))
        for result in read(path, keys, values, bw, **kwargs):
            assert torch.equal(result, torch.zeros_like(result))


def test_partly_empty_reads_are_exactly_zero():
    keys, values, bw = unit_keys(1, 2, 100, 4, torch.float32), torch.randn(1, 2, 100, 4), bandwidth(2, torch.float32)
    out = memory_attention(keys, values, bw, delay=33)
    assert torch.equal(out[:, :, :33], torch.zeros_like(out[:, :, :33]))
    assert (out[:, :, 33:] != 0).all()
    docs = torch.tensor([[0] * 40 + [1] * 60], dtype=torch.int32)
    out = memory_attention(keys, values, bw, delay=33, documents=docs)
    empty = torch.tensor([t < 33 or 40 <= t < 73 for t in range(100)])
    assert torch.equal(out[:, :, empty], torch.zeros_like(out[:, :, empty]))
    assert (out[:, :, ~empty] != 0).all()


@pytest.mark.parametrize("span", [{"window": 9}, {"delay": 9}], ids=str)
def test_nan_in_one_sequence_stays_there(span):
    keys, values, bw = unit_keys(3, 2, 80, 4, torch.float32), torch.randn(3, 2, 80, 4), bandwidth(2, torch.float32)
    clean = read("native", keys, values, bw, **span)
    keys[1, :, 40] = float("nan")
    values[1, :, 41] = float("nan")
    dirty = read("native", keys, values, bw, **span)
    for a, e in zip(dirty[:3], clean[:3], strict=True):
        assert torch.equal(a[[0, 2]], e[[0, 2]])
    assert dirty[0][1].isnan().any()


@pytest.mark.parametrize("span", [{"window": 9}, {"delay": 9}, {"delay": 200}], ids=str)
@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("length", [100, 520])
def test_no_element_is_left_unwritten(length, span, documented, poisoned):
    keys, values = unit_keys(2, 2, length, 4, torch.float32), torch.randn(2, 2, length, 4)
    bw, docs = bandwidth(2, torch.float32), documents(2, length, 9) if documented else None
    for kwargs in ({}, {"query": keys[:, :, :3], "query_offset": length - 3}):
        assert all(r.isfinite().all() for r in read("native", keys, values, bw, documents=docs, **span, **kwargs))


@pytest.mark.parametrize("span", [{"window": 9}, {"delay": 9}], ids=str)
def test_strided_inputs_and_gradients(span):
    """Inputs that are slices or transposed; gradients that are a slice of a cat, expanded, or transposed."""
    both = unit_keys(2, 6, 50, 4).permute(1, 0, 2, 3).contiguous().transpose(0, 1)
    values = torch.randn(2, 50, 6, 4, dtype=torch.float64).transpose(1, 2)
    keys, values, bw = both[:, 3:].requires_grad_(), values[:, 3:].requires_grad_(), bandwidth(3)
    plain = memory_attention(keys.contiguous(), values.contiguous(), bw, **span)
    out = memory_attention(keys, values, bw, **span)
    assert torch.equal(out, plain)
    other = torch.randn(2, 3, 50, 4, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 3, 50, 8, dtype=torch.float64)
    for loss in (
        lambda o: (torch.cat([o, other], -1) * weights).sum(),
        lambda o: o.sum(),
        lambda o: (o.transpose(1, 2).reshape(2, 50, 12) * weights.reshape(2, 50, 24)[..., :12]).sum(),
        lambda o: o[..., 0].sum(),
    ):
        actual = torch.autograd.grad(loss(memory_attention(keys, values, bw, **span)), [keys, values, *bw])
        path = memory_attention(keys, values, bw, path="reference", **span)
        for a, e in zip(actual, torch.autograd.grad(loss(path), [keys, values, *bw]), strict=True):
            assert_close("gradient", a, e, 1e-10)


def test_a_view_with_huge_strides():
    """Offsets beyond 2^31 elements, on memory that is mapped but hardly touched."""
    storage = torch.empty(2**32 + 2**12, dtype=torch.bfloat16)
    keys = storage.as_strided((2, 1, 40, 8), (2**32, 512, 8, 1))
    keys.copy_(unit_keys(2, 1, 40, 8, torch.bfloat16))
    values = torch.randn(2, 1, 40, 8).bfloat16()
    bw = bandwidth(1, torch.float32)
    out = memory_attention(keys, values, bw, window=8)
    assert torch.equal(out, memory_attention(keys.clone(), values, bw, window=8))


@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("span", [{"window": 9}, {"delay": 9}, {"window": 70}, {"delay": 1}], ids=str)
def test_decoding_equals_the_whole_sequence(span, documented):
    length = 100
    keys, values, bw = unit_keys(2, 2, length, 4), torch.randn(2, 2, length, 4, dtype=torch.float64), bandwidth(2)
    docs = documents(2, length, 30) if documented else None
    whole = memory_attention(keys, values, bw, documents=docs, **span)
    for start, count in ((0, 3), (50, 1), (97, 3), (5, 90)):
        query = keys[:, :, start : start + count]
        # Only the pairs before the last query are stored yet, as in decoding.
        stored = start + count - 1
        if stored == 0:
            continue
        ids = None if docs is None else docs[:, : start + count]
        part = memory_attention(
            keys[:, :, :stored], values[:, :, :stored], bw, documents=ids, query=query, query_offset=start, **span
        )
        assert_close("part", part, whole[:, :, start : start + count], 1e-12)
        compare(keys, values, bw, 1e-10, documents=docs, query=query, query_offset=start, **span)


def test_queries_past_the_end_of_the_pairs():
    keys, values, bw = unit_keys(1, 2, 20, 4), torch.randn(1, 2, 20, 4, dtype=torch.float64), bandwidth(2)
    for span in ({"window": 4}, {"delay": 4}):
        compare(keys, values, bw, 1e-10, query=unit_keys(1, 2, 12, 4), query_offset=18, **span)


@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("span", [{"window": 3}, {"delay": 4}, {"delay": 40}], ids=str)
def test_gradcheck(span, documented):
    docs = documents(2, 12, 6) if documented else None
    keys, values = unit_keys(2, 2, 12, 3).requires_grad_(), torch.randn(2, 2, 12, 2, dtype=torch.float64)
    values, bw, query = values.requires_grad_(), bandwidth(2), unit_keys(2, 2, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda k, v, *b: memory_attention(k, v, b, documents=docs, **span), (keys, values, *bw)
    )
    assert torch.autograd.gradcheck(
        lambda k, v, q, *b: memory_attention(k, v, b, documents=docs, query=q, query_offset=9, **span),
        (keys, values, query, *bw),
    )


@pytest.mark.parametrize("span", [{"window": 9}, {"delay": 9}], ids=str)
def test_repeats_are_bitwise_equal(span):
    keys, values, bw = unit_keys(2, 2, 150, 8, torch.float32), torch.randn(2, 2, 150, 8), bandwidth(2, torch.float32)
    first, second = (read("native", keys, values, bw, **span) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_inference_mode_does_not_spoil_later_calls():
    keys, values, bw = unit_keys(1, 2, 50, 8, torch.float32), torch.randn(1, 2, 50, 8), bandwidth(2, torch.float32)
    with torch.inference_mode():
        inside = memory_attention(keys, values, bw, window=4)
    assert torch.equal(inside, read("native", keys, values, bw, window=4)[0])


def test_autocast_does_not_reach_inside():
    keys, values, bw = unit_keys(1, 2, 50, 8, torch.float32), torch.randn(1, 2, 50, 8), bandwidth(2, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = memory_attention(keys, values, bw, delay=4)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, memory_attention(keys, values, bw, delay=4))
