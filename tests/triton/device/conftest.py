"""These tests run the real kernels: on a GPU, or, where TRITON_INTERPRET=1, in Triton's interpreter on the CPU.

Under plain `pytest` without a GPU they skip; `test_triton_interpreter.py` runs them in a process of their own, because
the variable has to be set before the kernels are imported.
"""

from __future__ import annotations

import pytest
import torch
from poison import poisoned

from mmctl.kernels.triton_support import interpreted

__all__ = ["poisoned"]


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
