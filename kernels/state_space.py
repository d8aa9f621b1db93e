"""The recurrence of Mamba-2: a matrix state a head, decayed by one scalar a step (arXiv 2405.21060, state-space
duality).

    h_t = alpha_t h_{t-1} + b_t x_t^T        (N x P, x_t already multiplied by the step Delta_t)
    y_t = c_t^T h_t

The native path is chunked: inside a chunk of K positions the recurrence is a masked [K, K] product, chunks hand on
their state. Decays enter as logarithms and only differences of their sums are exponentiated, each at most 0, so nothing
overflows however long the sequence. It is built of torch operations, which differentiate it and count its FLOPs
themselves.

Shape suffixes: B sequences, H heads, G groups of heads that share b and c, T positions, P head width, N state size a
channel.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64
"""K. The [K, K] products of a chunk cost K/2 as many FLOPs a position as a state of size N costs N."""


def state_space_scan(
    x: Tensor,
    log_decay: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    documents: Tensor | None = None,
    state: Tensor | None = None,
    window: int | None = None,
    path: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run the recurrence over T positions.

    Args:
        x: inputs (B, H, T, P), multiplied by the step.
        log_decay: log alpha (B, H, T), at most 0.
        b, c: (B, G, T, N), G dividing H: heads hG/H share one.
        documents: (B, T) non-decreasing int ids; the state is empty again at the start of each.
        state: (B, H, N, P) before the first position, of that position's document. None: empty.
        window: r >= 1 reads only the last r positions: h_t - alpha_{t-r+1:t} h_{t-r} (Stuffed Mamba, arXiv 2410.07145),
        the
            product of decays from sums of logarithms. Outputs only: the returned state is the whole one.
        path: "auto" and "native" are the chunked form, "reference" the recurrence itself, step by step.

    Returns:
        y (B, H, T, P) and the state (B, H, N, P) after the last position, both in x's dtype.

    Raises:
        ValueError: a shape, window or path does not fit.
    """
    _check(x, log_decay, b, c, documents, state, window)
    if path not in ("auto", "native", "reference"):
        raise ValueError(f'path: expected auto, native or reference, got "{path}"')
    scan = _recurrent if path == "reference" else _chunked
    y, end = scan(x, log_decay, b, c, documents, state)
    length = x.shape[2]
    if window is None or (window >= length and state is None):
        return y, end
    if state is not None:
        raise ValueError("window: a carried state does not say what its last positions added; give none")
    # What is older than the window, as c_t reads it from the state r positions ago: a second scan, its c moved by r.
    old = scan(x, log_decay, b, _moved(c, window), documents, None)[0][:, :, : length - window]
    total = log_decay.cumsum(-1)
    old = old * (total[:, :, window:] - total[:, :, : length - window]).exp().unsqueeze(-1)
    if documents is not None:
        same = documents[:, window:] == documents[:, : length - window]
        old = old * same[:, None, :, None]
    return torch.cat([y[:, :, :window], y[:, :, window:] - old], dim=2), end


def _moved(c: Tensor, window: int) -> Tensor:
    """c with position t holding c_{t + window}; the last `window` positions are not read."""
    return torch.cat([c[:, :, window:], torch.zeros_like(c[:, :, :window])], dim=2)


