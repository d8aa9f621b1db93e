"""`key_scan`: two references, the native path against them, extreme gates, documents and carried state."""

from __future__ import annotations

import math

import pytest
import torch
from cases import documents, scan, scan_inputs
from closeness import TOLERANCE, assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.kernels import key_scan

NAMES = ("keys", "sum", "dx", "dlog_gate", "dlog_decay", "dsum", "dmaximum")


def compare(inputs, tolerance, state=None, docs=None):
    native = scan("native", *inputs, state=state, documents=docs)
    reference = scan("reference", *inputs, state=state, documents=docs)
    narrow = inputs[0].dtype != torch.float64
    for name, a, e in zip(NAMES, native, reference, strict=False):
        assert_close(name, a, e, tolerance, floor=1e-6 if narrow else 1e-13)


def random_state(batch, heads, width, dtype, std=1.0):
    return torch.randn(batch, heads, width, dtype=dtype), std * torch.randn(batch, heads, dtype=dtype)


@pytest.mark.parametrize("documented", [False, True])
def test_the_two_references_agree(documented):
    x, gate, decay = scan_inputs(2, 2, 40, 3)
    docs = documents(2, 40, 9) if documented else None
    dense = key_scan(x, gate, decay, documents=docs, path="reference")
    for b in range(2):
        for h in range(2):
            kbar = torch.zeros(3, dtype=torch.float64)
            for t in range(40):
                restart = documented and t > 0 and docs[b, t] != docs[b, t - 1]
                kept = 0.0 if restart else math.exp(float(decay[b, h, t]))
                kbar = math.exp(float(gate[b, h, t])) * x[b, h, t] + kept * kbar
                assert_close("key", dense[b, h, t], kbar / kbar.norm(), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 100, 300])
def test_native_equals_reference(length, carried, documented, dtype):
    """300 positions are more than one chunk of chunks."""
    inputs = scan_inputs(2, 3, length, 16, dtype)
    state = random_state(2, 3, 16, inputs[1].dtype) if carried else None
    compare(inputs, TOLERANCE[dtype], state, documents(2, length) if documented else None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("documented", [False, True])
def test_long_and_extreme_gates(documented, dtype):
    """Log-gate standard deviation 40 over 2000 positions: finite, and accurate to 1e-4."""
    inputs = scan_inputs(1, 2, 2000, 8, dtype, std=40.0)
    tolerance = max(1e-4, TOLERANCE[dtype]) if dtype != torch.float64 else 1e-10
    compare(inputs, tolerance, None, documents(1, 2000) if documented else None)


def test_tiny_gates_are_not_lost():
    """All log gates far below 0: a running maximum that starts at 0 would lose them."""
    x, gate, decay = scan_inputs(1, 1, 50, 4, torch.float32)
    assert_close("keys", key_scan(x, gate - 200, decay), key_scan(x, gate, decay), 1e-4)


@pytest.mark.parametrize("width", [16, 32, 64, 80, 96, 100, 128])
def test_head_widths(width):
    compare(scan_inputs(1, 2, 40, width, torch.float32), 1e-5)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_shape(data):
    length, width = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 9))
    batch, heads = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    inputs = scan_inputs(batch, heads, length, width, std=data.draw(st.floats(0.1, 5.0)))
    state = random_state(batch, heads, width, torch.float64) if data.draw(st.booleans()) else None
    docs = documents(batch, length, data.draw(st.integers(1, 30))) if data.draw(st.booleans()) else None
    # With width 1 every key is +1 or -1 and all gradients are 0 up to rounding.
    compare(inputs, 1e-10, state, docs)


@pytest.mark.parametrize("path", ["native", "reference"])
def test_zero_kbar_gives_zero_key_and_zero_gradient(path):
    x, gate, decay = scan_inputs(2, 2, 40, 4, torch.float32)
    x = x.clone()
    x[:, :, :20] = 0
    results = scan(path, x, gate, decay)
    assert torch.equal(results[0][:, :, :20], torch.zeros_like(x[:, :, :20]))
    assert all(r.isfinite().all() for r in results)
    for result in scan(path, torch.zeros_like(x), gate, decay)[2:]:
        # The carried sum alone passes a gradient.
        assert result.isfinite().all()
    inputs = [t.requires_grad_() for t in (torch.zeros_like(x), gate, decay)]
    for gradient in torch.autograd.grad(key_scan(*inputs, path=path).sum(), inputs):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("path", ["native", "reference"])
def test_a_closed_gate_adds_nothing(path):
    x, gate, decay = scan_inputs(1, 2, 40, 4)
    gate[:, :, :5] = -torch.inf
    gate[:, :, 30] = -torch.inf
    docs = torch.tensor([[0] * 30 + [1] * 10])
    keys = key_scan(x, gate, decay, documents=docs, path=path)
    assert torch.equal(keys[:, :, :5], torch.zeros_like(keys[:, :, :5]))
    assert torch.equal(keys[:, :, 30], torch.zeros_like(keys[:, :, 30]))
    assert all(r.isfinite().all() for r in scan(path, x, gate, decay, documents=docs))


