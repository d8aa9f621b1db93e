"""These tests run the real kernels: on a GPU, or, where TRITON_INTERPRET=1, in Triton's interpreter on the CPU.

Under plain `pytest` without a GPU they skip; `test_triton_interpreter.py` runs them in a process of their own, because
the variable has to be set before the kernels are imported.
"""

from __future__ import annotations

import pytest
import torch

from mmctl.kernels.folding import Scratch
from mmctl.kernels.triton_support import interpreted


def pytest_collection_modifyitems(items):
    if interpreted() or torch.cuda.is_available():
        return
    here = __file__.rsplit("/", 1)[0]
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.skip(reason="needs a GPU; runs interpreted in test_triton_interpreter.py"))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    """Every new buffer is full of NaN: an unwritten element shows in the result."""
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
