"""The cases of `mmctl bench kernels`: inputs, contenders, what their results must equal, and what they must compute and
move."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mmctl.bench import kernel_checks as checks
from mmctl.bench import peers
from mmctl.bench.peers import Contender, Reading, Unavailable
from mmctl.kernels import key_scan, value_extract

WINDOW, DELAY = 256, 64
"""h of the short-term memory and m of the long-term one: the paper's h, and the smallest m, which reads most."""
START = math.exp(1.5), 1 / 3
"""beta_0 and beta_1, and alpha, as v2 starts them."""
PREFIX = 512
"""Tokens on which a layer or a step is compared with its reference: causality makes them a problem of their own."""
COMPOSED = 3.0
"""A layer adds the roundings of its projections: how much more error it may have than a kernel."""
PHASES = ("forward", "backward", "both")


@dataclass(frozen=True)
class Size:
    """T tokens, head width D, heads H, sequences B."""

    tokens: int
    width: int
    heads: int
    batch: int
    dtype: torch.dtype
    device: torch.device


@dataclass
class Group:
    """One case at one size. `expected` gives the reference's results and the sizes of sums that cancel; `pick` cuts the
    same part out of a contender's results, which it got with `check_grad` upstream. flops, bytes: by phase, what any
    implementation has to compute and to move; empty where they are not counted."""

    case: str
    size: Size
    contenders: list[Contender]
    unavailable: dict[str, str]
    grad: Tensor | None = None
    check_grad: Tensor | None = None
    expected: Callable[[], tuple[dict[str, Tensor], dict[str, float]]] | None = None
    pick: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda results: results
    checked: str = ""
    tolerance: float = 0.0
    flops: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)
    phases: tuple[str, ...] = PHASES


