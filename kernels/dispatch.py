"""The one place that decides which implementation of an operation runs."""

from __future__ import annotations

import warnings

import torch

from .triton_support import unsupported

PATHS = ("auto", "triton", "native", "reference")
TRITON_OPERATIONS = frozenset({"memory_attention", "key_scan", "value_extract", "state_space_scan"})
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
    substitute. The answer depends on the device, dtype, widths, batch and heads alone, so forward and backward agree.

    Args:
        tensor: (B, H, ...), the first argument of the operation.
        widths: head widths of the call (last dimensions).

    Raises:
        ValueError: ``path`` is not one of `PATHS`, or the Triton path was asked for and cannot take the tensor.
    """
    return decide_path(path, operation, tensor.device, tensor.dtype, max(tensor.shape[:2]), *widths)


def decide_path(
    path: str, operation: str, device: torch.device, dtype: torch.dtype, programs: int, *widths: int
) -> str:
    """`choose_path` for a tensor of `dtype` on `device` whose batch and heads are at most `programs`."""
    check_path(path)
    if path in ("native", "reference"):
        return path
    if path == "auto" and device.type != "cuda":
        return "native"
    reason = _reason(operation, device, dtype, *widths, programs=programs)
    if reason is None:
        return "triton"
    if path == "triton":
        raise ValueError(f"path: the Triton path of {operation} is not available: {reason}; use 'auto' or 'native'")
    message = f"{operation} takes its native path, not Triton: {reason}"
    if message not in _said:
        _said.add(message)
        warnings.warn(message, stacklevel=2)
    return "native"


def path_taken(operation: str, device: torch.device, dtype: torch.dtype, *widths: int) -> str:
    """What ``"auto"`` takes on such tensors, for a person: ``"triton"``, or ``"native"`` with the reason in
    brackets."""
    reason = _reason(operation, device, dtype, *widths)
    return "triton" if reason is None and device.type == "cuda" else f"native ({_short(reason, device)})"


def _short(reason: str | None, device: torch.device) -> str:
    if device.type != "cuda":
        return f"the run is on {device}; Triton needs a CUDA device"
    return str(reason)


def _reason(operation: str, device: torch.device, dtype: torch.dtype, *widths: int, programs: int = 1) -> str | None:
    """Why the Triton path cannot be taken, or None where it can."""
    if operation not in TRITON_OPERATIONS:
        return "there are no Triton kernels for it"
    return unsupported(device, dtype, *widths, programs=programs)
