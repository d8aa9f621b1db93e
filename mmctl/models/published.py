"""Sizes, parameters and FLOPs printed in Memory Mosaics v2 (arXiv 2507.03285), beside what our counter says of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mmctl.models import config_class, flops

VOCABULARY = 128_256
"""Derived, with untied embeddings: the only reading that reproduces the printed parameters."""

LONG_CONTEXT = 32_768

SIZES: dict[str, dict[str, int]] = {
    "large": {"layers": 32, "width": 4096, "heads": 32, "ffn_width": 14336},
    "small": {"layers": 24, "width": 2048, "heads": 16, "ffn_width": 6144},
    "small, 16 layers": {"layers": 16, "width": 2048, "heads": 16, "ffn_width": 6144},
}

SMALL_NOTE = (
    'The small row fits no reading of the published sizes: "24 layers, d = 2048, d\' = 6144" gives 6.36 and 6.79 B FLOPs\n'
    "at 32,768 where 4.4 and 4.7 B are printed; 16 layers give 4.42 and 4.70 B exactly. The printed 1.5 and 1.6 B\n"
    "parameters lie between the two (1.83 and 2.04 B with 24 layers, 1.40 and 1.53 B with 16). Both are shown; which one\n"
    "was trained is not ours to decide."
)


@dataclass(frozen=True)
class Row:
    """One printed row: billions as printed, None where the paper prints nothing."""

    size: str
    model: str
    removed: bool
    parameters: str | None
    flops: tuple[tuple[int, str], ...]
    """(context, printed)."""


LARGE = (
    Row("large", "transformer", False, "8.8", ((256, "16.7"), (LONG_CONTEXT, "25.2"))),
    Row("large", "mosaic-v2", False, "9.9", ((256, "18.9"), (LONG_CONTEXT, "27.4"))),
    Row("large", "mosaic-v2", True, "8.3", ((256, "15.6"),)),
)
SMALL = tuple(
    Row(size, model, False, parameters, ((LONG_CONTEXT, flops_),))
    for size in ("small", "small, 16 layers")
    for model, parameters, flops_ in (("transformer", "1.5", "4.4"), ("mosaic-v2", "1.6", "4.7"))
)


@dataclass(frozen=True)
class Cell:
    """A printed figure and ours: `what` is "P" or the context of "F", `ours` the exact number."""

    row: Row
    what: str
    printed: str
    ours: float

    @property
    def matches(self) -> bool:
        """Ours, in billions, rounds to the printed digits."""
        return f"{self.ours / 1e9:.1f}" == self.printed


def model_config(size: str, model: str) -> Any:
    """Configuration of `model` at a published size (h = 256, m in [64, 256])."""
    sizes = dict(SIZES[size])
    if hasattr(config_class(model), "window"):
        sizes |= {"window": 256, "delay_min": 64, "delay_max": 256}
    return config_class(model)(**sizes)


def cells(rows: tuple[Row, ...] = LARGE + SMALL) -> Iterator[Cell]:
    """Every printed figure beside ours, by the `published` convention."""
    for row in rows:
        config = model_config(row.size, row.model)
        if row.parameters is not None:
            ours = flops.parameters(config, VOCABULARY, "published", row.removed)
            yield Cell(row, "P", row.parameters, ours)
        for context, printed in row.flops:
            yield Cell(
                row, str(context), printed, flops.flops_per_token(config, VOCABULARY, context, "published", row.removed)
            )