def random(size: Size, seed: int, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Standard normal numbers on the device."""
    generator = torch.Generator(size.device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=size.device, dtype=torch.float32).to(dtype or size.dtype)


def head_major(size: Size, seed: int) -> Tensor:
    """(B, H, T, D) laid out as (H, B, T, D), as `key_scan` and `value_extract` return them."""
    return random(size, seed, size.heads, size.batch, size.tokens, size.width).transpose(0, 1)


def one_head(size: Size, seed: int) -> tuple[int, int]:
    """The sequence and head whose results are compared."""
    rng = np.random.default_rng([seed, size.tokens, size.width])
    return int(rng.integers(size.batch)), int(rng.integers(size.heads))


def read(case: str, size: Size, seed: int) -> Group:
    """One memory's reads: "long" or "short"."""
    span = {"window": WINDOW} if case == "short" else {"delay": DELAY}
    keys = F.normalize(head_major(size, seed).float(), dim=-1).to(size.dtype)
    starts = (START[0], START[0], START[1])
    beta0, beta1, alpha = (torch.full((size.heads,), start, device=size.device) for start in starts)
    problem = Reading(keys, head_major(size, seed + 1), (beta0, beta1, alpha), **span)
    made, unavailable = [peers.ours(problem)], {}
    for name, build in peers.PEERS.items():
        try:
            made.append(build(problem))
        except Unavailable as reason:
            unavailable[name] = str(reason)
    # The model's gradient comes laid out as (B, T, H, D).
    grad = random(size, seed + 2, size.batch, size.tokens, size.heads, size.width).transpose(1, 2)
    b, h = one_head(size, seed)
    blocks = checks.blocks_of_rows(size.tokens, WINDOW if case == "short" else DELAY, size.device.type)
    check_grad = checks.only(grad, b, h, blocks)

    def expected() -> tuple[dict[str, Tensor], dict[str, float]]:
        bandwidth = [p[h] for p in problem.bandwidth]
        return checks.read_reference(keys[b, h], problem.values[b, h], bandwidth, check_grad[b, h], blocks, **span)

    def pick(results: dict[str, Tensor]) -> dict[str, Tensor]:
        one = {name: t[b, h] if t.dim() == 4 else t[h] for name, t in results.items()}
        kept = torch.zeros_like(one["out"])
        for start, end in blocks:
            kept[start:end] = one["out"][start:end]
        return one | {"out": kept}

    pairs = visible_pairs(size.tokens, **span)
    forward = 4.0 * size.batch * size.heads * pairs * size.width
    tensor = float(keys.numel() * keys.element_size())
    return Group(
        case, size, made, unavailable, grad, check_grad, expected, pick,
        checks.rows_said(blocks, size.tokens), checks.TOLERANCE[size.dtype],
        {"forward": forward, "backward": 2.5 * forward, "both": 3.5 * forward},
        {"forward": 3 * tensor, "backward": 6 * tensor, "both": 9 * tensor},
    )  # fmt: skip


def visible_pairs(length: int, window: int | None = None, delay: int | None = None) -> int:
    """Pairs (t, i) that all reads of a sequence see."""
    if window:
        full = max(0, length - window)
        return full * window + min(length, window) * (min(length, window) - 1) // 2
    rows = max(0, length - int(delay or 0))
    return rows * (rows + 1) // 2


def key_extractor(case: str, size: Size, seed: int) -> Group:
    """`key_scan` on a slice of a projection, with a copy's speed as its only peer."""
    x = random(size, seed, size.batch, size.tokens, size.heads, size.width).transpose(1, 2).requires_grad_()
    logs = random(size, seed + 1, size.batch, size.tokens, 2, size.heads, dtype=torch.float32).permute(2, 0, 3, 1)
    gate, decay = logs[0].detach().requires_grad_(), (-logs[1].abs()).detach().requires_grad_()
    names = ("dx", "dlog_gate", "dlog_decay")
    ours = Contender(
        "ours",
        [x, gate, decay],
        lambda: key_scan(x, gate, decay),
        lambda out, grads: {"keys": out, **dict(zip(names, grads, strict=True))},
        ours=True,
    )
    grad = head_major(size, seed + 2)
    b, h = one_head(size, seed)
    check_grad = checks.only(grad, b, h, [(0, size.tokens)])
    tensor, gates = float(x.numel() * x.element_size()), 8.0 * gate.numel()
    return Group(
        case, size, [ours], {}, grad, check_grad,
        lambda: (checks.scan_reference(x[b, h], gate[b, h], decay[b, h], check_grad[b, h]), {}),
        lambda results: {name: t[b, h] for name, t in results.items()},
        "one head, all rows", checks.TOLERANCE[size.dtype], {},
        {"forward": 2 * tensor + gates, "backward": 3 * tensor + 2 * gates, "both": 5 * tensor + 3 * gates},
    )  # fmt: skip


def value_extractor(case: str, size: Size, seed: int) -> Group:
    """`value_extract` on a slice of a projection."""
    psi = random(size, seed, size.batch, size.tokens, size.heads, size.width).transpose(1, 2).requires_grad_()
    generator = torch.Generator(size.device).manual_seed(seed + 1)
    gamma = torch.rand(size.heads, generator=generator, device=size.device).requires_grad_()
    scale = torch.ones(size.heads, device=size.device).requires_grad_()
    names = ("dpsi", "dgamma", "dscale")
    ours = Contender(
        "ours",
        [psi, gamma, scale],
        lambda: value_extract(psi, gamma, scale),
        lambda out, grads: {"values": out, **dict(zip(names, grads, strict=True))},
        ours=True,
    )
    grad = head_major(size, seed + 2)
    b, h = one_head(size, seed)
    check_grad = checks.only(grad, b, h, [(0, size.tokens)])
    tensor = float(psi.numel() * psi.element_size())
    return Group(
        case, size, [ours], {}, grad, check_grad,
        lambda: (checks.value_reference(psi[b, h], gamma[h], scale[h], check_grad[b, h]), {}),
        lambda results: {name: t[b, h] if t.dim() == 4 else t[h] for name, t in results.items()},
        "one head, all rows", checks.TOLERANCE[size.dtype], {},
        {"forward": 2 * tensor, "backward": 3 * tensor, "both": 5 * tensor},
    )  # fmt: skip


@contextmanager
def replaced(module: Any, **operations: Any) -> Iterator[None]:
    """Let a model's module call other implementations of its operations."""
    before = {name: vars(module)[name] for name in operations if name in vars(module)}
    for name in before:
        setattr(module, name, operations[name])
    try:
        yield
    finally:
        for name, operation in before.items():
            setattr(module, name, operation)


def by_reference() -> dict[str, Any]:
    """The operations on their float64 reference path."""
    from mmctl import kernels

    names = ("key_scan", "memory_attention", "value_extract")
    return {name: functools.partial(getattr(kernels, name), path="reference") for name in names}


def backends(device: torch.device) -> dict[str, str]:
    """torch's attention backends by the names of the transformer's rows."""
    return (
        {"cuDNN": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION"} if device.type == "cuda" else {"": "FLASH_ATTENTION"}
    )


def flat(gradients: Iterable[Tensor]) -> Tensor:
    return torch.cat([g.detach().double().flatten() for g in gradients])
