"""`key_scan` in plain torch operations, forward and backward: chunked matrix products in log space.

With S_t the cumulative log decay and e_i = a_i - S_i, the weight of x_i in kbar_t is exp(e_i + S_t). The factor
exp(S_t) and a further exp(-M_t), M_t the running maximum of e, do not depend on i and leave the key unchanged:
y_t = sum_{i<=t} exp(e_i - M_t) x_i never overflows and k_t = y_t / ||y_t||. The maximum starts at -inf (a start
at 0 loses everything below it); e and M are float64, for S grows along the sequence while differences matter.

One scalar per head and step makes a chunk of C positions one [C, C] x [C, D] product. The sums at chunk ends are
the same problem, C times shorter, so the function calls itself on them.

Shape legend: G = B H folded head-major, N chunks of C positions.
"""

from __future__ import annotations

import torch

from .attention_native import fold, unfold
from .bandwidth import document_starts
from .checks import parameter_dtype
from .tiles import SCAN_CHUNK

# Log-space distance between successive documents: far beyond any gate, so weights across a boundary are exactly 0.
APART = 1e5


def log_weights(
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    documents: torch.Tensor | None,
    maximum: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """e, M and S, each (G, T) float64, from gates and decays (B, H, T)."""
    gate = fold(log_gate, True).double()
    total = fold(log_decay, True).double().cumsum(-1)
    if documents is not None:
        batch, heads, _ = log_gate.shape
        begins = document_starts(documents) == torch.arange(documents.shape[1], device=documents.device)
        begins[:, 0] = False
        rank = begins.cumsum(1, dtype=torch.float64)
        total = total - APART * rank.expand(heads, batch, -1).flatten(0, 1)
    logs = gate - total
    # Where every gate so far (in the document) is -inf the maximum must still be finite.
    top = torch.maximum(logs, -0.5 * APART - total).cummax(-1).values
    if maximum is not None:
        top = torch.maximum(top, fold(maximum, True).double().unsqueeze(-1))
    return logs, top, total


def pad_length(tensor: torch.Tensor, length: int, value: float = 0.0) -> torch.Tensor:
    """Lengthen dimension 1 to ``length``."""
    missing = length - tensor.shape[1]
    if missing == 0:
        return tensor
    filler = tensor.new_full((tensor.shape[0], missing, *tensor.shape[2:]), value)
    return torch.cat([tensor, filler], 1)


def chunk_weights(logs: torch.Tensor, top: torch.Tensor, work: torch.dtype) -> torch.Tensor:
    """exp(e_i - M_t) for i <= t, else 0: (G, C) -> (G, C, C)."""
    return (logs.unsqueeze(1) - top.unsqueeze(2)).to(work).exp_().tril_()


def weighted_prefix(logs: torch.Tensor, top: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """y_t = sum_{i<=t} exp(e_i - M_t) x_i: (G, T), (G, T), (G, T, D) -> (G, T, D)."""
    groups, length, width = x.shape
    if length <= SCAN_CHUNK:
        return torch.bmm(chunk_weights(logs, top, x.dtype), x)
    chunks = -(-length // SCAN_CHUNK)
    padded = chunks * SCAN_CHUNK
    if padded != length:
        # Padded positions weigh nothing and read under the last maximum, so every exponent stays <= 0.
        last = top[:, -1:].expand(-1, padded - length)
        logs, top, x = pad_length(logs, padded, -torch.inf), torch.cat([top, last], 1), pad_length(x, padded)
    folded = (groups * chunks, SCAN_CHUNK)
    weights = chunk_weights(logs.view(folded), top.view(folded), x.dtype)
    y = torch.bmm(weights, x.reshape(*folded, width)).view(groups, chunks, SCAN_CHUNK, width)
    ends = top.view(groups, chunks, SCAN_CHUNK)[:, :, -1]
    carried = weighted_prefix(ends, ends, y[:, :, -1])
    # What chunk c takes over from its predecessors, under the maximum of each of its positions.
    fade = carry_weights(top.view(groups, chunks, SCAN_CHUNK), ends).to(x.dtype)
    y[:, 1:].addcmul_(fade.unsqueeze(-1), carried[:, :-1].unsqueeze(2))
    return y.view(groups, padded, width)[:, :length].contiguous()


def carry_weights(top: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """exp(M at the previous chunk's end - M_t): (G, N, C), (G, N) -> (G, N-1, C)."""
    return (ends[:, :-1].unsqueeze(-1) - top[:, 1:]).exp_()


def weighted_suffix(logs: torch.Tensor, top: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Transpose of `weighted_prefix`: dx_i = sum_{t>=i} exp(e_i - M_t) dy_t. Overwrites ``grad``."""
    groups, length, width = grad.shape
    if length <= SCAN_CHUNK:
        return torch.bmm(chunk_weights(logs, top, grad.dtype).transpose(1, 2), grad)
    chunks = -(-length // SCAN_CHUNK)
    padded = chunks * SCAN_CHUNK
    if padded != length:
        last = top[:, -1:].expand(-1, padded - length)
        logs, top, grad = pad_length(logs, padded, -torch.inf), torch.cat([top, last], 1), pad_length(grad, padded)
    folded = (groups * chunks, SCAN_CHUNK)
    weights = chunk_weights(logs.view(folded), top.view(folded), grad.dtype)
    split = grad.view(groups, chunks, SCAN_CHUNK, width)
    ends = top.view(groups, chunks, SCAN_CHUNK)[:, :, -1]
    fade = carry_weights(top.view(groups, chunks, SCAN_CHUNK), ends).to(grad.dtype)
    carried = grad.new_zeros((groups, chunks, width))
    carried[:, :-1] = (fade.unsqueeze(2) @ split[:, 1:]).squeeze(2)
    split[:, :, -1] += weighted_suffix(ends, ends, carried)
    return (
        torch.bmm(weights.transpose(1, 2), grad.view(*folded, width))
        .view(groups, padded, width)[:, :length]
        .contiguous()
    )


def forward(
    x: torch.Tensor,
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    documents: torch.Tensor | None,
    carried: torch.Tensor | None,
    maximum: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys (B, H, T, D) laid out as (H, B, T, D), state sum, state maximum, ||y|| (B, H, T), and y for low precision.

    The gradient of the decays lives on what cancels in x . dx, so the backward needs the direction of kbar to
    float32. Keys of 16 bits do not hold it: for them y itself is the last result, otherwise that is empty.
    """
    batch, heads, _, _ = x.shape
    work = parameter_dtype(x.dtype)
    logs, top, total = log_weights(log_gate, log_decay, documents, maximum)
    y = weighted_prefix(logs, top, fold(x, True).to(work).contiguous())
    if carried is not None:
        weight = (fold(maximum, True).double().unsqueeze(-1) - top).exp_().to(work)
        y.addcmul_(weight.unsqueeze(-1), fold(carried, True).unsqueeze(1))
    norms = torch.linalg.vector_norm(y, dim=-1)
    keys = torch.empty(y.shape, dtype=x.dtype, device=x.device)
    torch.mul(y, inverse(norms).unsqueeze(-1), out=keys)
    state = y[:, -1].clone(), (top[:, -1] + total[:, -1]).to(work)
    return (
        unfold(keys, batch, heads, True),
        unfold(state[0], batch, heads, True),
        unfold(state[1], batch, heads, True),
        unfold(norms, batch, heads, True),
        x.new_empty(0, dtype=work) if x.dtype == work else unfold(y, batch, heads, True),
    )


def inverse(norms: torch.Tensor) -> torch.Tensor:
    """1 / norm, and 0 for a zero norm: a zero kbar gives a zero key and no gradient."""
    return norms.reciprocal().masked_fill_(norms == 0, 0.0)


def backward(
    grad_keys: torch.Tensor | None,
    grad_sum: torch.Tensor | None,
    x: torch.Tensor,
    log_gate: torch.Tensor,
    log_decay: torch.Tensor,
    documents: torch.Tensor | None,
    carried: torch.Tensor | None,
    maximum: torch.Tensor | None,
    keys: torch.Tensor,
    state_sum: torch.Tensor,
    norms: torch.Tensor,
    y: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x, log_gate, log_decay, and of the carried sum and maximum (empty without a state).

    The gradient of a log gate is x_i . dx_i, and because a key does not change when kbar_t is scaled, that of a
    log decay is what is left of -da from it on: dlog_decay_j = -sum_{i>=j} da_i.
    """
    batch, heads, _, _ = x.shape
    work = parameter_dtype(x.dtype)
    logs, top, _ = log_weights(log_gate, log_decay, documents, maximum)
    folded_x = fold(x, True).to(work)
    if grad_keys is None:
        grad = torch.zeros(folded_x.shape, dtype=work, device=x.device)
    else:
        inv = inverse(fold(norms, True)).unsqueeze(-1)
        g = fold(grad_keys, True).to(work)
        if x.dtype == work:
            k = fold(keys, True)
            along = (g * k).sum(-1, keepdim=True)
        else:
            k = fold(y, True)
            along = (g * k).sum(-1, keepdim=True).mul_(inv).mul_(inv)
        grad = torch.addcmul(g, k, along, value=-1).mul_(inv)
    scale_gradient = None
    if grad_sum is not None:
        g_sum = fold(grad_sum, True).to(work)
        grad[:, -1] += g_sum
        scale_gradient = (g_sum * fold(state_sum, True)).sum(-1, dtype=torch.float64)

    grad_carried, grad_maximum = x.new_empty(0, dtype=work), x.new_empty(0, dtype=work)
    if carried is not None:
        folded_sum = fold(carried, True)
        weight = (fold(maximum, True).double().unsqueeze(-1) - top).exp_().to(work)
        g_carried = torch.bmm(weight.unsqueeze(1), grad).squeeze(1)
        grad_maximum = unfold((g_carried * folded_sum).sum(-1), batch, heads, True)
        grad_carried = unfold(g_carried, batch, heads, True)

    grad_x = weighted_suffix(logs, top, grad)
    grad_gate = (grad_x * folded_x).sum(-1)
    # The sum over i >= j as a float64 sum from the far end.
    grad_decay = grad_gate.double().flip(-1).cumsum_(-1).flip(-1).neg_()
    if scale_gradient is not None:
        grad_decay += scale_gradient.unsqueeze(-1)
    return (
        unfold(grad_x.to(x.dtype), batch, heads, True),
        unfold(grad_gate, batch, heads, True),
        unfold(grad_decay.to(work), batch, heads, True),
        grad_carried,
        grad_maximum,
    )
