"""`value_extract`: the native path against the reference and the plain formula."""

from __future__ import annotations

import pytest
import torch
from cases import documents, extract, wide
from closeness import TOLERANCE, assert_close

from mmctl.kernels import value_extract


def inputs_of(batch, heads, length, width, dtype=torch.float64):
    psi = torch.randn(batch, length, heads, width, dtype=torch.float64).to(dtype).transpose(1, 2)
    return psi, torch.rand(heads, dtype=wide(dtype)), 0.5 + torch.rand(heads, dtype=wide(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("length", [1, 2, 15, 100])
def test_native_equals_reference(length, documented, dtype):
    inputs = inputs_of(2, 3, length, 8, dtype)
    docs = documents(2, length, 10) if documented else None
    native, reference = extract("native", *inputs, documents=docs), extract("reference", *inputs, documents=docs)
    for name, a, e in zip(("values", "dpsi", "dgamma", "dscale"), native, reference, strict=True):
        # At length 1 the value does not depend on gamma: its gradient is 0 up to rounding.
        assert_close(name, a, e, TOLERANCE[dtype], floor=1e-14 if dtype == torch.float64 else 1e-5)


def test_the_formula():
    psi, gamma, scale = inputs_of(1, 2, 9, 4)
    values = value_extract(psi, gamma, scale)
    for h in range(2):
        for t in range(9):
            following = psi[0, h, t + 1] if t < 8 else torch.zeros(4, dtype=torch.float64)
            vbar = gamma[h] * psi[0, h, t] + (1 - gamma[h]) * following
            assert_close("value", values[0, h, t], scale[h] * vbar / vbar.norm(), 1e-12)


@pytest.mark.parametrize("documented", [False, True])
def test_gradcheck(documented):
    inputs = tuple(t.contiguous().requires_grad_() for t in inputs_of(2, 2, 7, 3))
    docs = documents(2, 7, 3) if documented else None
    assert torch.autograd.gradcheck(lambda *a: value_extract(*a, documents=docs), inputs)


@pytest.mark.parametrize("path", ["native", "reference"])
def test_zero_vbar_gives_zero_value_and_zero_gradient(path):
    psi, gamma, scale = inputs_of(1, 2, 9, 4, torch.float32)
    for result in extract(path, torch.zeros_like(psi), gamma, scale):
        assert torch.equal(result, torch.zeros_like(result))


def test_nothing_crosses_a_document_boundary():
    psi, gamma, scale = inputs_of(1, 2, 10, 4, torch.float32)
    docs = torch.tensor([[0] * 6 + [1] * 4])
    values = value_extract(psi, gamma, scale, docs)
    changed = psi.clone()
    changed[:, :, 6:] = torch.randn(1, 2, 4, 4)
    assert torch.equal(value_extract(changed, gamma, scale, docs)[:, :, :6], values[:, :, :6])


def test_nan_in_one_sequence_stays_there():
    psi, gamma, scale = inputs_of(3, 2, 20, 4, torch.float32)
    clean = extract("native", psi, gamma, scale)
    psi = psi.clone()
    psi[1, :, 5] = float("nan")
    for a, e in zip(extract("native", psi, gamma, scale)[:2], clean[:2], strict=True):
        assert torch.equal(a[[0, 2]], e[[0, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_element_is_left_unwritten(dtype, poisoned):
    for docs in (None, documents(2, 33, 5)):
        assert all(r.isfinite().all() for r in extract("native", *inputs_of(2, 2, 33, 4, dtype), documents=docs))


def test_strided_and_expanded_gradients():
    psi, gamma, scale = inputs_of(2, 3, 20, 4)
    for loss in (lambda v: v.sum(), lambda v: v[..., 1].sum(), lambda v: (v.transpose(1, 2).reshape(2, 20, 12)).sum()):
        results = []
        for path in ("native", "reference"):
            leaf = psi.detach().requires_grad_()
            results.append(torch.autograd.grad(loss(value_extract(leaf, gamma, scale, path=path)), leaf)[0])
        assert_close("gradient", *results, 1e-10)
