"""`value_extract` on its Triton path against the reference."""

from __future__ import annotations

import pytest
import torch
from cases import documents
from closeness import TOLERANCE, assert_close
from on_device import DEVICE, DTYPES, extract, interpreted

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


def test_opcheck():
    psi, gamma, scale = (t.to(DEVICE).requires_grad_() for t in inputs(1, 2, 20, 16, torch.float32))
    for docs in (None, documents(1, 20, 5).to(DEVICE)):
        torch.library.opcheck(value_extract_op, (psi.detach().requires_grad_(), gamma, scale, docs, "triton"))
