"""Whether a result is right, in the run that times it: float64 references on a sub-problem, and the measure of error.

Heads and sequences are independent, so one head of one sequence is a whole problem: the upstream gradient is 0 outside
it, and forward and every gradient of that head are compared. Reads of a long sequence cost T^2, so beyond a number of
pairs only some rows are compared, around the edges of the sequence, of the window or delay and of likely tiles; the
upstream gradient is then 0 in all others. What is compared is said beside each number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmctl.kernels import memory_attention, value_extract

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest relative RMS of a result against float64, by dtype of the inputs."""
MOST_PAIRS = {"cpu": 1 << 22, "cuda": 1 << 32}
"""Rows times T up to which every row is compared."""
BLOCK = {"cpu": 512, "cuda": 1024}
"""Rows of the reference computed at a time."""


def blocks_of_rows(length: int, reach: int, device: str) -> list[tuple[int, int]]:
    """Rows (start, end) to compare: all of them in blocks, or 8 each around the edges and at places spread between."""
    if length * length <= MOST_PAIRS[device]:
        size = BLOCK[device]
        return [(start, min(start + size, length)) for start in range(0, length, size)]
    places = {0, reach - 4, length - 8, *(length * i // 8 // 128 * 128 - 4 for i in range(1, 8))}
    starts = sorted(min(max(0, place), length - 8) for place in places)
    kept: list[tuple[int, int]] = []
    for start in starts:
        if kept and start < kept[-1][1]:
            kept[-1] = kept[-1][0], start + 8
        else:
            kept.append((start, start + 8))
    return kept


def rows_said(blocks: Sequence[tuple[int, int]], length: int) -> str:
    """What is compared, for a person."""
    count = sum(end - start for start, end in blocks)
    return "one head, all rows" if count == length else f"one head, {count} of {length:,} rows"


def only(grad: Tensor, batch: int, head: int, blocks: Sequence[tuple[int, int]]) -> Tensor:
    """A gradient (B, H, T, D) that is 0 outside one head of one sequence and outside the rows compared."""
    kept = torch.zeros_like(grad)
    for start, end in blocks:
        kept[batch, head, start:end] = grad[batch, head, start:end]
    return kept


def read_reference(
    keys: Tensor, values: Tensor, bandwidth: Sequence[Tensor], grad: Tensor, blocks: Sequence[tuple[int, int]],
    window: int | None = None, delay: int | None = None,
) -> tuple[dict[str, Tensor], dict[str, float]]:  # fmt: skip
    """One head's reads in float64, rows outside `blocks` 0, and gradients; keys (T, D), values and grad (T, Dv).

    bandwidth: (beta0, beta1, alpha), 0-d each. Also returns the size of what a gradient of the bandwidth sums over
    reads, for it cancels: the root of the sum of squares.
    """
    k, v, g = (t.detach().double()[None, None] for t in (keys, values, grad))
    parameters = [p.detach().double().view(1).requires_grad_() for p in bandwidth]
    results = {"out": torch.zeros_like(v), "dkeys": torch.zeros_like(k), "dvalues": torch.zeros_like(v)}
    sums = torch.zeros(3, dtype=torch.float64, device=k.device)
    squares = torch.zeros_like(sums)
    for start, end in blocks:
        low = max(0, start - window) if window else 0
        high = max(low + 1, end)
        stored, read = (t[:, :, low:high].detach().requires_grad_() for t in (k, v))
        query = k[:, :, start:end].detach().requires_grad_()
        span = {"window": window} if window else {"delay": delay}
        out = memory_attention(
            stored, read, (parameters[0], parameters[1], parameters[2]), query=query, query_offset=start - low,
            path="reference", **span,
        )  # fmt: skip
        found = torch.autograd.grad(out, [stored, read, query, *parameters], g[:, :, start:end])
        results["out"][:, :, start:end] = out.detach()
        results["dkeys"][:, :, low:high] += found[0]
        results["dvalues"][:, :, low:high] += found[1]
        results["dkeys"][:, :, start:end] += found[2]
        sums += torch.cat(found[3:])
        t = torch.arange(start, end, dtype=torch.float64, device=k.device)
        counts = (t.clamp(max=window) if window else t - int(delay or 0) + 1).clamp(min=1)
        beta0, beta1, alpha = (p.detach() for p in parameters)
        power = counts**alpha
        # The score is beta_t q_t . k_i, so beta_t dbeta_t = q_t . dq_t.
        row = (found[2] * query.detach()).sum(-1).flatten() / (beta1 * power + beta0)
        terms = torch.stack([row, row * power, row * beta1 * power * counts.log()])
        squares += terms.square().sum(1)
    names = ("dbeta0", "dbeta1", "dalpha")
    compared = {name: t[0, 0] for name, t in results.items()} | dict(zip(names, sums, strict=True))
    return compared, dict(zip(names, squares.sqrt().tolist(), strict=True))


def scan_reference(x: Tensor, log_gate: Tensor, log_decay: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """One head's keys and gradients by the recurrence as written, position by position, in float64.

    kbar_t = g_t x_t + lambda_t kbar_{t-1}, k_t = kbar_t / ||kbar_t||; x and grad (T, D), the logs (T,).
    """
    inputs, g = x.detach().double().cpu().numpy(), grad.detach().double().cpu().numpy()
    gate, decay = (t.detach().double().exp().cpu().numpy() for t in (log_gate, log_decay))
    length, width = inputs.shape
    sums = np.empty((length, width))
    state = np.zeros(width)
    for t in range(length):
        state = gate[t] * inputs[t] + decay[t] * state
        sums[t] = state
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    keys = sums / norms
    grad_sums = (g - keys * (keys * g).sum(1, keepdims=True)) / norms
    carried = np.zeros(width)
    for t in range(length - 1, -1, -1):
        carried = grad_sums[t] = grad_sums[t] + carried
        carried = decay[t] * carried
    before = np.concatenate([np.zeros((1, width)), sums[:-1]])
    found = {
        "keys": keys,
        "dx": gate[:, None] * grad_sums,
        "dlog_gate": gate * (inputs * grad_sums).sum(1),
        "dlog_decay": decay * (before * grad_sums).sum(1),
    }
    return {name: torch.from_numpy(value) for name, value in found.items()}


def value_reference(psi: Tensor, gamma: Tensor, scale: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """One head's values and gradients in float64; psi and grad (T, D), gamma and scale 0-d."""
    leaf = psi.detach().double()[None, None].requires_grad_()
    parameters = [p.detach().double().view(1).requires_grad_() for p in (gamma, scale)]
    values = value_extract(leaf, *parameters, path="reference")
    found = torch.autograd.grad(values, [leaf, *parameters], grad.double()[None, None])
    return {"values": values.detach()[0, 0], "dpsi": found[0][0, 0], "dgamma": found[1][0], "dscale": found[2][0]}


def worst(actual: dict[str, Tensor], expected: dict[str, Tensor], terms: dict[str, float]) -> tuple[str, float]:
    """The result with the largest error, and that error: ||a - e|| / ||e||, inf where it is not finite or misshapen.

    terms: for sums that may cancel, a size of which `expected` need not fall short.
    """
    errors = {}
    for name, result in actual.items():
        a, e = result.detach().double(), expected[name].double().to(result.device)
        if a.shape != e.shape or not bool(a.isfinite().all()):
            errors[name] = float("inf")
            continue
        off, size = float((a - e).norm()), max(float(e.norm()), terms.get(name, 0.0))
        errors[name] = 0.0 if off == 0 else off / size if size > 0 else float("inf")
    name = max(errors, key=lambda key: errors[key])
    return name, errors[name]