def _chunked(
    x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, documents: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    batch, heads, length, width = x.shape
    groups, size = b.shape[1], b.shape[3]
    share = heads // groups
    k = min(CHUNK, length)
    n = -(-length // k)
    pad = n * k - length

    def fold(t: Tensor, *shape: int) -> Tensor:
        """Positions into n chunks of k; what is filled up adds nothing and decays nothing."""
        if pad:
            t = torch.nn.functional.pad(t, (0, 0) * (t.dim() - 3) + (0, pad))
        return t.reshape(*shape)

    x_ = fold(x, batch, groups, share, n, k, width)
    b_ = fold(b, batch, groups, 1, n, k, size)
    c_ = fold(c, batch, groups, 1, n, k, size)
    total = fold(log_decay, batch, groups, share, n, k).cumsum(-1)

    visible = torch.ones(k, k, dtype=torch.bool, device=x.device).tril()
    entering = leaving = None  # (B, n, k): reads the state handed on; belongs to the state handed on
    carried = None  # (B, n): the state handed on outlives the chunk
    if documents is not None:
        ids = torch.cat([documents, documents[:, -1:].expand(-1, pad)], dim=1).view(batch, n, k)
        last = ids[:, :, -1]
        before = torch.cat(
            [ids[:, 0, :1], last[:, :-1]], dim=1
        )  # the state given stands in the first position's document
        visible = visible & (ids[..., :, None] == ids[..., None, :]).view(batch, 1, 1, n, k, k)
        entering = (ids == before[..., None]).view(batch, 1, 1, n, k, 1)
        leaving = (ids == last[..., None]).view(batch, 1, 1, n, k)
        carried = (last == before).view(batch, 1, 1, n)

    gap = total.unsqueeze(-1) - total.unsqueeze(-2)  # log alpha_{i:t}, at most 0 where i <= t
    weights = (c_ @ b_.transpose(-1, -2)) * gap.masked_fill(~visible, -torch.inf).exp()
    y = weights @ x_

    to_end = (total[..., -1:] - total).exp()
    if leaving is not None:
        to_end = to_end * leaving
    added = b_.transpose(-1, -2) @ (x_ * to_end.unsqueeze(-1))  # (B, G, H/G, n, N, P)
    decay = total[..., -1].exp()
    if carried is not None:
        decay = decay * carried
    h = (
        x.new_zeros(batch, groups, share, size, width)
        if state is None
        else state.view(batch, groups, share, size, width)
    )
    starts = []
    for chunk in range(n):
        starts.append(h)
        h = decay[..., chunk, None, None] * h + added[..., chunk, :, :]
    read = (c_ @ torch.stack(starts, dim=3)) * total.exp().unsqueeze(-1)
    if entering is not None:
        read = read * entering
    y = (y + read).reshape(batch, heads, n * k, width)
    return y[:, :, :length], h.reshape(batch, heads, size, width)


def _recurrent(
    x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, documents: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The definition, one position after another."""
    batch, heads, length, width = x.shape
    share = heads // b.shape[1]
    h = x.new_zeros(batch, heads, b.shape[3], width) if state is None else state
    reads = []
    for t in range(length):
        decay = log_decay[:, :, t].exp()
        if documents is not None and t:
            decay = decay * (documents[:, t] == documents[:, t - 1])[:, None]
        b_t, c_t = (v[:, :, t].repeat_interleave(share, dim=1) for v in (b, c))
        h = decay[..., None, None] * h + b_t.unsqueeze(-1) * x[:, :, t].unsqueeze(-2)
        reads.append((c_t.unsqueeze(-2) @ h).squeeze(-2))
    return torch.stack(reads, dim=2), h


def state_space_scan_flops(heads: int, groups: int, length: int, width: int, size: int) -> int:
    """FLOPs of the native forward over one sequence: the chunks' products, as torch counts them."""
    k = min(CHUNK, length)
    positions = -(-length // k) * k
    return 2 * positions * (groups * k * size + heads * k * width + 2 * heads * size * width)


def _check(
    x: Tensor,
    log_decay: Tensor,
    b: Tensor,
    c: Tensor,
    documents: Tensor | None,
    state: Tensor | None,
    window: int | None,
) -> None:
    if x.dim() != 4 or x.shape[2] < 1:
        raise ValueError(f"x: expected (B, H, T, P) with T at least 1, got {tuple(x.shape)}")
    batch, heads, length, width = x.shape
    if tuple(log_decay.shape) != (batch, heads, length):
        raise ValueError(f"log_decay: expected {(batch, heads, length)}, got {tuple(log_decay.shape)}")
    if b.dim() != 4 or (b.shape[0], b.shape[2]) != (batch, length) or heads % b.shape[1]:
        raise ValueError(f"b: expected ({batch}, G, {length}, N) with G dividing {heads}, got {tuple(b.shape)}")
    if c.shape != b.shape:
        raise ValueError(f"c: expected b's shape {tuple(b.shape)}, got {tuple(c.shape)}")
    if documents is not None and tuple(documents.shape) != (batch, length):
        raise ValueError(f"documents: expected {(batch, length)}, got {tuple(documents.shape)}")
    if state is not None and tuple(state.shape) != (batch, heads, b.shape[3], width):
        raise ValueError(f"state: expected {(batch, heads, b.shape[3], width)}, got {tuple(state.shape)}")
    if window is not None and window < 1:
        raise ValueError(f"window: expected at least 1, got {window}")
