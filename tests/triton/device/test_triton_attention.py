"""`memory_attention` on its Triton path against both references: the cases public kernels got wrong, by name."""

from __future__ import annotations

import pytest
import torch
from cases import bandwidth, documents, unit_keys
from closeness import assert_close
from on_device import DEVICE, DTYPES, compare, interpreted, read

from mmctl.kernels import memory_attention

SPANS = [{"window": 1}, {"window": 7}, {"window": 64}, {"delay": 1}, {"delay": 23}, {"delay": 64}]
BOTH = [{"window": 9}, {"delay": 9}]


def inputs(length, width=16, value_width=None, dtype=torch.float32, batch=1, heads=2, size=4.0):
    values = torch.randn(batch, heads, length, value_width or width).to(dtype)
    return unit_keys(batch, heads, length, width, dtype), values, bandwidth(heads, torch.float32, size)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("span", SPANS, ids=str)
def test_forward_and_every_gradient(span, documented, dtype):
    docs = documents(2, 135, 40) if documented else None
    compare(*inputs(135, value_width=12, dtype=dtype, batch=2, heads=1), documents=docs, **span)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("span", [{"window": 5}, {"delay": 4}], ids=str)
def test_the_reference_over_pairs_agrees(span, dtype):
    compare(*inputs(40, dtype=dtype), path="loop", documents=documents(1, 40, 12), **span)
    compare(*inputs(40, dtype=dtype), path="loop", query=unit_keys(1, 2, 3, 16, dtype), query_offset=38, **span)


