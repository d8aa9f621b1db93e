"""Float64 references: the equations as written, dense masks, autograd. For tests and small inputs only."""

from __future__ import annotations

import torch

from .bandwidth import document_starts, pair_counts, visible_range


def unit(x: torch.Tensor) -> torch.Tensor:
    """x / ||x|| over the last dimension; a zero vector stays zero and gets zero gradient."""
    square = x.square().sum(-1, keepdim=True)
    zero = square == 0
    return torch.where(zero, 0.0, x / torch.where(zero, 1.0, square).sqrt())


def memory_attention_reference(
    keys: torch.Tensor,
    values: torch.Tensor,
    bandwidth: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    *,
    window: int = 0,
    delay: int = 0,
    documents: torch.Tensor | None = None,
    query: torch.Tensor | None = None,
    query_offset: int = 0,
) -> torch.Tensor:
    """f(k_t) = sum_i softmax_i(beta_t k_t . k_i) v_i over the visible i, as a masked float64 softmax."""
    dtype = keys.dtype
    length = keys.shape[2]
    k, v = keys.double(), values.double()
    q = k if query is None else query.double()
    beta0, beta1, alpha = (p.double().view(1, -1, 1) for p in bandwidth)
    positions = torch.arange(q.shape[2], device=keys.device) + query_offset
    starts = None if documents is None else document_starts(documents)[:, positions]
    first, end = visible_range(positions, length, window, delay, starts)
    pairs = torch.arange(length, device=keys.device)
    visible = ((pairs >= first.unsqueeze(-1)) & (pairs < end.unsqueeze(-1))).unsqueeze(1)

    counts = pair_counts(first, end, torch.float64).unsqueeze(1)
    # n = 1 stands in at empty reads, whose result is discarded below: 0^alpha has no gradient.
    beta = beta1 * counts.clamp(min=1) ** alpha + beta0
    scores = beta.unsqueeze(-1) * (q @ k.transpose(-1, -2))
    empty = ~visible.any(-1, keepdim=True)
    scores = scores.masked_fill(~visible & ~empty, -torch.inf).masked_fill(empty, 0.0)
    weights = scores.softmax(-1).masked_fill(empty, 0.0)
    return (weights @ v).to(dtype)


def key_scan_reference(
    x: torch.Tensor,
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    *,
    documents: torch.Tensor | None = None,
    state: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """kbar_t proportional to sum_{i<=t} exp(a_i - (S_t - S_i)) x_i inside the document, and k = kbar / ||kbar||.

    Returns:
        keys, and the state (sum, maximum) after the last position.
    """
    batch, _, length, _ = x.shape
    parameter_dtype = log_gate.dtype
    total = log_decay.double().cumsum(-1)
    gate, values = log_gate.double(), x.double()
    pairs = torch.arange(length, device=x.device)
    first = torch.zeros(batch, length, dtype=torch.long, device=x.device)
    if documents is not None:
        first = document_starts(documents)
    visible = (pairs <= pairs.unsqueeze(-1)) & (pairs >= first.unsqueeze(-1))
    if state is not None:
        # The carried sum is one more pair, before the first: its log weight is the carried maximum.
        carried, maximum = state[0].double(), state[1].double()
        values = torch.cat([carried.unsqueeze(2), values], 2)
        gate = torch.cat([maximum.unsqueeze(-1), gate], -1)
        visible = torch.cat([(first == 0).unsqueeze(-1), visible], -1)
    visible = visible.unsqueeze(1)
    origin = total if state is None else torch.nn.functional.pad(total, (1, 0))
    logs = gate.unsqueeze(2) + total.unsqueeze(3) - origin.unsqueeze(2)
    logs = logs.masked_fill(~visible, -torch.inf)
    top = logs.detach().amax(-1, keepdim=True).clamp(min=-1e300)
    sums = (logs - top).exp() @ values
    return unit(sums).to(x.dtype), sums[:, :, -1].to(parameter_dtype), top[:, :, -1, 0].to(parameter_dtype)


def value_extract_reference(
    psi: torch.Tensor, gamma: torch.Tensor, scale: torch.Tensor, *, documents: torch.Tensor | None = None
) -> torch.Tensor:
    """v_t = scale vbar_t / ||vbar_t||, vbar_t = gamma psi_t + (1 - gamma) psi_{t+1}; no successor: gamma psi_t."""
    p = psi.double()
    g, s = gamma.double().view(1, -1, 1, 1), scale.double().view(1, -1, 1, 1)
    successor = torch.cat([p[:, :, 1:], torch.zeros_like(p[:, :, :1])], 2)
    if documents is not None:
        same = torch.nn.functional.pad(documents[:, 1:] == documents[:, :-1], (0, 1))
        successor = torch.where(same[:, None, :, None], successor, 0.0)
    return (s * unit(g * p + (1 - g) * successor)).to(psi.dtype)
