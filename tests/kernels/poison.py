"""Buffers that hold NaN until they are written, for the kernel tests and the Triton tests."""

from __future__ import annotations

import pytest
import torch

from mmctl.kernels.folding import Scratch


@pytest.fixture
def poisoned(monkeypatch):
    """Every torch.empty* returns NaN, and no kept buffer hides it: an unwritten element shows in the result."""
    Scratch.clear()
    real = {name: getattr(torch, name) for name in ("empty", "empty_like", "empty_strided")}

    def poison(tensor):
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    for name, function in real.items():
        monkeypatch.setattr(torch, name, lambda *a, _f=function, **k: poison(_f(*a, **k)))
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *a, **k: poison(new_empty(self, *a, **k)))
    yield
    Scratch.clear()
