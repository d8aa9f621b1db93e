"""What `memory_attention` is timed against: the same reads through other people's kernels, in the same process.

A peer gets its inputs the way that suits it best: cut to the slices on which its mask is a plain one, and with the
bandwidth already multiplied into the query, which is not part of what is timed. Its results are still compared with the
reference: a peer that reads something else is no peer. A peer that cannot run says why (`Unavailable`).
"""

from __future__ import annotations

import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mmctl.kernels import memory_attention
from mmctl.kernels.bandwidth import bandwidth_table

NAIVE_SHARE = 0.25
"""Share of the free memory that the naive peer's matrices may take."""
FOLDED = 5.0
"""How much more error a peer may have than our tolerance: a bandwidth folded into a 16-bit query costs five times
ours."""


class Unavailable(Exception):
    """Why a peer cannot run here; one line."""


@dataclass
class Contender:
    """One implementation of a case, and how its results compare with the reference's.

    forward: the call that is timed; its gradients are taken with respect to `leaves`. `upstream` cuts a gradient of the
    whole output down to this contender's output. `results` maps output and gradients to whole tensors by name. `slack`
    multiplies the tolerance. `mask_seconds`: time to build a mask, which is not part of `forward`.
    """

    name: str
    leaves: list[Tensor]
    forward: Callable[[], Any]
    results: Callable[[Tensor, list[Tensor]], dict[str, Tensor]]
    upstream: Callable[[Tensor], Tensor] = lambda grad: grad
    slack: float = 1.0
    mask_seconds: float | None = None
    ours: bool = False


@dataclass
class Reading:
    """Inputs of one `memory_attention` case: keys and values (B, H, T, D), bandwidth (H,) each, window or delay."""

    keys: Tensor
    values: Tensor
    bandwidth: tuple[Tensor, Tensor, Tensor]
    window: int | None = None
    delay: int | None = None
    beta: Tensor = field(init=False)  # (1, H, T, 1) float32, beta_t

    def __post_init__(self) -> None:
        t = torch.arange(self.keys.shape[2], device=self.keys.device)
        counts = t.clamp(max=self.window) if self.window else (t - int(self.delay or 0) + 1).clamp(min=0)
        self.beta = bandwidth_table(counts[None].float(), *self.bandwidth)[0].unsqueeze(-1)

    @property
    def span(self) -> dict[str, Any]:
        return {"window": self.window} if self.window else {"delay": int(self.delay or 0)}

    @property
    def shift(self) -> int:
        """First row that reads anything: peers see rows from here on, and the pairs up to T - shift."""
        return 1 if self.window else int(self.delay or 0)

    def query(self) -> Tensor:
        """beta_t k_t, in the dtype of the keys."""
        return (self.keys * self.beta).to(self.keys.dtype)

    def slices(self) -> list[Tensor]:
        """Query, keys and values of the shifted problem, (B, H, T - shift, D) each, contiguous leaves."""
        length = self.keys.shape[2] - self.shift
        if length < 1:
            raise Unavailable("no read sees a pair at this length")
        parts = self.query()[:, :, self.shift :], self.keys[:, :, :length], self.values[:, :, :length]
        return [part.detach().contiguous().requires_grad_() for part in parts]


def ours(problem: Reading) -> Contender:
    """`memory_attention` on the path it takes here."""
    leaves = [t.detach().requires_grad_() for t in (problem.keys, problem.values, *problem.bandwidth)]
    names = ("dkeys", "dvalues", "dbeta0", "dbeta1", "dalpha")
    return Contender(
        "ours",
        leaves,
        lambda: memory_attention(leaves[0], leaves[1], (leaves[2], leaves[3], leaves[4]), **problem.span),
        lambda out, grads: {"out": out, **dict(zip(names, grads, strict=True))},
        ours=True,
    )


def sliced(name: str, problem: Reading, leaves: list[Tensor], forward: Callable[[], Tensor]) -> Contender:
    """A peer on the shifted slices."""
    shift, length = problem.shift, problem.keys.shape[2]

    def results(out: Tensor, grads: list[Tensor]) -> dict[str, Tensor]:
        later = (0, 0, shift, 0)  # rows before `shift` read nothing
        earlier = (0, 0, 0, shift)  # the last pairs are read by nothing
        query_part = F.pad(grads[0].float(), later) * problem.beta
        return {
            "out": F.pad(out, later),
            "dkeys": query_part + F.pad(grads[1].float(), earlier),
            "dvalues": F.pad(grads[2], earlier),
        }

    return Contender(name, leaves, forward, results, lambda grad: grad[:, :, shift:length], FOLDED)


