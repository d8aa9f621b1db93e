"""The one place that decides which implementation of an operation runs."""

from __future__ import annotations

import torch

PATHS = ("auto", "triton", "native", "reference")


def choose_path(path: str, operation: str, tensor: torch.Tensor) -> str:
    """Resolve ``path`` for ``operation`` on ``tensor`` to ``"native"``, ``"reference"`` or ``"triton"``.

    ``"auto"`` takes the fastest path that exists for the tensor's device; a path asked for by name is
    either that path or an error, never a silent substitute.

    Raises:
        ValueError: ``path`` is not one of `PATHS`, or the Triton path was asked for and is not available.
    """
    if path not in PATHS:
        raise ValueError(f"path: {path!r} is not one of {', '.join(PATHS)}")
    if path == "triton":
        raise ValueError(
            f"path: no Triton version of {operation} is available (tensor on {tensor.device}); use 'auto' or 'native'"
        )
    return "native" if path == "auto" else path
