"""`key_scan` on its Triton path against both references: chunks, documents, states, extreme gates."""

from __future__ import annotations

import math

import pytest
import torch
from cases import documents, scan_inputs
from closeness import TOLERANCE, assert_close
from on_device import DEVICE, DTYPES, interpreted, scan

from mmctl.kernels import key_scan
from mmctl.kernels.triton_tiles import CARRY_CHUNKS, SCAN_CHUNK

NAMES = ("keys", "sum", "dx", "dlog_gate", "dlog_decay", "dsum", "dmaximum")


def compare(inputs, tolerance=None, state=None, docs=None):
    """Require keys, carried sum and every gradient to be those of the dense reference."""
    tolerance = TOLERANCE[inputs[0].dtype] if tolerance is None else tolerance
    actual = scan("triton", *inputs, state=state, documents=docs)
    expected = scan("reference", *inputs, state=state, documents=docs)
    for name, a, e in zip(NAMES, actual, expected, strict=False):
        assert_close(name, a, e, tolerance, floor=1e-6)


def random_state(batch, heads, width):
    return torch.randn(batch, heads, width), torch.randn(batch, heads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("length", [1, 15, 32, 63, 100, 111])
def test_forward_and_every_gradient(length, carried, documented, dtype):
    state = random_state(2, 2, 16) if carried else None
    compare(scan_inputs(2, 2, length, 16, dtype), None, state, documents(2, length) if documented else None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("documented", [False, True])
def test_a_loop_over_positions_agrees(documented, dtype):
    """The recurrence as written, position by position, with its gradients."""
    docs = documents(1, 70, 20) if documented else None
    inputs = [t.requires_grad_() for t in scan_inputs(1, 2, 70, 16, dtype)]
    kbar, keys = torch.zeros(1, 2, 16, dtype=torch.float64), []
    for t in range(70):
        restart = documented and t > 0 and bool(docs[0, t] != docs[0, t - 1])
        x, gate, decay = (i[:, :, t].double() for i in inputs)
        kbar = (0 if restart else decay.exp().unsqueeze(-1) * kbar) + gate.exp().unsqueeze(-1) * x
        keys.append(kbar / kbar.norm(dim=-1, keepdim=True))
    expected = torch.stack(keys, 2)
    on_device = [t.detach().to(DEVICE).requires_grad_() for t in inputs]
    ids = None if docs is None else docs.to(DEVICE)
    actual = key_scan(*on_device, documents=ids, path="triton")
    weights = torch.randn(expected.shape)
    gradients = torch.autograd.grad((actual * weights.to(DEVICE)).sum(), on_device)
    references = torch.autograd.grad((expected * weights).sum(), inputs)
    for a, e in zip((actual, *gradients), (expected, *references), strict=True):
        assert_close("loop", a.cpu(), e, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("documented", [False, True])
def test_longer_than_one_chunk_and_block_with_extreme_gates(documented, dtype):
    """Log-gate standard deviation 40, forward and reverse pass over more than one group of chunks; accurate to 1e-4."""
    length = SCAN_CHUNK * CARRY_CHUNKS + 40
    docs = documents(1, length) if documented else None
    compare(scan_inputs(1, 1, length, 16, dtype, std=40.0), max(1e-4, TOLERANCE[dtype]), None, docs)


@pytest.mark.parametrize("mean", [3, 700])
@pytest.mark.parametrize("length", [SCAN_CHUNK * CARRY_CHUNKS - 1, SCAN_CHUNK * CARRY_CHUNKS + SCAN_CHUNK])
def test_documents_that_begin_and_end_anywhere_in_a_group_of_chunks(length, mean):
    """Slow decay, so that a chunk still sees the first of its group; a state carried in."""
    x, gate, decay = scan_inputs(1, 1, length, 16, torch.float32)
    compare((x, gate, decay / 500), None, random_state(1, 1, 16), documents(1, length, mean))


def test_documents_of_length_1_are_their_own_directions():
    x, gate, decay = scan_inputs(1, 2, 70, 16, torch.float32)
    keys = scan("triton", x, gate, decay, documents=torch.arange(70)[None])[0]
    assert_close("keys", keys, torch.nn.functional.normalize(x, dim=-1), 1e-6)


def test_2000_positions():
    compare(scan_inputs(1, 1, 2000, 16, torch.float32), docs=documents(1, 2000, 300))


@pytest.mark.parametrize("width", [5, 16, 32, 64, 80, 96, 100, 128])
def test_head_widths(width):
    compare(scan_inputs(1, 2, 40, width, DTYPES[-1]), state=random_state(1, 2, width))


def test_tiny_gates_are_not_lost():
    """All log gates far below 0: a running maximum that starts at 0 would lose them."""
    x, gate, decay = scan_inputs(1, 1, 50, 16, torch.float32)
    compare((x, gate - 200, decay), tolerance=1e-4)


def test_zero_kbar_gives_zero_key_and_zero_gradient():
    x, gate, decay = scan_inputs(1, 2, 80, 16, torch.float32)
    x = torch.zeros_like(x)
    inputs = [t.to(DEVICE).requires_grad_() for t in (x, gate, decay)]
    keys = key_scan(*inputs, path="triton")
    for result in (keys, *torch.autograd.grad(keys.sum(), inputs)):
        assert torch.equal(result, torch.zeros_like(result))


def test_a_closed_gate_adds_nothing():
    x, gate, decay = scan_inputs(1, 2, 80, 16, torch.float32)
    gate[:, :, :40] = -torch.inf
    gate[:, :, 70] = -torch.inf
    docs = torch.tensor([[0] * 70 + [1] * 10])
    results = scan("triton", x, gate, decay, documents=docs)
    keys = results[0]
    assert torch.equal(keys[:, :, :40], torch.zeros_like(keys[:, :, :40]))
    assert torch.equal(keys[:, :, 70], torch.zeros_like(keys[:, :, 70]))
    assert all(r.isfinite().all() for r in results)


@pytest.mark.parametrize("cuts", [(1, 2, 3), (32, 50), (33,)], ids=str)
def test_chained_states_equal_one_long_scan(cuts):
    """Keys, state and gradients, the latter through the states."""
    length = 80
    inputs = [t.to(DEVICE).requires_grad_() for t in scan_inputs(1, 2, length, 16, torch.float32)]
    whole, (total, maximum) = key_scan(*inputs, return_state=True, path="triton")
    state, parts = None, []
    for start, end in zip((0, *cuts), (*cuts, length), strict=True):
        part, state = key_scan(*(t[:, :, start:end] for t in inputs), state=state, return_state=True, path="triton")
        parts.append(part)
    chained = torch.cat(parts, 2)
    assert_close("keys", chained, whole, 1e-5)
    assert_close("state", state[0] * (state[1] - maximum).exp().unsqueeze(-1), total, 1e-5)
    weights = torch.randn(whole.shape).to(DEVICE)
    expected = torch.autograd.grad((whole * weights).sum(), inputs)
    for a, e in zip(torch.autograd.grad((chained * weights).sum(), inputs), expected, strict=True):
        assert_close("gradient", a, e, 1e-5)


def test_nan_in_one_sequence_stays_in_that_sequence():
    x, gate, decay = scan_inputs(3, 2, 80, 16, torch.float32)
    clean = scan("triton", x, gate, decay)
    x = x.clone()
    x[1, :, 20] = float("nan")
    gate[1, :, 30] = float("nan")
    for a, e in zip(scan("triton", x, gate, decay), clean, strict=True):
        assert torch.equal(a[[0, 2]], e[[0, 2]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("carried", [False, True])
def test_no_element_is_left_unwritten(carried, dtype, poisoned):
    for length in (1, 40, 96):
        state = random_state(1, 2, 20) if carried else None
        assert all(r.isfinite().all() for r in scan("triton", *scan_inputs(1, 2, length, 20, dtype), state=state))


def test_a_gradient_that_is_a_slice_of_a_cat_expanded_or_transposed():
    """And x as a slice of a projection, gates that are transposed or expanded."""
    projection = torch.randn(2, 40, 96).to(DEVICE).requires_grad_()
    gate = torch.randn(2, 40, 3).to(DEVICE).transpose(1, 2)
    decay = torch.full((3,), -0.5).to(DEVICE).requires_grad_()
    other, weights = torch.randn(2, 3, 40, 16, device=DEVICE), torch.randn(2, 3, 40, 32, device=DEVICE)
    for loss in (
        lambda k: (torch.cat([k, other], -1) * weights).sum(),
        lambda k: k.sum(),
        lambda k: k.transpose(1, 2).reshape(2, 40, 48)[..., :20].sum(),
        lambda k: k[..., 1].sum(),
    ):
        results = []
        for path in ("triton", "reference"):
            view = projection.view(2, 40, 6, 16).transpose(1, 2)[:, 3:]
            keys = key_scan(view, gate, decay.view(1, 3, 1).expand(2, 3, 40), path=path)
            results.append(torch.autograd.grad(loss(keys), [projection, decay]))
        for (a, e), tolerance in zip(zip(*results, strict=True), (1e-5, 5e-5), strict=True):
            # That of the one decay is a sum over positions in which most cancels.
            assert_close("gradient", a, e, tolerance)


def test_int32_offset_overflow():
    """A view whose strides times positions pass 2^31 elements, on memory that is hardly touched."""
    if not interpreted() and torch.cuda.mem_get_info()[0] < 2**35:
        pytest.skip("needs 32 GiB of free GPU memory")
    plain, gate, decay = (t.to(DEVICE) for t in scan_inputs(1, 1, 40, 16, torch.float16))
    far = torch.empty(40 * 2**26, dtype=torch.float16, device=DEVICE).as_strided(plain.shape, (16, 16, 2**26, 1))
    far.copy_(plain)
    results = []
    for x in (far.requires_grad_(), plain.detach().requires_grad_()):
        keys = key_scan(x, gate, decay, path="triton")
        results.append([keys, *torch.autograd.grad(keys[..., 0].sum(), [x])])
    assert all(torch.equal(a, e) for a, e in zip(*results, strict=True))


def test_tensors_on_a_device_that_is_not_the_current_one():
    if interpreted() or torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    given, results = scan_inputs(1, 2, 100, 16, torch.float32), []
    for device in ("cuda:0", "cuda:1"):
        leaves = [t.to(device).requires_grad_() for t in given]
        keys = key_scan(*leaves, path="triton")
        results.append([r.cpu() for r in (keys, *torch.autograd.grad(keys[..., 0].sum(), leaves))])
    assert all(torch.equal(a, e) for a, e in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_first_call_equals_the_second_and_repeats_are_bitwise_equal(dtype):
    given = scan_inputs(1, 2, 100 if interpreted() else 2000, 16 if interpreted() else 64, dtype)
    first = scan("triton", *given)
    for _ in range(1 if interpreted() else 30):
        assert all(torch.equal(a, b) for a, b in zip(first, scan("triton", *given), strict=True))


def test_a_single_head_width_of_one_is_a_sign():
    x, gate, decay = scan_inputs(1, 1, 10, 1, torch.float32)
    keys = scan("triton", x, gate, decay)[0]
    assert_close("signs", keys.abs(), torch.ones_like(keys), 1e-6)
    assert math.isclose(float(keys[0, 0, 0, 0]), math.copysign(1, float(x[0, 0, 0, 0])), rel_tol=1e-6)