def test_fixed_extractor_with_expanded_gates():
    """v1: log_gate = 0 and log_decay = log lambda, stride 0; their gradients reach lambda."""
    x = torch.randn(2, 3, 50, 4, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    log_lambda = torch.tensor([-0.5, -1.0, -5.0], dtype=torch.float64, requires_grad=True)
    results = []
    for path in ("native", "reference"):
        decay = log_lambda.view(1, 3, 1).expand(2, 3, 50)
        keys = key_scan(x, zero.expand(2, 3, 50), decay, path=path)
        results.append((keys, torch.autograd.grad(keys[..., 0].sum(), log_lambda)[0]))
    for a, e in zip(*results, strict=True):
        assert_close("fixed", a, e, 1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("cuts", [(1, 2, 3), (16, 50), (33,)], ids=str)
def test_chained_states_equal_one_long_scan(cuts, dtype):
    """Keys, state and gradients, the latter through the states."""
    length = 60
    inputs = [t.requires_grad_() for t in scan_inputs(2, 2, length, 4, dtype)]
    whole, (total, maximum) = key_scan(*inputs, return_state=True)
    state, parts = None, []
    for start, end in zip((0, *cuts), (*cuts, length), strict=True):
        part, state = key_scan(*(t[:, :, start:end] for t in inputs), state=state, return_state=True)
        parts.append(part)
    chained = torch.cat(parts, 2)
    tolerance = TOLERANCE[dtype]
    assert_close("keys", chained, whole, tolerance)
    scale = (state[1] - maximum).exp().unsqueeze(-1)
    assert_close("state", state[0] * scale, total, tolerance)
    weights = torch.randn_like(whole)
    expected = torch.autograd.grad((whole * weights).sum(), inputs)
    for a, e in zip(torch.autograd.grad((chained * weights).sum(), inputs), expected, strict=True):
        assert_close("gradient", a, e, tolerance)


@pytest.mark.parametrize("documented", [False, True])
def test_gradcheck(documented):
    x, gate, decay = (t.contiguous().requires_grad_() for t in scan_inputs(2, 2, 20, 3))
    docs = documents(2, 20, 8) if documented else None
    total, maximum = (t.requires_grad_() for t in random_state(2, 2, 3, torch.float64))
    assert torch.autograd.gradcheck(lambda *a: key_scan(*a, documents=docs), (x, gate, decay))

    def carried(x, gate, decay, total, maximum):
        # kbar itself: the split into sum and maximum is a choice of scale.
        keys, (end, top) = key_scan(x, gate, decay, state=(total, maximum), documents=docs, return_state=True)
        return keys, end * top.exp().unsqueeze(-1)

    assert torch.autograd.gradcheck(carried, (x, gate, decay, total, maximum))


def test_nan_in_one_sequence_stays_there():
    x, gate, decay = scan_inputs(3, 2, 70, 4, torch.float32)
    clean = scan("native", x, gate, decay)
    x = x.clone()
    x[1, :, 20] = float("nan")
    gate[1, :, 30] = float("nan")
    for a, e in zip(scan("native", x, gate, decay), clean, strict=True):
        assert torch.equal(a[[0, 2]], e[[0, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("carried", [False, True])
def test_no_element_is_left_unwritten(carried, dtype, poisoned):
    for length in (1, 40, 48, 300):
        inputs = scan_inputs(2, 2, length, 4, dtype)
        state = random_state(2, 2, 4, torch.float32) if carried else None
        assert all(r.isfinite().all() for r in scan("native", *inputs, state=state))


def test_strided_inputs_and_gradients():
    x, gate, decay = scan_inputs(2, 3, 40, 4)
    projection = torch.randn(2, 40, 24, dtype=torch.float64, requires_grad=True)
    gate, decay = gate.transpose(1, 2).contiguous().transpose(1, 2), decay.requires_grad_()
    other, weights = torch.randn_like(x), torch.randn(2, 3, 40, 8, dtype=torch.float64)
    losses = (lambda k: (torch.cat([k, other], -1) * weights).sum(), lambda k: k.sum(), lambda k: k[..., 1].sum())
    for loss in losses:
        results = []
        for path in ("native", "reference"):
            view = projection.view(2, 40, 6, 4).transpose(1, 2)[:, 3:]
            results.append(torch.autograd.grad(loss(key_scan(view, gate, decay, path=path)), [projection, decay]))
        for a, e in zip(*results, strict=True):
            assert_close("gradient", a, e, 1e-10)


def test_repeats_are_bitwise_equal():
    inputs = scan_inputs(2, 2, 150, 8, torch.float32)
    first, second = (scan("native", *inputs) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_autocast_does_not_reach_inside():
    inputs = scan_inputs(1, 2, 50, 8, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = key_scan(*inputs)
    assert torch.equal(inside, key_scan(*inputs))
