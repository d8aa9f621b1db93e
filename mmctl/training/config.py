"""Configuration of the training loop (recipe: memory mosaics v2, Table 6 and appendix C)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mmctl.errors import UsageError, nearest
from mmctl.models.config import expect, one_of

MOST_THREADS = 1024
"""Threads beyond which torch would fail, or take the machine down, instead of saying what is wrong."""


@dataclass
class TrainingConfig:
    """AdamW with warm-up and cosine decay; the numbers of steps and rates belong to a scale, so presets give them."""

    steps: int = 500
    """Optimiser steps."""
    learning_rate: float = 3e-3
    """Peak learning rate."""
    final_fraction: float = 0.01
    """The cosine ends at this fraction of the peak (1/100 in the paper)."""
    warmup: int = 50
    """Steps of linear warm-up (2000 in the paper)."""
    weight_decay: float = 0.1
    """AdamW weight decay, on matrices only."""
    beta1: float = 0.9
    """AdamW beta_1."""
    beta2: float = 0.95
    """AdamW beta_2."""
    clip: float = 1.0
    """Largest norm of the gradient over all parameters; 0 leaves it alone."""
    accumulation: int = 1
    """Parts a step's batch is cut into; their gradients add up to the whole batch's, so only memory and rounding
    change. Several processes share the parts: none ever holds more sequences at a time than one process would."""
    precision: str = "auto"
    """float32, bf16 (autocast for the matrix products), or auto: bf16 on CUDA and on CPUs with bf16 matrix units when
    d >= 128 (below that the casts cost more than the products), else float32. The choice made is what config.yaml and
    the identity record."""
    threads: int = 1
    """CPU threads of this run. Part of the run, so that --jobs cannot change a sum's order and with it a result."""
    activation_checkpointing: bool = False
    """Keep only each block's input for the backward pass and compute the rest again: less memory, about a third more
    time, the same numbers."""
    compile: bool = False
    """Compile each block with torch.compile. Faster on a GPU after minutes of compiling; rounding changes, so the run
    is another one."""
    evaluate_every: int = 0
    """Steps between held-out losses during training; 0: only at the end."""
    select: str | None = None
    """TASK/SCORE (regbench/accuracy): the weights that are best by it on validation sequences of training length, which
    neither training nor any reported number uses, are the run's; null: the last step's. Of losses and distances the
    lowest is best. Needs a task of the mixture that draws its sequences afresh."""
    select_every: int = 25
    """Steps between validations; the last step is always validated."""
    select_examples: int = 64
    """Validation sequences, drawn from the run's seed."""
    select_target: float | None = None
    """Validation score whose first step is recorded (`diagnostics:steps-to-target`); null: none."""
    select_stop: bool = False
    """End the training at that step. The rate's schedule stays that of training.steps."""

    def validate(self) -> None:
        for key in ("steps", "accumulation", "threads", "select_every", "select_examples"):
            expect(
                getattr(self, key) >= 1, f"training.{key}={getattr(self, key)}: expected a whole number of at least 1"
            )
        expect(
            self.threads <= MOST_THREADS,
            f"training.threads={self.threads}: expected at least 1 and at most {MOST_THREADS}",
        )
        for key in ("warmup", "evaluate_every"):
            expect(
                getattr(self, key) >= 0, f"training.{key}={getattr(self, key)}: expected a whole number of at least 0"
            )
        for key in ("weight_decay", "clip"):
            value = getattr(self, key)
            expect(0 <= value < math.inf, f"training.{key}={value}: expected a finite number of at least 0")
        expect(
            0 <= self.final_fraction <= 1,
            f"training.final_fraction={self.final_fraction}: expected a number in [0, 1]",
        )
        for key in ("beta1", "beta2"):
            expect(0 <= getattr(self, key) < 1, f"training.{key}={getattr(self, key)}: expected a number in [0, 1)")
        expect(
            0 < self.learning_rate < math.inf,
            f"training.learning_rate={self.learning_rate}: expected a finite number above 0",
        )
        one_of("training.precision", self.precision, ("auto", "float32", "bf16"))
        target = self.select_target
        expect(
            target is None or self.select is not None,
            f"training.select_target={target}: is for training.select, which is null",
        )
        expect(
            target is None or math.isfinite(target),
            f"training.select_target={target}: expected a finite number, or null",
        )
        expect(
            not self.select_stop or target is not None,
            "training.select_stop=True: expected a training.select_target to stop at",
        )

    def validate_selection(self, data: Any) -> None:
        """UsageError unless training.select names a score of a task that `data` trains on and draws afresh."""
        if self.select is None:
            return
        from mmctl.data import build_task

        name, score = selected(self.select)
        trained = data.tasks_in_mixture()
        if name not in trained:
            raise UsageError(
                f'training.select="{self.select}": expected TASK/SCORE of a task in data.mixture'
                f"{nearest(name, trained, 'tasks')}"
            )
        task = build_task(name, data)
        if not task.draws_afresh:
            raise UsageError(
                f'training.select="{self.select}": validation would use what {name} is reported on, expected a task that '
                "draws its sequences afresh"
            )
        names = task.score_names(data.length)
        if score not in names:
            raise UsageError(f'training.select="{self.select}": no such score{nearest(score, names, f"of {name}")}')

    def resolve(self, device: str, width: int) -> None:
        """Replace precision=auto by what this machine takes, before anything is recorded or hashed."""
        if self.precision != "auto":
            return
        import torch

        if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
            self.precision = "bf16"
        else:
            # CPU time of a step in bf16 over float32, interleaved, one thread, AMX: at d = 128, T = 256 transformer
            # 0.76, mosaic-v2 0.83; at d = 64, T = 128 transformer 1.53, mosaic-v2 0.91. One rule for all models of a
            # sweep.
            units = getattr(torch.cpu, "_is_amx_tile_supported", bool)()
            self.precision = "bf16" if units and width >= 128 else "float32"


def selected(select: str) -> tuple[str, str]:
    """Task and score of training.select."""
    task, _, score = select.partition("/")
    return task, score
