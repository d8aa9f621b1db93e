"""The case `state-space` of `mmctl bench kernels`: the recurrence of Mamba-2 beside its native path and mamba_ssm's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmctl.bench import kernel_checks as checks
from mmctl.bench.kernel_cases import Group, Size, one_head, random
from mmctl.bench.peers import FOLDED, Contender, Unavailable, first_line
from mmctl.kernels.state_space import state_space_scan

STATE = 128
"""N, as in the published language models; all heads share b and c, as there."""
STEPS = 0.01, 0.1
"""The range Delta is drawn from; A is -1 to -16, a head each (published initialisation)."""
CHUNK = 256
"""mamba_ssm's own default."""
NAMES = ("dx", "dlog_decay", "db", "dc")


@dataclass
class Problem:
    """x (B, H, T, P) not yet multiplied by the step, delta (B, H, T), rate A (H,), b and c (B, 1, T, N)."""

    x: Tensor
    delta: Tensor
    rate: Tensor
    b: Tensor
    c: Tensor

    def inputs(self) -> list[Tensor]:
        """What the operation takes, as leaves: Delta x, Delta A, b, c."""
        scaled = (self.x.float() * self.delta.unsqueeze(-1)).to(self.x.dtype)
        decay = self.delta * self.rate.view(1, -1, 1)
        return [t.detach().requires_grad_() for t in (scaled, decay, self.b, self.c)]


def scan(name: str, problem: Problem, path: str, call: Callable[..., tuple[Tensor, Tensor]]) -> Contender:
    """`state_space_scan` on one of its paths."""
    leaves = problem.inputs()
    return Contender(
        name,
        leaves,
        lambda: call(*leaves, path=path)[0],
        lambda out, grads: {"y": out, **dict(zip(NAMES, grads, strict=True))},
        ours=name == "ours",
    )


def native(problem: Problem) -> Contender:
    """The native path as it is: what is taken where the kernels are not."""
    if problem.x.device.type != "cuda":
        raise Unavailable("on a CPU it is ours")
    return scan("native", problem, "native", state_space_scan)


def compiled(problem: Problem) -> Contender:
    """The native path through torch.compile."""
    if problem.x.device.type != "cuda":
        raise Unavailable("it needs a CUDA device")
    made = scan("native, compiled", problem, "native", torch.compile(state_space_scan, fullgraph=True, dynamic=False))
    try:
        made.forward()
    except Exception as error:  # whatever a compiler raises: the other rows still count
        raise Unavailable(f"{type(error).__name__}: {first_line(error)}") from None
    return made


def mamba_ssm(problem: Problem) -> Contender:
    """The published kernels, which multiply by the step themselves."""
    try:
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
    except ImportError:
        raise Unavailable("mamba-ssm is not installed") from None
    x, delta, b, c = (t.transpose(1, 2).detach().contiguous() for t in (problem.x, problem.delta, problem.b, problem.c))
    leaves = [t.requires_grad_() for t in (x, delta, b, c)]

    def forward() -> Tensor:
        return mamba_chunk_scan_combined(x, delta, problem.rate, b, c, CHUNK).transpose(1, 2)

    def results(out: Tensor, grads: list[Tensor]) -> dict[str, Tensor]:
        dx, ddelta, db, dc = (g.float().transpose(1, 2) for g in grads)
        scaled = dx / problem.delta.unsqueeze(-1)
        decay = (ddelta - (scaled * problem.x.float()).sum(-1)) / problem.rate.view(1, -1, 1)
        return {"y": out, "dx": scaled, "dlog_decay": decay, "db": db, "dc": dc}

    return Contender("mamba_ssm", leaves, forward, results, slack=FOLDED)


def recurrence(case: str, size: Size, seed: int) -> Group:
    """`state_space_scan` on slices of projections. Compared with its native path in float64, which equals the
    recurrence to 1e-10."""
    x = random(size, seed, size.batch, size.tokens, size.heads, size.width).transpose(1, 2)
    shared = random(size, seed + 1, size.batch, size.tokens, 2, STATE).transpose(1, 2)
    low, high = STEPS
    generator = torch.Generator(size.device).manual_seed(seed + 2)
    delta = torch.rand(size.batch, size.tokens, size.heads, generator=generator, device=size.device)
    rate = -torch.linspace(1, 16, size.heads, device=size.device)
    problem = Problem(x, (low + (high - low) * delta).transpose(1, 2), rate, shared[:, :1], shared[:, 1:])
    made, unavailable = [scan("ours", problem, "auto", state_space_scan)], {}
    for name, build in (("native", native), ("native, compiled", compiled), ("mamba_ssm", mamba_ssm)):
        try:
            made.append(build(problem))
        except Unavailable as reason:
            unavailable[name] = str(reason)
    grad = random(size, seed + 3, size.batch, size.tokens, size.heads, size.width).transpose(1, 2)
    b, h = one_head(size, seed)
    check_grad = checks.only(grad, b, h, [(0, size.tokens)])

    def expected() -> tuple[dict[str, Tensor], dict[str, float]]:
        scaled, decay, wide, read = (t.detach().double() for t in made[0].leaves)
        leaves = [scaled[b, h], decay[b, h], wide[b, 0], read[b, 0]]
        leaves = [t[None, None].requires_grad_() for t in leaves]
        y, _ = state_space_scan(*leaves, path="native")
        grads = torch.autograd.grad(y, leaves, check_grad[b, h].double()[None, None])
        return {name: t.detach()[0, 0] for name, t in zip(("y", *NAMES), (y, *grads), strict=True)}, {}

    def pick(results: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: t[b, 0 if name in ("db", "dc") else h] for name, t in results.items()}

    forward = 4.0 * size.batch * size.heads * size.tokens * STATE * size.width  # write b x^T, read c^T h
    tensor, pair = (float(t.numel() * t.element_size()) for t in (x, shared))
    logs = 4.0 * delta.numel()
    moved = {"forward": 2 * tensor + pair + logs, "backward": 3 * tensor + 2 * pair + 2 * logs}
    return Group(
        case, size, made, unavailable, grad, check_grad, expected, pick, "one head, all rows",
        checks.TOLERANCE[size.dtype], {"forward": forward, "backward": 2 * forward, "both": 3 * forward},
        moved | {"both": sum(moved.values())},
    )  # fmt: skip
