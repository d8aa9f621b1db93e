"""The one place that decides which implementation of an operation runs."""

from __future__ import annotations

import warnings

import torch

from .triton_support import unsupported

PATHS = ("auto", "triton", "native", "reference")
TRITON_OPERATIONS = frozenset({"memory_attention", "key_scan", "value_extract"})
"""Operations that have Triton kernels."""

_said: set[str] = set()


def check_path(path: str) -> None:
    """Require one of `PATHS`."""
    if path not in PATHS:
        raise ValueError(f"path: {path!r} is not one of {', '.join(PATHS)}")


def choose_path(path: str, operation: str, tensor: torch.Tensor, *widths: int) -> str:
    """Resolve ``path`` for ``operation`` on ``tensor`` to ``"native"``, ``"reference"`` or ``"triton"``.

    ``"auto"`` takes Triton on a CUDA device and the native path elsewhere, and says once, as a warning, where a CUDA
    tensor has to take the native path. A path asked for by name is either that path or an error, never a silent
    substitute. The answer depends on the device, dtype and widths alone, so forward and backward agree.

    Args:
        widths: head widths of the call (last dimensions).

    Raises:
        ValueError: ``path`` is not one of `PATHS`, or the Triton path was asked for and cannot take the tensor.
    """
    check_path(path)
    if path in ("native", "reference"):
        return path
    known = operation in TRITON_OPERATIONS
    if path == "auto" and (tensor.device.type != "cuda" or not known):
        return "native"
    reason = unsupported(tensor, *widths) if known else "there are no Triton kernels for it"
    if reason is None:
        return "triton"
    if path == "triton":
        raise ValueError(f"path: the Triton path of {operation} is not available: {reason}; use 'auto' or 'native'")
    message = f"{operation} takes its native path, not Triton: {reason}"
    if message not in _said:
        _said.add(message)
        warnings.warn(message, stacklevel=2)
    return "native"
