"""`--match params | flops | tokens`: the same budget for every arm, by changing sizes (or steps) and saying by how much
it missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmctl.errors import UsageError, nearest
from mmctl.sweeps.matrix import Arm, Match, Matrix

if TYPE_CHECKING:
    from mmctl.sweeps.plan import Plan

BUDGETS = {"params": "parameters", "flops": "flops", "tokens": "tokens"}


def matched(matrices: Sequence[Matrix], budget: str) -> list[Matrix]:
    """Matrices in which every arm that trains something of its own is matched to the first arm, so that any two of them
    compare. An arm with a match of its own keeps its sizes. UsageError for an unknown budget, a model without known
    sizes, or an arm that varies the size it would be matched by.

    tokens: every arm already trains on as many tokens a step; an arm that trains longer (`times`) is cut to the others'
    steps.
    """
    if budget not in BUDGETS:
        raise UsageError(f"--match {budget}: expected one of {', '.join(BUDGETS)}{nearest(budget, BUDGETS)}")
    return [
        replace(matrix, arms=tuple(_arm(matrix, arm, BUDGETS[budget]) for arm in matrix.arms)) for matrix in matrices
    ]


def _arm(matrix: Matrix, arm: Arm, what: str) -> Arm:
    from mmctl.models import config_class

    if what == "tokens":
        return replace(arm, times={key: n for key, n in arm.times.items() if key != "training.steps"})
    first = matrix.arms[0]
    if arm is first or not (arm.set or arm.times or arm.match):
        return arm
    if arm.match is not None:  # its own target may have moved
        return replace(arm, match=Match(first.name, what, arm.match.keys))
    name = str(arm.set.get("model.name", matrix.baseline.get("model.name", "mosaic-v2")))
    sizes = config_class(name).matched_by
    if not sizes:
        raise UsageError(
            f'--match: {matrix.name}/{arm.name}: model "{name}" has no size to match by; give the arm a `match`'
        )
    for key in sizes:
        if key in arm.set:  # a match would undo what is being varied
            raise UsageError(
                f"--match: {matrix.name}/{arm.name} sets {key} itself, the size it would be matched by: leave this "
                "ablation out"
            )
    return replace(arm, match=Match(first.name, what, sizes))


def misses(plan: Plan, budget: str) -> list[str]:
    """One line an arm that was matched: the sizes chosen and what remains between it and its target."""
    from mmctl.sweeps.cells import cost

    lines = []
    for matrix in plan.matrices:
        for arm in matrix.arms:
            if arm.match is None or arm.match.what != BUDGETS[budget]:
                continue
            try:
                own, target = (plan.cell(matrix.name, name) for name in (arm.name, arm.match.of))
            except KeyError:
                continue  # the target was left out by a selection
            left = cost(own.config, arm.match.what) / cost(target.config, arm.match.what) - 1
            sizes = ", ".join(f"{key}={_value(own.config, key)}" for key in arm.match.keys)
            lines.append(f"{matrix.name}/{arm.name}: {sizes}; {arm.match.what} {left:+.2%} against {arm.match.of}")
    return lines


def _value(config: Any, key: str) -> Any:
    return getattr(config.model, key.removeprefix("model."))
