"""The Triton tests share the inputs and the closeness helper of the kernel tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
