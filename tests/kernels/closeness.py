"""Closeness of two tensors by relative root mean square, with the first mismatches in the message."""

from __future__ import annotations

import torch

# Relative RMS over the whole tensor, by dtype of the inputs.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def relative_rms(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """||actual - expected|| / ||expected||; 0 for two zero tensors, inf where only the expected one is zero."""
    difference = (actual.detach().double() - expected.detach().double()).norm()
    size = expected.detach().double().norm()
    if size == 0:
        return 0.0 if difference == 0 else float("inf")
    return float(difference / size)


def first_mismatches(actual: torch.Tensor, expected: torch.Tensor, count: int = 8) -> str:
    """The first ``count`` positions that differ by more than 1% of the RMS of ``expected``, one a line."""
    a, e = actual.detach().double(), expected.detach().double()
    off = ~((a - e).abs() <= 0.01 * e.square().mean().sqrt())
    lines = [
        f"  {tuple(i.tolist())}: {a[tuple(i)].item():.9g}, expected {e[tuple(i)].item():.9g}"
        for i in off.nonzero()[:count]
    ]
    return "\n".join([f"{int(off.sum())} of {off.numel()} elements far off", *lines])


def assert_close(name: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: float, floor: float = 0.0) -> None:
    """Require equal shapes, finite values and a relative RMS of at most ``tolerance``.

    ``floor``: an absolute RMS that always passes, for gradients that are 0 up to rounding.
    """
    assert actual.shape == expected.shape, f"{name}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert actual.isfinite().all(), f"{name}: not finite\n{first_mismatches(actual, expected)}"
    if actual.numel() == 0:
        return
    rms = (actual.detach().double() - expected.detach().double()).square().mean().sqrt()
    error = relative_rms(actual, expected)
    assert error <= tolerance or rms <= floor, (
        f"{name}: relative RMS {error:.3g} > {tolerance:.3g}\n{first_mismatches(actual, expected)}"
    )
