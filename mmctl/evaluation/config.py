"""The `evaluation` section: how a trained model is measured. Nothing here is part of a run's identity."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmctl.errors import UsageError, nearest

MOST_RESAMPLES = 100_000
"""An interval's ends are known to a hundredth of its width long before; a million times the examples fills the
memory."""


@dataclass
class EvaluationConfig:
    """What is measured at the end of a run, and by `mmctl eval`."""

    suites: list[str] = field(default_factory=lambda: ["persistent", "new-knowledge", "in-context"])
    """Suites evaluated at the end of a run; of each, the tasks that are in the mixture."""
    lengths: list[int] = field(default_factory=lambda: [1, 2, 4, 8])
    """Multiples of data.length."""
    examples: int = 128
    """Held-out sequences of each task at the training length. At k times that length examples / k are drawn, so that
    every length costs about the same number of tokens; the number used stands beside each score."""
    minimum_examples: int = 32
    """But never fewer than this (or than `examples`, if that is less)."""
    seed: int = 0
    """Seed of the held-out sequences. The same for every model and run seed, so that all see the same examples."""
    resamples: int = 2000
    """Bootstrap resamples behind each 95% interval."""
    batch_tokens: int = 16384
    """Most tokens in one forward pass (at least one sequence). Bounds memory; cannot change a score."""
    validation: bool = False
    """Also measure the mixture's loss on validation sequences, which neither training nor any reported number uses: what
    `mmctl ablate --tune` chooses by."""
    attention: int = 0
    """Also measure where the last query looks (evaluation/attention.py): flatness far from it, and the mass on so many
    last positions, the peak. The same number for all models that are compared: h, say. 0: not measured."""

    def validate(self) -> None:
        """Raise UsageError, one line naming the key."""
        from mmctl.evaluation.suites import SUITES

        for suite in self.suites:
            if suite not in SUITES:
                raise UsageError(f'evaluation.suites: "{suite}" is no suite{nearest(suite, SUITES, "suites")}')
        for key in ("suites", "lengths"):
            values = getattr(self, key)
            if len(set(values)) != len(values):
                raise UsageError(f"evaluation.{key}={values}: each value once")
        if not self.lengths or min(self.lengths) < 1:
            raise UsageError(f"evaluation.lengths={self.lengths}: expected whole multiples of at least 1")
        for key, low in (
            ("examples", 2),
            ("minimum_examples", 2),
            ("seed", 0),
            ("resamples", 100),
            ("batch_tokens", 1),
            ("attention", 0),
        ):
            if getattr(self, key) < low:
                raise UsageError(f"evaluation.{key}={getattr(self, key)}: expected a whole number of at least {low}")
        if self.resamples > MOST_RESAMPLES:
            raise UsageError(f"evaluation.resamples={self.resamples}: expected at most {MOST_RESAMPLES}")

    def examples_at(self, multiple: int) -> int:
        """Sequences drawn at `multiple` times the training length."""
        return max(self.examples // multiple, min(self.minimum_examples, self.examples))
