"""`state_space_scan` on its Triton path against the recurrence in float64: chunks, documents, states, strong decay."""

from __future__ import annotations

import pytest
import torch
from cases import documents
from closeness import TOLERANCE, assert_close
from on_device import DEVICE, DTYPES, interpreted, recur
from torch._dynamo.testing import CompileCounterWithBackend

from mmctl.kernels.state_space import state_space_scan, state_space_scan_op

NAMES = ("y", "end", "dx", "dlog_decay", "db", "dc", "dstate")


def inputs(batch, heads, length, width, size, dtype=torch.float32, groups=1, strength=0.3):
    """x, log_decay, b and c as strided views of projections."""
    x = torch.randn(batch, length, heads, width).to(dtype).transpose(1, 2)
    shared = torch.randn(batch, length, 2 * groups, size).to(dtype).transpose(1, 2)
    decay = -strength * torch.randn(batch, length, heads).abs().transpose(1, 2)
    return x, decay, shared[:, :groups], shared[:, groups:]


def state(given):
    x, _, b, _ = given
    return torch.randn(*x.shape[:2], b.shape[3], x.shape[3]).to(x.dtype)


def compare(given, tolerance=None, **kwargs):
    """Require y, end state and every gradient to be those of the recurrence."""
    tolerance = TOLERANCE[given[0].dtype] if tolerance is None else tolerance
    actual, expected = recur("triton", *given, **kwargs), recur("reference", *given, **kwargs)
    for name, a, e in zip(NAMES, actual, expected, strict=False):
        assert a.dtype == (torch.float32 if name == "dlog_decay" else given[0].dtype)
        assert_close(name, a, e, tolerance, floor=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("length", "documented", "carried"), [(1, False, True), (33, True, False), (70, False, False), (130, True, True)]
)
def test_forward_and_every_gradient(length, documented, carried, dtype):
    given = inputs(1, 1, length, 16, 16, dtype)
    compare(given, state=state(given) if carried else None, documents=documents(1, length) if documented else None)


@pytest.mark.parametrize(("width", "size"), [(5, 3), (16, 128), (128, 16), (80, 100)])
def test_head_widths_and_state_sizes(width, size):
    given = inputs(1, 1, 40, width, size, DTYPES[-1])
    compare(given, state=state(given))


@pytest.mark.parametrize(("heads", "groups"), [(6, 1), (4, 2), (2, 2)])
def test_heads_that_share_b_and_c(heads, groups):
    """Six heads are more than a program of the backward takes together."""
    compare(inputs(1, heads, 20, 16, 16, DTYPES[-1], groups))


def test_a_sum_over_pairs_agrees():
    """y_t = sum_i (c_t . b_i) alpha_{i:t} x_i, pair by pair: independent of the recurrence."""
    x, decay, b, c = inputs(1, 1, 40, 16, 16)
    total = decay.double().cumsum(-1)
    weights = (total.unsqueeze(-1) - total.unsqueeze(-2)).exp().tril() * (c.double() @ b.double().transpose(-1, -2))
    assert_close("y", recur("triton", x, decay, b, c)[0], weights @ x.double(), 1e-5)


@pytest.mark.parametrize("strength", [10.0, 400.0])
def test_strong_decay_keeps_its_precision(strength):
    """Sums of thousands whose differences are near 0: float32 alone would be off by 1e-4."""
    compare(inputs(1, 1, 70, 16, 16, strength=strength), documents=documents(1, 70, 30))


def test_no_decay_at_all():
    x, decay, b, c = inputs(1, 1, 70, 16, 16)
    compare((x, torch.zeros_like(decay), b, c))


def test_documents_of_length_1_hold_one_product_each():
    x, decay, b, c = inputs(1, 1, 40, 16, 16)
    results = recur("triton", x, decay, b, c, documents=torch.arange(40)[None])
    assert_close("y", results[0], (c * b).sum(-1, keepdim=True) * x, 1e-5)
    assert torch.equal(results[3], torch.zeros_like(results[3]))


def test_the_sliding_window():
    compare(inputs(1, 1, 40, 16, 16), documents=documents(1, 40, 30), window=9)


