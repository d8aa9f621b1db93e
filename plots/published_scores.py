"""Scores printed in Memory Mosaics v2 (arXiv 2507.03285), with what each costs by the `published` convention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A printed score (RULER question answering, percent) of a model whose FLOPs our counter gives at that context."""

    label: str
    size: str
    model: str
    removed: bool
    score: float


PUBLISHED_AT = 32_768
PUBLISHED = (
    Published("transformer small (16-layer count)", "small, 16 layers", "transformer", False, 22.1),
    Published("mosaic v2 small (16-layer count)", "small, 16 layers", "mosaic-v2", False, 36.9),
    Published("transformer large", "large", "transformer", False, 41.1),
    Published("mosaic v2 large", "large", "mosaic-v2", False, 53.4),
    Published("mosaic v2 large, long-term removed", "large", "mosaic-v2", True, 20.2),
)
"""Memory Mosaics v2 (arXiv 2507.03285), fine-tuned at 32k and scored there: mean of RULER's QA1 and QA2."""


def published_cost(printed: Published) -> tuple[float, int]:
    """FLOPs per token at `PUBLISHED_AT` and parameters of a published model, by the `published` convention."""
    from mmctl.models import flops
    from mmctl.models.published import VOCABULARY, model_config

    config = model_config(printed.size, printed.model)
    cost = flops.flops_per_token(config, VOCABULARY, PUBLISHED_AT, "published", printed.removed)
    return cost, flops.parameters(config, VOCABULARY, "published", printed.removed)
