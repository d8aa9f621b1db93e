"""The Triton tests share the inputs, the poisoned buffers and the measure of closeness of the kernel tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