@pytest.mark.parametrize("width", [5, 16, 32, 64, 80, 96, 100, 128])
def test_head_widths_and_a_different_value_width(width):
    dtype = DTYPES[-1]
    compare(*inputs(70, width, width // 2 + 1, dtype), window=16)
    compare(*inputs(70, width // 2 + 1, width, dtype), delay=16)


def test_head_widths_in_float32():
    compare(*inputs(40, 128, 100), window=16)
    compare(*inputs(40, 80, 64), delay=16)


def test_a_head_too_wide_is_an_error_that_says_what_is_supported():
    keys, values, bw = inputs(5, 129)
    with pytest.raises(ValueError, match=r"^path: .* up to 128"):
        read("triton", keys, values, bw, window=2)


@pytest.mark.parametrize("length", [1, 15, 63, 100, 111, 2000])
@pytest.mark.parametrize("span", [{"window": 64}, {"delay": 64}], ids=str)
def test_lengths(length, span):
    compare(*inputs(length, dtype=DTYPES[-1], heads=1), **span)


@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("reach", [1, 31, 32, 33, 64])
@pytest.mark.parametrize("kind", ["window", "delay"])
def test_window_off_by_one(kind, reach, documented):
    """One-hot values: what is read at t, over pairs. Positions around h, m, tile edges and document starts."""
    length = 100
    docs = documents(1, length, 15) if documented else None
    keys, bw = unit_keys(1, 1, length, 16, torch.float32), bandwidth(1, torch.float32, 1.0)
    out = read("triton", keys, torch.eye(length)[None, None], bw, documents=docs, **{kind: reach})[0][0, 0]
    t, i = torch.arange(length)[:, None], torch.arange(length)[None, :]
    visible = (i >= t - reach) & (i <= t - 1) if kind == "window" else i <= t - reach
    if documented:
        visible = visible & (docs[0][:, None] == docs[0][None, :])
    assert torch.equal(out != 0, visible)
    assert_close("sums", out.sum(-1), visible.any(-1).float(), 1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_fully_masked_rows_and_tiles_are_exactly_zero_with_zero_gradients(alpha, poisoned):
    """T <= m; t = 0; documents of length 1: nothing is visible anywhere."""
    docs = torch.arange(70, dtype=torch.int32).expand(2, -1)
    for kwargs in ({"delay": 70}, {"delay": 150}, {"window": 3, "documents": docs}, {"delay": 1, "documents": docs}):
        keys, values, _ = inputs(70, dtype=DTYPES[-1], batch=2)
        for result in read("triton", keys, values, (torch.zeros(2), torch.ones(2), torch.full((2,), alpha)), **kwargs):
            assert torch.equal(result, torch.zeros_like(result))


@pytest.mark.parametrize("mean", [2, 6, 25])
@pytest.mark.parametrize("span", [{"window": 30}, {"delay": 12}], ids=str)
def test_documents_shorter_than_the_delay_the_window_and_the_tile(span, mean):
    compare(*inputs(130, batch=2, heads=1), documents=documents(2, 130, mean), **span)


@pytest.mark.parametrize("span", BOTH, ids=str)
def test_nan_in_one_sequence_stays_in_that_sequence(span):
    keys, values, bw = inputs(80, batch=3, heads=1)
    clean = read("triton", keys, values, bw, **span)
    keys[1, :, 40] = float("nan")
    values[1, :, 41] = float("nan")
    dirty = read("triton", keys, values, bw, **span)
    for a, e in zip(dirty[:3], clean[:3], strict=True):
        assert torch.equal(a[[0, 2]], e[[0, 2]])
    assert dirty[0][1].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("span", [{"window": 9}, {"delay": 40}], ids=str)
def test_no_element_is_left_unwritten(span, dtype, poisoned):
    keys, values, bw = inputs(100, 20, 24, dtype, batch=2, heads=1)
    for docs in (None, documents(2, 100, 9)):
        for kwargs in ({}, {"query": keys[:, :, :3], "query_offset": 97}):
            assert all(r.isfinite().all() for r in read("triton", keys, values, bw, documents=docs, **span, **kwargs))


@pytest.mark.parametrize("span", BOTH, ids=str)
def test_a_gradient_that_is_a_slice_of_a_cat_expanded_or_transposed(span):
    """And inputs that are slices of a head-major tensor, or transposed."""
    keys = unit_keys(4, 1, 50, 16, torch.float32).to(DEVICE).transpose(0, 1)[:, 2:].requires_grad_()
    values = torch.randn(1, 50, 4, 16).to(DEVICE).transpose(1, 2)[:, 2:].requires_grad_()
    bw = [p.detach().to(DEVICE).requires_grad_() for p in bandwidth(2, torch.float32)]
    other, weights = torch.randn(1, 2, 50, 16, device=DEVICE), torch.randn(1, 2, 50, 32, device=DEVICE)
    for loss in (
        lambda o: (torch.cat([o, other], -1) * weights).sum(),
        lambda o: o.sum(),
        lambda o: (o.transpose(1, 2).reshape(1, 50, 32) * weights.reshape(1, 50, 64)[..., :32]).sum(),
        lambda o: o[..., 0].sum(),
    ):
        results = []
        for path in ("triton", "reference"):
            out = memory_attention(keys, values, tuple(bw), path=path, **span)
            results.append([out, *torch.autograd.grad(loss(out), [keys, values, *bw])])
        for a, e in zip(*results, strict=True):
            assert_close("gradient", a, e, 1e-5, floor=1e-6)


@pytest.mark.parametrize("span", BOTH, ids=str)
@pytest.mark.parametrize("place", ["time", "batch"])
def test_int32_offset_overflow(place, span):
    """Views with strides whose products pass 2^31 elements, on memory that is mapped but hardly touched; and back."""
    if not interpreted() and torch.cuda.mem_get_info()[0] < 3 * 2**33:
        pytest.skip("needs 24 GiB of free GPU memory")
    dtype = DTYPES[-1]
    plain, values, bw = inputs(40, dtype=dtype, batch=2, heads=1)
    size, strides = (2 * 40 * 2**26, (16, 16, 2**27, 1)) if place == "time" else (2**32 + 2**12, (2**32, 16, 16, 1))
    far = torch.empty(size, dtype=dtype, device=DEVICE).as_strided(plain.shape, strides)
    far.copy_(plain)
    values, *bw = (t.detach().to(DEVICE).requires_grad_() for t in (values, *bw))
    results = []
    for keys in (far.requires_grad_(), plain.to(DEVICE).requires_grad_()):
        out = memory_attention(keys, values, tuple(bw), path="triton", **span)
        results.append([out, *torch.autograd.grad(out.square().sum(), [keys, values, *bw])])
    assert all(torch.equal(a, e) for a, e in zip(*results, strict=True))


@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("span", [{"window": 9}, {"window": 70}, {"delay": 1}, {"delay": 9}], ids=str)
def test_decoding_equals_the_whole_sequence(span, documented):
    """Only the pairs before the last query are stored yet."""
    keys, values, bw = inputs(100)
    docs = documents(1, 100, 30) if documented else None
    whole = read("triton", keys, values, bw, documents=docs, **span)[0]
    for start, count in ((0, 3), (50, 1), (97, 3), (5, 90)):
        end = start + count
        kwargs = {"query": keys[:, :, start:end], "query_offset": start, **span}
        kwargs["documents"] = None if docs is None else docs[:, :end]
        part = compare(keys[:, :, : end - 1], values[:, :, : end - 1], bw, **kwargs)
        assert_close("part", part[0], whole[:, :, start:end], 1e-5)


def test_queries_past_the_end_of_the_pairs():
    for span in ({"window": 4}, {"delay": 4}):
        compare(*inputs(20), query=unit_keys(1, 2, 12, 16, torch.float32), query_offset=18, **span)


@pytest.mark.parametrize("scale", [20.0, 300.0])
def test_large_bandwidths_stay_finite_and_right(scale):
    keys, values, _ = inputs(100)
    bw = tuple(torch.full((2,), c) for c in (scale, scale, 0.0))
    # The rounding of a float32 score of this size is the error of the weights.
    compare(keys, values, bw, delay=3, tolerance=1e-5 + 1e-6 * scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("span", BOTH, ids=str)
def test_the_first_call_equals_the_second_and_repeats_are_bitwise_equal(span, dtype):
    given = inputs(100 if interpreted() else 1000, 16 if interpreted() else 64, dtype=dtype)
    first = read("triton", *given, **span)
    for _ in range(1 if interpreted() else 30):
        assert all(torch.equal(a, b) for a, b in zip(first, read("triton", *given, **span), strict=True))


def test_a_new_delay_finds_the_kernels_compiled():
    if interpreted():
        pytest.skip("nothing is compiled; test_triton_compiled.py counts variants with a stub driver")
    from mmctl.kernels import triton_attention as kernels

    given = inputs(300, 64, dtype=torch.bfloat16)
    jitted = [getattr(kernels, name) for name in dir(kernels) if name.endswith("_kernel")]
    read("triton", *given, delay=64)
    before = [len(k.device_caches[0][0]) for k in jitted]
    for delay in range(65, 257, 16):
        read("triton", *given, delay=delay)
    assert [len(k.device_caches[0][0]) for k in jitted] == before


def test_tensors_on_a_device_that_is_not_the_current_one():
    """Forward and backward on cuda:1 while cuda:0 is current."""
    if interpreted() or torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    keys, values, bw = inputs(100)
    results = []
    for device in ("cuda:0", "cuda:1"):
        leaves = [t.detach().to(device).requires_grad_() for t in (keys, values, *bw)]
        out = memory_attention(*leaves[:2], tuple(leaves[2:]), window=9, path="triton")
        assert out.device == torch.device(device)
        results.append([r.cpu() for r in (out, *torch.autograd.grad(out.square().sum(), leaves))])
    assert torch.cuda.current_device() == 0
    assert all(torch.equal(a, e) for a, e in zip(*results, strict=True))


@pytest.mark.parametrize("name", ["values", "documents", "bandwidth: beta1", "query"])
def test_a_cpu_tensor_given_to_the_cuda_path_is_a_clear_error(name):
    if interpreted():
        pytest.skip("everything is on the CPU; test_triton_compiled.py gives the CUDA path CPU keys")
    keys, values, bw = inputs(20)
    keys, values, bw = keys.to(DEVICE), values.to(DEVICE), [p.to(DEVICE) for p in bw]
    given = {"documents": None, "query": None}
    if name == "values":
        values = values.cpu()
    elif name == "bandwidth: beta1":
        bw[1] = bw[1].cpu()
    else:
        given[name] = documents(1, 20) if name == "documents" else keys.cpu()
    with pytest.raises(ValueError, match=f"^{name}: device cpu differs"):
        memory_attention(keys, values, tuple(bw), window=3, path="triton", **given)


def test_autocast_does_not_reach_inside():
    keys, values, bw = (t.to(DEVICE) if isinstance(t, torch.Tensor) else t for t in inputs(50))
    bw = tuple(p.to(DEVICE) for p in bw)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        inside = memory_attention(keys, values, bw, delay=4, path="triton")
    assert torch.equal(inside, memory_attention(keys, values, bw, delay=4, path="triton"))