def sdpa(name: str, backend: str, problem: Reading) -> Contender:
    """torch's scaled_dot_product_attention on slices, held to one backend."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if problem.window:
        raise Unavailable("scaled_dot_product_attention takes no window")
    if backend != "FLASH_ATTENTION" and problem.keys.device.type != "cuda":
        raise Unavailable("it needs a CUDA device")
    leaves = problem.slices()

    def forward() -> Tensor:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return F.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=True, scale=1.0)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            forward()
        except RuntimeError as error:
            reasons = [first_line(w.message) for w in said] or [first_line(error)]
            raise Unavailable("; ".join(reasons)[:300]) from None
    return sliced(name, problem, leaves, forward)


def naive(problem: Reading) -> Contender:
    """Masked scores, softmax and product as plain torch operations, on slices."""
    batch, heads, length, _ = problem.keys.shape
    needed = batch * heads * length * length * problem.keys.element_size() * 5
    if needed > NAIVE_SHARE * free_memory(problem.keys.device):
        raise Unavailable(f"its matrices would take {needed / 2**30:.0f} GiB")
    leaves = problem.slices()
    rows = torch.arange(leaves[0].shape[2], device=problem.keys.device)
    hidden = rows[None, :] > rows[:, None]
    if problem.window:
        hidden = hidden | (rows[None, :] <= rows[:, None] - problem.window)

    def forward() -> Tensor:
        scores = leaves[0] @ leaves[1].transpose(-1, -2)
        return scores.masked_fill_(hidden, float("-inf")).softmax(-1) @ leaves[2]

    return sliced("naive masked", problem, leaves, forward)


def flash_attn(problem: Reading) -> Contender:
    """The flash-attn package (FA3 where installed, else FA2), on slices, with its own window."""
    module = next((m for m in ("flash_attn_interface", "flash_attn") if importlib.util.find_spec(m)), None)
    if module is None:
        raise Unavailable("flash-attn is not installed")
    call = importlib.import_module(module).flash_attn_func
    leaves = [leaf.detach().transpose(1, 2).contiguous().requires_grad_() for leaf in problem.slices()]
    window = (problem.window - 1, 0) if problem.window else (-1, -1)

    def forward() -> Tensor:
        out = call(*leaves, softmax_scale=1.0, causal=True, window_size=window)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    try:
        forward()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise Unavailable(first_line(error)) from None
    name = "flash-attn 3" if module == "flash_attn_interface" else "flash-attn 2"
    made = sliced(name, problem, leaves, forward)
    compare = made.results
    made.results = lambda out, grads: compare(out, [grad.transpose(1, 2) for grad in grads])
    return made


class Flex:
    """FlexAttention with m as a captured 0-d tensor, so that a new m needs a new mask and no new kernel."""

    attention: Any = None
    build: Any = None

    @classmethod
    def compiled(cls) -> None:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        if cls.attention is None:
            from torch._functorch import config

            config.donated_buffer = False  # a backward is timed many times over one forward
            # Two masks, each width, fixed and then any lengths: more variants than the default limit of 8. `fullgraph`
            # because beyond the limit it would otherwise run unfused, and be timed so.
            torch._dynamo.config.recompile_limit = 64
            cls.attention = torch.compile(flex_attention, fullgraph=True)
            cls.build = torch.compile(create_block_mask)

    @classmethod
    def mask(cls, length: int, device: torch.device, window: int | None, delay: int | None) -> Any:
        """The block mask of one read over `length` positions."""
        cls.compiled()
        reach = torch.tensor(int(window or delay or 0), device=device)

        def short(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (k < q) & (k >= q - reach)

        def long(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return k <= q - reach

        return cls.build(short if window else long, None, None, length, length, device=device)


def flex(problem: Reading) -> Contender:
    """FlexAttention over the whole sequence with a block mask; building the mask is timed apart."""
    device = problem.keys.device
    if device.type != "cuda":
        raise Unavailable("FlexAttention has no CPU backward")
    leaves = [t.detach().clone().requires_grad_() for t in (problem.query(), problem.keys, problem.values)]
    seconds = []
    try:
        for _ in range(4):
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            mask = Flex.mask(problem.keys.shape[2], device, problem.window, problem.delay)
            torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - began)
        Flex.attention(*leaves, block_mask=mask, scale=1.0)
    except Exception as error:  # whatever a compiler raises: the other rows still count
        raise Unavailable(f"{type(error).__name__}: {first_line(error)}") from None

    def results(out: Tensor, grads: list[Tensor]) -> dict[str, Tensor]:
        return {"out": out, "dkeys": grads[0].float() * problem.beta + grads[1].float(), "dvalues": grads[2]}

    return Contender(
        "FlexAttention",
        leaves,
        lambda: Flex.attention(*leaves, block_mask=mask, scale=1.0),
        results,
        slack=FOLDED,
        mask_seconds=statistics.median(seconds[1:]),
    )


PEERS: dict[str, Callable[[Reading], Contender]] = {
    "SDPA cuDNN": lambda problem: sdpa("SDPA cuDNN", "CUDNN_ATTENTION", problem),
    "SDPA flash": lambda problem: sdpa("SDPA flash", "FLASH_ATTENTION", problem),
    "FlexAttention": flex,
    "flash-attn": flash_attn,
    "naive masked": naive,
}


def flex_read(
    keys: Tensor, values: Tensor, bandwidth: tuple[Tensor, Tensor, Tensor], *, mask: Any, window: int | None = None,
    delay: int | None = None, documents: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`memory_attention` through FlexAttention, for a whole layer: the bandwidth multiplied into the query."""
    assert documents is None
    problem = Reading(keys, values, bandwidth, window, delay)
    return Flex.attention(problem.query(), keys, values, block_mask=mask, scale=1.0)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return int(psutil.virtual_memory().available)


def first_line(error: object) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:200]