def test_nan_in_one_sequence_stays_in_that_sequence():
    x, decay, b, c = inputs(3, 1, 33, 16, 16, DTYPES[-1])
    clean = recur("triton", x, decay, b, c)
    x[1, :, 20] = float("nan")
    for a, e in zip(recur("triton", x, decay, b, c), clean, strict=True):
        assert torch.equal(a[[0, 2]], e[[0, 2]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_element_is_left_unwritten_and_repeats_are_bitwise_equal(dtype, poisoned):
    given = inputs(1, 1, 70, 20, 24, dtype)
    first = recur("triton", *given, documents=documents(1, 70, 9))
    assert all(r.isfinite().all() for r in first)
    if not interpreted():
        docs = documents(1, 70, 9)
        first = recur("triton", *given, documents=docs)
        for _ in range(30):
            again = recur("triton", *given, documents=docs)
            assert all(torch.equal(a, e) for a, e in zip(first, again, strict=True))


def test_gradients_of_one_output_alone_and_of_slices_expanded_or_transposed():
    given = [t.to(DEVICE).requires_grad_() for t in inputs(1, 1, 33, 16, 16)]
    for loss in (
        lambda y, end: y.sum(),
        lambda y, end: end.sum(),
        lambda y, end: torch.cat([y, y], -1)[..., 3:20].square().sum(),
        lambda y, end: (y.transpose(1, 2).reshape(1, 33, 16)[..., ::2]).sum() + end[..., 0].sum(),
    ):
        results = []
        for path in ("triton", "reference"):
            results.append(torch.autograd.grad(loss(*state_space_scan(*given, path=path)), given, allow_unused=True))
        for name, a, e in zip(NAMES[2:], *results, strict=False):
            assert_close(name, a, torch.zeros_like(a) if e is None else e, 1e-5, floor=1e-6)


def test_int32_offset_overflow():
    """A view whose strides times positions pass 2^31 elements, on memory that is hardly touched; and its gradient."""
    if not interpreted() and torch.cuda.mem_get_info()[0] < 2**35:
        pytest.skip("needs 32 GiB of free GPU memory")
    x, decay, b, c = (t.to(DEVICE) for t in inputs(1, 1, 40, 16, 16, torch.float16))
    far = torch.empty(40 * 2**26, dtype=torch.float16, device=DEVICE).as_strided(x.shape, (16, 16, 2**26, 1))
    far.copy_(x)
    results = []
    for leaf in (far.requires_grad_(), x.detach().requires_grad_()):
        y, _ = state_space_scan(leaf, decay, b, c, path="triton")
        results.append([y, *torch.autograd.grad(y[..., 0].sum(), [leaf])])
    assert all(torch.equal(a, e) for a, e in zip(*results, strict=True))


def test_tensors_on_a_device_that_is_not_the_current_one():
    if interpreted() or torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    given = inputs(1, 2, 100, 16, 16)
    results = [state_space_scan(*(t.to(d) for t in given), path="triton")[0].cpu() for d in ("cuda:0", "cuda:1")]
    assert torch.equal(*results)


def test_too_wide_is_an_error_that_says_what_is_supported():
    for width, size in ((129, 16), (16, 129)):
        with pytest.raises(ValueError, match=r"^path: .*state_space_scan.* up to 128, got 129"):
            recur("triton", *inputs(1, 1, 3, width, size))


@pytest.mark.parametrize("carried", [False, True])
def test_opcheck(carried):
    given = inputs(1, 1, 9, 16, 16)
    ids, before = (documents(1, 9, 5).to(DEVICE), state(given).to(DEVICE).requires_grad_()) if carried else (None, None)
    torch.library.opcheck(state_space_scan_op, (*(t.to(DEVICE).requires_grad_() for t in given), ids, before))


def test_compiled_in_one_graph():
    given = [t.to(DEVICE).requires_grad_() for t in inputs(1, 1, 20, 16, 16)]
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(state_space_scan, fullgraph=True, backend=counter)
    results = []
    for function in (compiled, state_space_scan):
        y, end = function(*given, path="triton")
        results.append([y, end, *torch.autograd.grad(y.square().sum() + end.sum(), given)])
    for name, a, e in zip(NAMES, *results, strict=False):
        assert_close(name, a, e, 1e-6)
    assert counter.frame_count == 1
