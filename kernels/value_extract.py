"""The value extractor's look-ahead mixture and normalisation: `value_extract`."""

from __future__ import annotations

from types import ModuleType

import torch

from . import value_native as native
from .checks import check_documents, check_float, check_parameter, check_tensor, parameter_dtype
from .dispatch import check_path, choose_path
from .folding import folded_like
from .reference import value_extract_reference


def value_extract(
    psi: torch.Tensor,
    gamma: torch.Tensor,
    scale: torch.Tensor,
    documents: torch.Tensor | None = None,
    *,
    path: str = "auto",
) -> torch.Tensor:
    """Values v_t = scale vbar_t / ||vbar_t|| with vbar_t = gamma psi_t + (1 - gamma) psi_{t+1}.

    memory-mosaics.md, section 3. The last position of a sequence or of a document has no successor:
    there vbar_t = gamma psi_t. No read inside the sequence or document can see that pair. A zero vbar gives a
    zero value and zero gradients. Differentiable in psi, gamma and scale.

    Args:
        psi: (B, H, T, D), the projection W_psi x; float32, bfloat16, float16 or float64. May be a strided view.
        gamma: (H,) share of the current position, in (0, 1); float32 (float64 beside float64 psi).
        scale: (H,) length of the values, > 0, dtype of gamma.
        documents: (B, T) int32 or int64 ids, non-decreasing (not checked), or None.
        path: "auto" (Triton on CUDA, native elsewhere), "triton", "native" or "reference" (float64, for tests).

    Returns:
        (B, H, T, D) in the dtype of psi.

    Raises:
        ValueError: naming the argument, for wrong shapes, dtypes or devices.
    """
    check_tensor("psi", psi, "B H T D")
    check_float("psi", psi)
    batch, heads, length, _ = psi.shape
    if length < 1:
        raise ValueError("psi: needs at least one position")
    check_parameter("gamma", gamma, (heads,), "psi", psi)
    check_parameter("scale", scale, (heads,), "psi", psi)
    check_documents(documents, batch, length, "psi", psi)
    check_path(path)
    if path == "reference":
        return value_extract_reference(psi, gamma, scale, documents=documents)
    return value_extract_op(psi, gamma, scale, documents, path)[0]


@torch.library.custom_op("mmctl::value_extract", mutates_args=())
def value_extract_op(
    psi: torch.Tensor,
    gamma: torch.Tensor,
    scale: torch.Tensor,
    documents: torch.Tensor | None,
    path: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values, and ||vbar|| for the backward."""
    with torch.autocast(psi.device.type, enabled=False):
        return implementation(path, psi).forward(psi, gamma, scale, documents)


def implementation(path: str, psi: torch.Tensor) -> ModuleType:
    """The module whose `forward` and `backward` run. Triton is imported only here, where it is used."""
    if choose_path(path, "value_extract", psi, psi.shape[-1]) == "native":
        return native
    from . import triton_values

    return triton_values


@value_extract_op.register_fake
def _(psi, gamma, scale, documents, path="auto"):
    norms = folded_like(psi, psi.shape[:3], parameter_dtype(psi.dtype), True)
    return folded_like(psi, psi.shape, psi.dtype, True), norms


@torch.library.custom_op("mmctl::value_extract_backward", mutates_args=())
def value_extract_backward_op(
    grad: torch.Tensor,
    psi: torch.Tensor,
    gamma: torch.Tensor,
    scale: torch.Tensor,
    documents: torch.Tensor | None,
    norms: torch.Tensor,
    path: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of psi, gamma, scale."""
    with torch.autocast(psi.device.type, enabled=False):
        return implementation(path, psi).backward(grad, psi, gamma, scale, documents, norms)


@value_extract_backward_op.register_fake
def _(grad, psi, gamma, scale, documents, norms, path="auto"):
    return torch.empty_like(psi), torch.empty_like(gamma), torch.empty_like(scale)


def _setup_context(ctx, inputs, output) -> None:
    *tensors, ctx.path = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad, grad_norms):
    if grad is None:
        return (None,) * 5
    return *value_extract_backward_op(grad, *ctx.saved_tensors, ctx.path), None, None


value_extract_op.register_autograd(_backward, setup_context=_setup_context)
