"""Inputs shared by the kernel tests."""

from __future__ import annotations

import pytest
import torch
from poison import poisoned

__all__ = ["poisoned"]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
