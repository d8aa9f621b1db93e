"""A run small enough to train in a second, on tasks that need no corpus."""

from __future__ import annotations

TINY = (
    "model.layers=1 model.width=16 model.heads=2 model.ffn_width=16 model.window=8 model.delay_min=2 model.delay_max=8 "
    "data.length=32 data.batch=4 data.vocabulary=512 data.mixture={recall: 1, facts: 1} "
    "training.steps=12 training.warmup=2 training.precision=float32 operation.mlflow=false operation.log_every=2 operation.checkpoint_every=3 "
    "evaluation.suites=[new-knowledge] evaluation.lengths=[1] evaluation.examples=4"
)


def tiny_overrides() -> list[str]:
    words = TINY.replace("{recall: 1, facts: 1}", "{recall:_1,facts:_1}").split()
    return [w.replace(":_", ": ") for w in words]
