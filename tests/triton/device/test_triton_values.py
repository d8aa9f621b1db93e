"""`value_extract` on its Triton path against the reference."""

from __future__ import annotations

import pytest
import torch
from cases import documents
from closeness import TOLERANCE, assert_close
from on_device import DEVICE, DTYPES, extract, interpreted

from mmctl.kernels import value_extract
from mmctl.kernels.value_extract import value_extract_op

NAMES = ("values", "dpsi", "dgamma", "dscale")


def inputs(batch, heads, length, width, dtype):
    psi = torch.randn(batch, length, heads, width, dtype=torch.float64).to(dtype).transpose(1, 2)
    return psi, torch.rand(heads), torch.rand(heads) + 0.5


def compare(given, docs=None):
    actual, expected = extract("triton", *given, documents=docs), extract("reference", *given, documents=docs)
    for name, a, e in zip(NAMES, actual, expected, strict=True):
        assert_close(name, a, e, TOLERANCE[given[0].dtype], floor=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 100])
def test_forward_and_every_gradient(length, documented, dtype):
    compare(inputs(2, 3, length, 16, dtype), documents(2, length, 7) if documented else None)


@pytest.mark.parametrize("width", [2, 5, 32, 64, 80, 96, 100, 128])
def test_head_widths(width):
    compare(inputs(1, 2, 40, width, DTYPES[-1]), documents(1, 40).long())


def test_zero_psi_gives_zero_values_and_zero_gradients():
    for result in extract("triton", torch.zeros(1, 2, 20, 16), torch.rand(2), torch.rand(2)):
        assert torch.equal(result, torch.zeros_like(result))


def test_nan_in_one_sequence_stays_in_that_sequence():
    psi, gamma, scale = inputs(3, 2, 40, 16, torch.float32)
    clean = extract("triton", psi, gamma, scale)
    psi[1, :, 20] = float("nan")
    for a, e in zip(extract("triton", psi, gamma, scale)[:2], clean[:2], strict=True):
        assert torch.equal(a[[0, 2]], e[[0, 2]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_element_is_left_unwritten_and_repeats_are_bitwise_equal(dtype, poisoned):
    given = inputs(2, 2, 50, 20, dtype)
    first = extract("triton", *given)
    assert all(r.isfinite().all() for r in first)
    for _ in range(1 if interpreted() else 30):
        assert all(torch.equal(a, b) for a, b in zip(first, extract("triton", *given), strict=True))


def test_documents_of_length_1_have_no_successor():
    psi, gamma, scale = inputs(1, 2, 40, 16, torch.float32)
    values = extract("triton", psi, gamma, scale, documents=torch.arange(40)[None])[0]
    assert_close("values", values, torch.nn.functional.normalize(psi, dim=-1) * scale.view(1, 2, 1, 1), 1e-6)


def test_a_gradient_that_is_a_slice_of_a_cat_expanded_or_transposed():
    """And psi as a slice of a projection."""
    projection = torch.randn(2, 40, 96).to(DEVICE).requires_grad_()
    _, gamma, scale = (t.to(DEVICE) for t in inputs(1, 3, 1, 16, torch.float32))
    other, weights = torch.randn(2, 3, 40, 16, device=DEVICE), torch.randn(2, 3, 40, 32, device=DEVICE)
    for loss in (
        lambda v: (torch.cat([v, other], -1) * weights).sum(),
        lambda v: v.sum(),
        lambda v: v.transpose(1, 2).reshape(2, 40, 48)[..., :20].sum(),
        lambda v: v[..., 1].sum(),
    ):
        results = []
        for path in ("triton", "reference"):
            values = value_extract(projection.view(2, 40, 6, 16).transpose(1, 2)[:, 3:], gamma, scale, path=path)
            results.append(torch.autograd.grad(loss(values), projection)[0])
        assert_close("gradient", *results, 1e-5)


def test_int32_offset_overflow():
    """A view whose strides times positions pass 2^31 elements, on memory that is hardly touched."""
    if not interpreted() and torch.cuda.mem_get_info()[0] < 2**35:
        pytest.skip("needs 32 GiB of free GPU memory")
    plain, gamma, scale = (t.to(DEVICE) for t in inputs(1, 1, 40, 16, torch.float16))
    far = torch.empty(40 * 2**26, dtype=torch.float16, device=DEVICE).as_strided(plain.shape, (16, 16, 2**26, 1))
    far.copy_(plain)
    results = []
    for psi in (far.requires_grad_(), plain.detach().requires_grad_()):
        values = value_extract(psi, gamma, scale, path="triton")
        results.append([values, *torch.autograd.grad(values[..., 0].sum(), [psi])])
    assert all(torch.equal(a, e) for a, e in zip(*results, strict=True))


def test_tensors_on_a_device_that_is_not_the_current_one():
    if interpreted() or torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    given = inputs(1, 2, 100, 16, torch.float32)
    results = [value_extract(*(t.to(device) for t in given), path="triton").cpu() for device in ("cuda:0", "cuda:1")]
    assert torch.equal(*results)


def test_opcheck():
    psi, gamma, scale = (t.to(DEVICE).requires_grad_() for t in inputs(1, 2, 20, 16, torch.float32))
    for docs in (None, documents(1, 20, 5).to(DEVICE)):
        torch.library.opcheck(value_extract_op, (psi.detach().requires_grad_(), gamma, scale, docs, "triton"))
