"""Which pairs a read can see, how many they are, and the bandwidth that follows from their number."""

from __future__ import annotations

import torch


def document_starts(documents: torch.Tensor) -> torch.Tensor:
    """First position of each position's document: (B, T) ids -> (B, T) int64 positions."""
    batch, length = documents.shape
    positions = torch.arange(length, device=documents.device)
    begins = documents.new_ones((batch, length), dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return torch.where(begins, positions, 0).cummax(dim=1).values


def visible_range(
    positions: torch.Tensor, length: int, window: int, delay: int, starts: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs ``first .. end - 1`` that the reads at ``positions`` see, of ``length`` stored ones.

    Short-term (``window`` = h > 0): t-h .. t-1. Long-term (``delay`` = m > 0): 0 .. t-m. Both inside the
    document (memory-mosaics.md, section 5). ``end <= first`` where nothing is visible.

    Args:
        positions: (Tq,) int64 reading positions t.
        length: number of stored pairs T.
        starts: (B, Tq) first position of each read's document, or None.

    Returns:
        ``first`` and ``end``, each (B, Tq), or (1, Tq) without documents.
    """
    positions = positions.unsqueeze(0)
    first = torch.zeros_like(positions) if starts is None else starts
    if window > 0:
        first = torch.maximum(first, positions - window)
        end = positions.clamp(max=length)
    else:
        end = (positions - delay + 1).clamp(min=0, max=length)
    return first, end


def pair_counts(first: torch.Tensor, end: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """n_t, the number of pairs a read can see, as floats of the same shape as ``first``."""
    return (end - first).clamp(min=0).to(dtype)


def bandwidth_table(
    counts: torch.Tensor, beta0: torch.Tensor, beta1: torch.Tensor, alpha: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """beta_t = beta1 n_t^alpha + beta0 (Memory Mosaics v2, adaptive bandwidth), and n_t^alpha.

    Empty reads (n = 0) get a bandwidth of 0: their result is 0 whatever the bandwidth, and 0^alpha and
    log 0 must not reach the gradients.

    Args:
        counts: (B or 1, T) pair counts; beta0, beta1, alpha: (H,).

    Returns:
        beta and n^alpha, each (B or 1, H, T), both 0 where n = 0.
    """
    counts = counts.unsqueeze(1)
    filled = counts > 0
    power = torch.where(filled, counts.clamp(min=1).pow(alpha.view(1, -1, 1)), 0.0)
    beta = beta1.view(1, -1, 1) * power + beta0.view(1, -1, 1) * filled
    return beta, power


def bandwidth_gradients(
    grad_beta: torch.Tensor, counts: torch.Tensor, power: torch.Tensor, beta1: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of beta0, beta1 and alpha, each (H,), from that of the bandwidth.

    Args:
        grad_beta: (B or 1, H, T), 0 at empty reads; summed over B already where ``counts`` has batch 1.
    """
    grad_power = grad_beta * power
    logarithm = counts.clamp(min=1).log().unsqueeze(1)
    return grad_beta.sum((0, 2)), grad_power.sum((0, 2)), beta1 * (grad_power * logarithm).sum((0, 2))
