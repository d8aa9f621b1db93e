"""`--only` and `--skip`: which arms of which ablations a sweep is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mmctl.config import flat, load
from mmctl.errors import UsageError, nearest
from mmctl.sweeps.matrix import Arm, Matrix
from mmctl.sweeps.profiles import Profile


def select(
    matrices: Sequence[Matrix], only: Sequence[str], skip: Sequence[str], profile: Profile | None = None
) -> list[Matrix]:
    """Matrices with the arms that match any of `only` (all, without one) and none of `skip`.

    A selector is an ablation (`bandwidth`), an arm (`constant`, or `bandwidth/constant` where several ablations have
    one of that name) or an axis value (`model.bandwidth=constant`, or its last part: `bandwidth=constant`).
    Comma-separated lists are allowed. With `profile`, an arm that does not set a key other arms of its ablation set has
    the baseline's value there: `model.long_term=true` finds the arms that do not remove it. A selector that matches
    nothing is a usage error with the nearest that would.
    """
    if profile is not None and any("=" in text for text in (*only, *skip)):
        matrices = [_completed(matrix, profile) for matrix in matrices]
    for option, texts in (("--only", only), ("--skip", skip)):
        for text in texts:
            if not all(word.strip() for word in text.split(",")):
                raise UsageError(f'{option} "{text}": expected ablations, arms or axis values, separated by commas')
    wanted, unwanted = _split(only), _split(skip)
    for option, selectors in (("--only", wanted), ("--skip", unwanted)):
        for selector in selectors:
            if not any(matches(selector, m, a) for m in matrices for a in m.arms):
                raise UsageError(
                    f'{option} "{selector}": no such ablation, arm or axis value{_nearest(selector, matrices)}'
                )
    kept = []
    for matrix in matrices:
        arms = tuple(
            arm
            for arm in matrix.arms
            if (not wanted or any(matches(s, matrix, arm) for s in wanted))
            and not any(matches(s, matrix, arm) for s in unwanted)
        )
        if arms:
            left_out = tuple(a for a in matrix.arms if a not in arms)
            kept.append(replace(matrix, arms=arms, siblings=(*matrix.siblings, *left_out)))
    if not kept:
        raise UsageError("--only and --skip leave no arm to run")
    return kept


def _completed(matrix: Matrix, profile: Profile) -> Matrix:
    """The matrix with every arm's level on every key that some arm sets."""
    keys = dict.fromkeys(key for arm in matrix.arms for key in arm.set)
    try:
        base = flat(load(profile.preset, (), [profile.set, matrix.baseline]))
    except UsageError:  # the plan says what is wrong with it, in its own words
        return matrix
    defaults = {key: base[key] for key in keys if key in base}
    evaluation = {"remove_long_term": False} if any("remove_long_term" in arm.levels for arm in matrix.arms) else {}
    return replace(
        matrix, arms=tuple(replace(arm, levels={**evaluation, **defaults, **arm.levels}) for arm in matrix.arms)
    )


def matches(selector: str, matrix: Matrix, arm: Arm) -> bool:
    if selector in (matrix.name, arm.name, f"{matrix.name}/{arm.name}"):
        return True
    key, equals, value = selector.partition("=")
    return bool(equals) and any(
        (k == key or k.rpartition(".")[2] == key) and _shown(v) == value for k, v in arm.levels.items()
    )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _split(selectors: Sequence[str]) -> list[str]:
    return [word.strip() for text in selectors for word in text.split(",") if word.strip()]


def _nearest(selector: str, matrices: Sequence[Matrix]) -> str:
    valid = [m.name for m in matrices] + [a.name for m in matrices for a in m.arms]
    valid += [f"{k.rpartition('.')[2]}={_shown(v)}" for m in matrices for a in m.arms for k, v in a.levels.items()]
    return nearest(selector, valid, "such as")
