"""Argument checks shared by the operations. Every ``ValueError`` begins with the name of the argument.

Only shapes, dtypes and devices are looked at: looking at values would synchronise an accelerator.
"""

from __future__ import annotations

import torch

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGER_DTYPES = (torch.int32, torch.int64)


def check_tensor(name: str, tensor: object, dimensions: str) -> torch.Tensor:
    """Require a tensor with one dimension per letter of ``dimensions`` (for instance ``"B H T D"``)."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name}: expected a tensor ({dimensions}), got {type(tensor).__name__}")
    if tensor.dim() != len(dimensions.split()):
        raise ValueError(f"{name}: expected shape ({dimensions}), got {tuple(tensor.shape)}")
    return tensor


def check_float(name: str, tensor: torch.Tensor) -> None:
    """Require one of the float dtypes the operations support."""
    if tensor.dtype not in FLOAT_DTYPES:
        raise ValueError(f"{name}: expected float32, bfloat16, float16 or float64, got {tensor.dtype}")


def check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Require exactly ``shape``."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}")


def check_like(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Require the dtype and device of ``other``."""
    if tensor.dtype != other.dtype:
        raise ValueError(f"{name}: dtype {tensor.dtype} differs from that of {other_name}, {other.dtype}")
    check_device(name, tensor, other_name, other)


def check_device(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Require the device of ``other``."""
    if tensor.device != other.device:
        raise ValueError(f"{name}: device {tensor.device} differs from that of {other_name}, {other.device}")


def parameter_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of bandwidths, gates and states beside keys of ``dtype``: float32, or float64 beside float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_parameter(name: str, tensor: object, shape: tuple[int, ...], beside_name: str, beside: torch.Tensor) -> None:
    """Require a bandwidth, gate or state: its shape, float32 (float64 beside float64), the same device."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name}: expected a tensor of shape {tuple(shape)}, got {type(tensor).__name__}")
    check_shape(name, tensor, shape)
    expected = parameter_dtype(beside.dtype)
    if tensor.dtype != expected:
        raise ValueError(f"{name}: expected {expected} beside {beside_name} of {beside.dtype}, got {tensor.dtype}")
    check_device(name, tensor, beside_name, beside)


def check_documents(
    documents: torch.Tensor | None, batch: int, length: int, beside_name: str, beside: torch.Tensor
) -> None:
    """Require None or integer document ids (B, length). That they do not decrease is not checked."""
    if documents is None:
        return
    check_tensor("documents", documents, "B T")
    check_shape("documents", documents, (batch, length))
    if documents.dtype not in INTEGER_DTYPES:
        raise ValueError(f"documents: expected int32 or int64, got {documents.dtype}")
    check_device("documents", documents, beside_name, beside)
