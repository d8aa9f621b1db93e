"""Whether the Triton path can take a tensor; needs neither Triton nor a GPU to say no."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch

from .triton_tiles import MAX_WIDTH

TRITON_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

MAX_PROGRAMS = 65_535
"""Largest second and third dimension of a CUDA grid."""
INTERPRETER_CAPABILITY = 86
assumed_capability: int | None = None
"""Stands in for the device's compute capability while kernels are compiled without one (`inspect`)."""


@functools.cache
def triton_installed() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors: for tests, set before the kernels are imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def capability(device: torch.device) -> int:
    """Compute capability as one number, for instance 90; that of a consumer card for the interpreter."""
    if assumed_capability is not None:
        return assumed_capability
    if device.type != "cuda":
        return INTERPRETER_CAPABILITY
    return _capability(device.index if device.index is not None else torch.cuda.current_device())


@functools.cache
def _capability(index: int) -> int:
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor


def unsupported(device: torch.device, dtype: torch.dtype, *widths: int, programs: int = 1) -> str | None:
    """Why the Triton path cannot take such tensors, or None where it can.

    Args:
        device, dtype: where the tensors lie, and what they hold.
        widths: head widths of the call (last dimensions).
        programs: the larger of batch and heads, which are the second and third dimension of every grid.
    """
    if device.type != "cuda" and not (interpreted() and device.type == "cpu"):
        return f"it runs on CUDA tensors, got one on {device}"
    if not triton_installed():
        return "Triton is not installed"
    if device.type == "cuda" and (torch.version.hip is not None or capability(device) < 80):
        return "it needs an NVIDIA GPU of compute capability 8.0 or newer"
    if dtype not in TRITON_DTYPES:
        return f"it takes float32, bfloat16 and float16, got {dtype}"
    if interpreted() and dtype == torch.bfloat16:
        return "Triton's interpreter multiplies bfloat16 wrongly"
    if max(widths, default=1) > MAX_WIDTH:
        return f"it takes head widths up to {MAX_WIDTH}, got {max(widths)}"
    if programs > MAX_PROGRAMS:
        return f"it takes up to {MAX_PROGRAMS} sequences and heads, got {programs}"
    return None
