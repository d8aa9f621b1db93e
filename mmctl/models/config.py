"""What every model's configuration shares. Each model's own dataclass stands in the model's file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from mmctl.errors import UsageError, nearest


def expect(condition: bool, message: str) -> None:
    """UsageError with `message` unless `condition` holds."""
    if not condition:
        raise UsageError(message)


def one_of(key: str, value: Any, valid: tuple[str, ...]) -> None:
    """UsageError unless `value` is one of `valid`."""
    if value not in valid:
        raise UsageError(f'{key}="{value}": expected one of {", ".join(valid)}{nearest(str(value), valid)}')


@dataclass
class ModelConfig:
    """The sizes every architecture has (memory-mosaics.md, section 7)."""

    matched_by: ClassVar[tuple[str, ...]] = ()
    """Sizes that `mmctl ablate --match` changes, each refining the ones before: those of the persistent memory, so that
    what is compared keeps its width and heads."""

    name: str = "mosaic-v2"
    """Name in the registry of models."""
    layers: int = 4
    """L, number of blocks."""
    width: int = 128
    """d, width of the residual stream."""
    heads: int = 4
    """H, heads a memory (or attention) has; each is d/H wide."""

    def validate(self) -> None:
        for key in ("layers", "width", "heads"):
            self._at_least_one(key)
        if self.width % self.heads:
            small = [h for h in range(1, min(math.isqrt(self.width), 10**6) + 1) if self.width % h == 0]
            fitting = [*small, *(self.width // h for h in small)]
            closest = min(fitting, key=lambda h: abs(h - self.heads))
            raise UsageError(
                f"model.heads={self.heads}: model.width={self.width} is not divisible by it; nearest that is: {closest}"
            )

    def _at_least_one(self, key: str) -> None:
        value = getattr(self, key)
        expect(value >= 1, f"model.{key}={value}: expected a whole number of at least 1")


@dataclass
class FeedForwardConfig(ModelConfig):
    """A model whose blocks end in a SwiGLU feed-forward."""

    matched_by: ClassVar[tuple[str, ...]] = ("model.ffn_width",)

    ffn_width: int = 384
    """d', hidden width of the SwiGLU feed-forward (the persistent memory of v2)."""

    def validate(self) -> None:
        super().validate()
        self._at_least_one("ffn_width")


@dataclass
class RangeConfig(FeedForwardConfig):
    """A model that reads a short window and a delayed past (memory-mosaics.md, section 5)."""

    window: int = 64
    """h: short-term memory at t reads the pairs t-h .. t-1 (256 in the paper)."""
    delay_min: int = 16
    """Lower end of the range of m (64 in the paper), also m at inference and of the fixed mask."""
    delay_max: int = 64
    """Upper end of the range of m (256 in the paper); at most h, so that nothing falls between the two memories."""
    delay: int | None = None
    """m at inference; null takes delay_min."""
    long_term_mask: str = "stochastic"
    """stochastic: one m a training step, uniform in [delay_min, delay_max]; fixed: delay_min in training too."""

    def validate(self) -> None:
        super().validate()
        one_of("model.long_term_mask", self.long_term_mask, ("stochastic", "fixed"))
        expect(self.window >= 1, f"model.window={self.window}: expected at least 1")
        expect(self.delay_min >= 1, f"model.delay_min={self.delay_min}: expected at least 1")
        expect(
            self.delay_max >= self.delay_min,
            f"model.delay_max={self.delay_max}: expected at least model.delay_min={self.delay_min}",
        )
        expect(
            self.delay_max <= self.window,
            f"model.delay_max={self.delay_max}: expected at most model.window={self.window}, "
            "or pairs would fall between the memories",
        )
        expect(self.delay is None or self.delay >= 1, f"model.delay={self.delay}: expected at least 1, or null")

    def validate_length(self, length: int) -> None:
        """A training length within a delay that training or inference uses would read a long-term memory of nothing."""
        used = (
            ["delay_min"] + ["delay_max"] * (self.long_term_mask == "stochastic") + ["delay"] * (self.delay is not None)
        )
        for key in used:
            expect(
                length > getattr(self, key),
                f"data.length={length}: expected more than model.{key}={getattr(self, key)}, "
                "or the long-term memory would not be read",
            )

    @property
    def inference_delay(self) -> int:
        return self.delay_min if self.delay is None else self.delay
