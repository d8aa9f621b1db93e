"""The one analytic counter: parameters and forward FLOPs per token, of any registered model, without building it.

Two conventions, always named and never mixed in one number:

- `published`: what reproduces the figures printed in Memory Mosaics v2 (arXiv 2507.03285): matrices only (no gates,
  norms or per-head scalars), one triangle of the mask, short-term memory at its first-order cost.
- `executed`: what the operations really do: every parameter, gates, whole tiles of a window, the key scan's chunks, and
  causal reads at the full square, as torch counts them. It agrees with torch's FlopCounterMode once
  `mmctl.kernels.flops.register_flop_formulas()` has run.

FLOPs per token at context n means: the forward pass over a sequence of n tokens, divided by n. Multiplying by 3 gives a
training step (backward costs twice the forward).

A model counts itself: its class has `costs(config, ask)`, beside the modules it counts, built from the parts below.
This module imports no torch; dispatching to a model's class does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mmctl.errors import UsageError, nearest

Convention = Literal["published", "executed"]
CONVENTIONS: tuple[str, ...] = get_args(Convention)


@dataclass(frozen=True)
class Cost:
    """Parameters, and forward FLOPs per token, of one part of a model. Adds, and multiplies by a number of layers."""

    parameters: float = 0
    flops: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.parameters + other.parameters, self.flops + other.flops)

    def __mul__(self, times: float) -> Cost:
        return Cost(self.parameters * times, self.flops * times)


@dataclass(frozen=True)
class Ask:
    """What is asked of a model: vocabulary V, context n (tokens), convention, and whether long-term memory is cut
    out."""

    vocabulary: int
    context: int
    convention: Convention = "executed"
    remove_long_term: bool = False

    @property
    def executed(self) -> bool:
        return self.convention == "executed"


def dense(inputs: int, outputs: int) -> Cost:
    """A matrix product: inputs x outputs parameters, two FLOPs each."""
    return Cost(inputs * outputs, 2.0 * inputs * outputs)


def scalars(count: int, ask: Ask) -> Cost:
    """Parameters outside matrix products (norm weights, one number a head): not counted as published, no FLOPs."""
    return Cost(count if ask.executed else 0)


def swiglu(width: int, hidden: int) -> Cost:
    """W_1, W_3: d -> d' and W_2: d' -> d."""
    return dense(width, 2 * hidden) + dense(hidden, width)


def memory_read(
    ask: Ask, width: int, heads: int, *, window: int | None = None, delay: int | None = None, offset: int = 0
) -> Cost:
    """One `memory_attention` of full width: short-term (`window` = h) or long-term (`delay` = m). No parameters.

    Published: 2 + 2 FLOPs per channel and pair, n/2 pairs a token whatever the delay, min(n, h)/2 for a window.
    `offset`: the operation's query_offset, for reads that do not start at the first pair.
    """
    if not ask.executed:
        return Cost(0, 2.0 * min(ask.context, window or ask.context) * width)
    from mmctl.kernels.flops import memory_attention_flops

    n = ask.context
    done = memory_attention_flops(1, heads, n, width // heads, window=window, delay=delay, rows=n, query_offset=offset)
    return Cost(0, done / n)


def scan(ask: Ask, width: int, heads: int) -> Cost:
    """One `key_scan` of full width; not counted as published. No parameters."""
    if not ask.executed:
        return Cost()
    from mmctl.kernels.flops import key_scan_flops

    return Cost(0, key_scan_flops(1, heads, ask.context, width // heads) / ask.context)


def attention(ask: Ask, width: int, heads: int, *, delay: int = 0) -> Cost:
    """One causal softmax attention of full width through torch's SDPA, `delay` tokens behind. No parameters."""
    if not ask.executed:
        return Cost(0, 2.0 * ask.context * width)
    from mmctl.kernels.flops import sdpa_flops

    rows, each = max(0, ask.context - delay), width // heads
    return Cost(0, sdpa_flops((1, heads, rows, each), (1, heads, rows, each), (1, heads, rows, each)) / ask.context)


def slots(width: int, count: int) -> Cost:
    """`count` learned (key, value) pairs a head, all of them read at every token (v1's persistent memory)."""
    return Cost(2 * count * width, 4.0 * count * width)


def ends(width: int, ask: Ask, tied: bool = False) -> dict[str, Cost]:
    """Embedding (looked up: no FLOPs) and classifier, `tied` to one matrix or not."""
    classifier = dense(width, ask.vocabulary)
    return {
        "embedding": Cost(ask.vocabulary * width),
        "classifier": Cost(0, classifier.flops) if tied else classifier,
    }


def parts(
    model: Any, vocabulary: int, context: int, convention: str = "executed", remove_long_term: bool = False
) -> dict[str, Cost]:
    """Cost of each part of the model that the configuration `model` describes. Raises UsageError on a wrong
    question."""
    from mmctl.models import model_class

    if convention not in CONVENTIONS:
        raise UsageError(f'convention="{convention}": no such convention{nearest(convention, CONVENTIONS)}')
    if context < 1:
        raise UsageError(f"context={context}: expected a whole number of tokens, at least 1")
    ask = Ask(vocabulary, context, convention, remove_long_term)  # type: ignore[arg-type]
    return model_class(model.name).costs(model, ask)


def total(costs: Mapping[str, Cost]) -> Cost:
    return sum(costs.values(), Cost())


def parameters(model: Any, vocabulary: int, convention: str = "executed", remove_long_term: bool = False) -> int:
    """Number of parameters. `executed` is exact: what the built model's `parameter_count()` gives."""
    return round(total(parts(model, vocabulary, 1, convention, remove_long_term)).parameters)


def flops_per_token(
    model: Any, vocabulary: int, context: int, convention: str = "published", remove_long_term: bool = False
) -> float:
    """Forward FLOPs per token over sequences of `context` tokens.

    remove_long_term: as if the long-term memories were cut out, their projections included (the paper counts it so).
    """
    return total(parts(model, vocabulary, context, convention, remove_long_term)).flops
