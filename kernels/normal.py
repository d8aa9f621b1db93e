"""Rows of unit length and their backward, each one pass over memory.

torch's weight normalisation is this very operation, w = g v / ||v|| for each row, and the only fused kernel for it
that torch has on every device: norms, products and sums of separate operations read the rows three to five times.
"""

from __future__ import annotations

import torch


def inverse(norms: torch.Tensor) -> torch.Tensor:
    """1 / norm, and 0 for a zero norm: a zero vector gives a zero direction and no gradient."""
    return norms.reciprocal().masked_fill_(norms == 0, 0.0)


def normalise(rows: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """lengths * rows / ||rows||, 0 for a zero row, and ||rows||: contiguous (..., D), (...) -> (..., D), (...)."""
    flat = rows.view(-1, rows.shape[-1])
    unit, norms = torch._weight_norm_interface(flat, lengths.reshape(-1, 1).contiguous(), 0)
    if norms.device.type != "cpu" or not norms.all():
        unit.masked_fill_(norms == 0, 0.0)
    return unit.view(rows.shape), norms.view(rows.shape[:-1])


def normalise_backward(
    grad: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor, norms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of ``rows`` and ``lengths`` of `normalise`, whose second result ``norms`` is; 0 for a zero row.

    Contiguous (..., D), (..., D), (...), (...) -> (..., D), (...).
    """
    width = grad.shape[-1]
    if norms.device.type != "cpu" or not norms.all():
        zero = norms == 0
        lengths, norms = lengths.masked_fill(zero, 0.0), norms.masked_fill(zero, 1.0)
    grad_rows, grad_lengths = torch.ops.aten._weight_norm_interface_backward(
        grad.view(-1, width),
        rows.view(-1, width),
        lengths.reshape(-1, 1).contiguous(),
        norms.reshape(-1, 1).contiguous(),
        0,
    )
    return grad_rows.view(grad.shape), grad_lengths.view(grad.shape[:-1])
