"""What an arm costs, and in what two arms differ besides what is being compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mmctl.config import Config
from mmctl.sweeps.cells import Cell, parameters
from mmctl.sweeps.matrix import Arm, Matrix
from mmctl.sweeps.plan import Plan

if TYPE_CHECKING:
    from mmctl.sweeps.comparing import Scored

TOLERANCE = 0.01
"""Relative difference in parameters, FLOPs or tokens from which a comparison is called unmatched."""

STEPS_TO_TARGET = "diagnostics:steps-to-target"
"""Metric: how long a run trained until its target, where it ends there."""


def cost(cell: Cell, arm: Arm) -> dict[str, Any]:
    """Parameters, forward FLOPs per token by both conventions at the training length, and training tokens of an arm (at
    most, where it `ends_early`)."""
    return cost_of(cell.config, arm)


def cost_of(config: Config, arm: Arm) -> dict[str, Any]:
    from mmctl.models import flops

    removed = arm.evaluate.remove_long_term
    return {
        "parameters": parameters(config, removed),
        "context": config.data.length,
        "flops_per_token": {
            convention: flops.flops_per_token(
                config.model, config.data.vocabulary, config.data.length, convention, removed
            )
            for convention in ("published", "executed")
        },
        "training_tokens": config.training.steps * config.data.batch * config.data.length,
        **({"ends_early": True} if config.training.select_stop else {}),
        **({"added_flops": added} if (added := arm.evaluate.added_flops(config)) else {}),
    }


def tokens_taken(arm: Mapping[str, Any]) -> float:
    """Training tokens of a run of an arm of results.json: as planned, or the mean of what was taken where training ends
    at a target."""
    taken = arm["scores"].get("tokens") if arm["cost"].get("ends_early") else None
    return float(arm["cost"]["training_tokens"] if taken is None else taken["mean"])


def unmatched(
    plan: Plan,
    matrix: Matrix,
    one: str,
    other: str,
    scored: Mapping[tuple[str, str], Scored],
    metric: str | None = None,
) -> list[str]:
    """In what two arms differ by more than `TOLERANCE`, in words: ["parameters +12.4%", ...].

    Two readings of the same trained run match: what differs between them is what is being asked. So do the lengths of
    training where `metric` is that length. Where training ends at a target, the tokens are those taken, the mean over
    the seeds that both arms have finished; planned ones where there are none.
    """
    if plan.arms[matrix.name, one] == plan.arms[matrix.name, other]:
        return []
    a = cost(plan.cell(matrix.name, one), matrix.arm(one))
    b = cost(plan.cell(matrix.name, other), matrix.arm(other))
    pairs = {
        "parameters": (a["parameters"], b["parameters"]),
        "FLOPs per token (executed)": (a["flops_per_token"]["executed"], b["flops_per_token"]["executed"]),
    }
    if metric != STEPS_TO_TARGET:
        pairs["training tokens"] = _tokens(
            a, b, scored.get((matrix.name, one), {}), scored.get((matrix.name, other), {})
        )
    changes = {what: x / y - 1.0 for what, (x, y) in pairs.items()}
    return [f"{what} {100 * change:+.1f}%" for what, change in changes.items() if abs(change) > TOLERANCE]


def _tokens(a: Mapping[str, Any], b: Mapping[str, Any], one: Scored, other: Scored) -> tuple[float, float]:
    seeds = [seed for seed in one if seed in other and "tokens" in one[seed] and "tokens" in other[seed]]
    if not seeds or not (a.get("ends_early") or b.get("ends_early")):
        return a["training_tokens"], b["training_tokens"]
    return sum(one[seed]["tokens"].value for seed in seeds), sum(other[seed]["tokens"].value for seed in seeds)


def delays(config: Config, arm: Arm) -> dict[str, Any] | None:
    """m, the long-term memory's delay in tokens: {training: [lowest, highest], evaluation}; None without such a memory.

    training is drawn anew at every step where lowest < highest; evaluation is None where the memory is removed.
    """
    model: Any = config.model
    if not hasattr(model, "delay_min") or not getattr(model, "long_term", True):
        return None
    highest = model.delay_max if model.long_term_mask == "stochastic" else model.delay_min
    used = None if arm.evaluate.remove_long_term else arm.evaluate.delay or model.inference_delay
    return {"training": [model.delay_min, highest], "evaluation": used}
