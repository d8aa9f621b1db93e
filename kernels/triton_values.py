"""Triton kernels of `value_extract` and their launch: one pass over psi forward, one over psi and the gradient
backward.

Shape legend: R positions of a program, D width padded to a power of two. Everything inside is float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .folding import folded_like
from .triton_memory import blocks, on_device
from .triton_tiles import VALUE_ROWS, padded


@triton.jit
def load_rows(base, positions, length, stride_t, stride_d, WIDTH: tl.constexpr, D: tl.constexpr):  # -> (R, D)
    """Rows of a matrix in float32, 0 outside; ``positions`` may be -1."""
    columns = tl.arange(0, D)
    inside = ((positions >= 0) & (positions < length))[:, None] & (columns < WIDTH)[None, :]
    pointers = base + positions.to(tl.int64)[:, None] * stride_t + columns.to(tl.int64)[None, :] * stride_d
    return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def followed(documents, positions, length, stride_t, DOCUMENTED: tl.constexpr):  # -> (R,) float32
    """1 where the next position exists and is of the same document."""
    inside = (positions >= 0) & (positions + 1 < length)
    if DOCUMENTED:
        pointers = documents + positions.to(tl.int64) * stride_t
        here = tl.load(pointers, mask=inside, other=0)
        following = tl.load(pointers + stride_t, mask=inside, other=0)
        inside = inside & (here == following)
    return inside.to(tl.float32)


@triton.jit
def inverse_norm(mixed):  # -> (R,)
    square = tl.sum(mixed * mixed, 1)
    return tl.where(square == 0.0, 0.0, 1.0 / tl.sqrt(square))


@triton.jit(do_not_specialize=["length"])
def value_extract_forward_kernel(
    psi_ptr,
    gamma_ptr,
    scale_ptr,
    documents_ptr,
    value_ptr,
    norm_ptr,
    stride_pb,
    stride_ph,
    stride_pt,
    stride_pd,
    stride_db,
    stride_dt,
    stride_vb,
    stride_vh,
    stride_vt,
    stride_vd,
    stride_nb,
    stride_nh,
    length,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    DOCUMENTED: tl.constexpr,
):
    """v_t = scale vbar_t / ||vbar_t||, vbar_t = gamma psi_t + (1 - gamma) psi_{t+1} inside the document."""
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    positions = tl.program_id(0) * R + tl.arange(0, R)
    gamma = tl.load(gamma_ptr + head)
    base = psi_ptr + batch * stride_pb + head * stride_ph
    same = followed(documents_ptr + batch * stride_db, positions, length, stride_dt, DOCUMENTED)
    psi = load_rows(base, positions, length, stride_pt, stride_pd, WIDTH, D)
    following = load_rows(base, positions + 1, length, stride_pt, stride_pd, WIDTH, D)
    mixed = gamma * psi + ((1.0 - gamma) * same)[:, None] * following
    columns = tl.arange(0, D)
    pointers = value_ptr + batch * stride_vb + head * stride_vh
    pointers += positions.to(tl.int64)[:, None] * stride_vt + columns.to(tl.int64)[None, :] * stride_vd
    values = mixed * (inverse_norm(mixed) * tl.load(scale_ptr + head))[:, None]
    inside = positions < length
    tl.store(pointers, values.to(value_ptr.dtype.element_ty), mask=inside[:, None] & (columns < WIDTH)[None, :])
    norms = norm_ptr + batch * stride_nb + head * stride_nh + positions
    tl.store(norms, tl.sqrt(tl.sum(mixed * mixed, 1)), mask=inside)


@triton.jit
def grad_of_mixture(mixed, grad, scale):  # -> (R, D), (R,)
    """Gradient of vbar, (scale / n) (g - u (u . g)) with u = vbar / n, and u . g; 0 for a zero vbar."""
    inverse = inverse_norm(mixed)
    unit = mixed * inverse[:, None]
    along = tl.sum(unit * grad, 1)
    return (grad - unit * along[:, None]) * (inverse * scale)[:, None], along


@triton.jit(do_not_specialize=["length", "heads"])
def value_extract_backward_kernel(
    psi_ptr,
    gamma_ptr,
    scale_ptr,
    documents_ptr,
    grad_ptr,
    grad_psi_ptr,
    partial_ptr,
    stride_pb,
    stride_ph,
    stride_pt,
    stride_pd,
    stride_db,
    stride_dt,
    stride_gb,
    stride_gh,
    stride_gt,
    stride_gd,
    stride_ub,
    stride_uh,
    stride_ut,
    stride_ud,
    heads,
    length,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    DOCUMENTED: tl.constexpr,
):
    """dpsi_t = gamma dvbar_t + (1 - gamma) dvbar_{t-1}; this program's sums for gamma and scale as partials.

    Both rows of dvbar are computed here, so that no program waits for another.
    """
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    positions = tl.program_id(0) * R + tl.arange(0, R)
    gamma, scale = tl.load(gamma_ptr + head), tl.load(scale_ptr + head)
    documents = documents_ptr + batch * stride_db
    base = psi_ptr + batch * stride_pb + head * stride_ph
    grads = grad_ptr + batch * stride_gb + head * stride_gh
    same = followed(documents, positions, length, stride_dt, DOCUMENTED)
    psi = load_rows(base, positions, length, stride_pt, stride_pd, WIDTH, D)
    following = load_rows(base, positions + 1, length, stride_pt, stride_pd, WIDTH, D)
    following = following * same[:, None]
    grad = load_rows(grads, positions, length, stride_gt, stride_gd, WIDTH, D)
    grad_mixed, along = grad_of_mixture(gamma * psi + (1.0 - gamma) * following, grad, scale)
    partial = partial_ptr + (batch * heads + head) * 2 * tl.num_programs(0) + tl.program_id(0)
    tl.store(partial, tl.sum(tl.sum(grad_mixed * (psi - following), 1), 0))
    tl.store(partial + tl.num_programs(0), tl.sum(along, 0))

    before = followed(documents, positions - 1, length, stride_dt, DOCUMENTED)
    preceding = load_rows(base, positions - 1, length, stride_pt, stride_pd, WIDTH, D)
    grad = load_rows(grads, positions - 1, length, stride_gt, stride_gd, WIDTH, D)
    mixed = gamma * preceding + (1.0 - gamma) * psi * before[:, None]
    grad_before, _ = grad_of_mixture(mixed, grad, scale)
    grad_psi = gamma * grad_mixed + ((1.0 - gamma) * before)[:, None] * grad_before
    columns = tl.arange(0, D)
    pointers = grad_psi_ptr + batch * stride_ub + head * stride_uh
    pointers += positions.to(tl.int64)[:, None] * stride_ut + columns.to(tl.int64)[None, :] * stride_ud
    inside = (positions < length)[:, None] & (columns < WIDTH)[None, :]
    tl.store(pointers, grad_psi.to(grad_psi_ptr.dtype.element_ty), mask=inside)


def forward(
    psi: torch.Tensor, gamma: torch.Tensor, scale: torch.Tensor, documents: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values (B, H, T, D) laid out as (H, B, T, D), and ||vbar|| (B, H, T)."""
    batch, heads, length, width = psi.shape
    values = folded_like(psi, psi.shape, psi.dtype, True)
    norms = folded_like(psi, psi.shape[:3], torch.float32, True)
    if batch * heads * width == 0:
        return values, norms.zero_()
    with on_device(psi):
        value_extract_forward_kernel[(blocks(length, VALUE_ROWS), heads, batch)](
            psi,
            gamma.contiguous(),
            scale.contiguous(),
            norms if documents is None else documents,
            values,
            norms,
            *psi.stride(),
            *((0, 0) if documents is None else documents.stride()),
            *values.stride(),
            *norms.stride()[:2],
            length,
            WIDTH=width,
            D=padded(width),
            R=VALUE_ROWS,
            DOCUMENTED=documents is not None,
        )
    return values, norms


def backward(
    grad: torch.Tensor,
    psi: torch.Tensor,
    gamma: torch.Tensor,
    scale: torch.Tensor,
    documents: torch.Tensor | None,
    norms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of psi (in its layout), gamma and scale."""
    batch, heads, length, width = psi.shape
    grad_psi = torch.empty_like(psi)
    if batch * heads * width == 0:
        return grad_psi, torch.zeros_like(gamma), torch.zeros_like(scale)
    programs = blocks(length, VALUE_ROWS)
    partials = torch.empty((batch, heads, 2, programs), dtype=torch.float32, device=psi.device)
    with on_device(psi):
        value_extract_backward_kernel[(programs, heads, batch)](
            psi,
            gamma.contiguous(),
            scale.contiguous(),
            norms if documents is None else documents,
            grad,
            grad_psi,
            partials,
            *psi.stride(),
            *((0, 0) if documents is None else documents.stride()),
            *grad.stride(),
            *grad_psi.stride(),
            heads,
            length,
            WIDTH=width,
            D=padded(width),
            R=VALUE_ROWS,
            DOCUMENTED=documents is not None,
        )
    return grad_psi, partials[:, :, 0].sum((0, 2)), partials[:, :, 1].sum((0, 2))
