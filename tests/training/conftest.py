from __future__ import annotations

import pytest
from tiny import tiny_overrides

from mmctl.config import Config, load


@pytest.fixture
def tiny() -> Config:
    return load("smoke", tiny_overrides())
