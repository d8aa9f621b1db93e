"""Causal depth-wise convolution inside documents, as short convolutions and key smearing need it."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def causal_convolution(x: Tensor, kernel: Tensor, documents: Tensor | None, count: int) -> Tensor:
    """y_t = sum over j < K of kernel_j * x_{t-j}, at the last `count` positions, each inside its document.

    x (B, n, C), n >= count: what comes before the last `count` positions is only looked back on. kernel (K, C),
    kernel_0 for the position itself. documents (B, n) ids or None. Returns (B, count, C).
    """
    first = x.shape[1] - count
    y = kernel[0] * x[:, first:]
    for lag in range(1, kernel.shape[0]):
        skipped = max(0, lag - first)  # positions with nothing so far back
        if skipped >= count:
            break
        here, there = slice(first + skipped, None), slice(first - lag + skipped, x.shape[1] - lag)
        past = x[:, there]
        if documents is not None:
            past = past * (documents[:, here] == documents[:, there]).unsqueeze(-1)
        y = y + F.pad(kernel[lag] * past, (0, 0, skipped, 0))
    return y
