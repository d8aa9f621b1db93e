"""The training loop, readable top to bottom.

Everything a step does is a function of (configuration, seed, step): the batch, this step's m, the learning rate. A
checkpoint therefore holds weights, optimizer state, the step number and the running sums of the losses, and a resumed
run is bitwise the run that never stopped (CPU; CUDA with deterministic algorithms). Several processes draw the same
batch and the same m, and share the batch's sequences; sums over them change rounding and nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from mmctl.config import Config
from mmctl.data.mixture import Mixture
from mmctl.models.base import Model
from mmctl.training.losses import Means, held_out_losses, step_losses, step_means
from mmctl.training.progress import Listener, Progress, silent
from mmctl.training.ranks import ALONE, Diverged, Interrupted, Ranks
from mmctl.training.selection import Selection
from mmctl.training.signals import signals

DELAY_STREAM = 1_000_003
"""Private random stream of the stochastic long-term mask, apart from the data's streams."""
TAIL = 0.1
"""The training loss of a run is the mean over this last part of its steps."""


@dataclass
class Hooks:
    """What the loop tells the world; every call may be left out."""

    metrics: Callable[[int, dict[str, float]], object] = lambda step, values: None
    checkpoint: Callable[[int, dict[str, Any]], object] = lambda step, payload: None
    listener: Listener = silent
    run: str = "run"


def learning_rate(step: int, config: Any) -> float:
    """Rate of step `step` (1-based): linear warm-up, then a cosine from the peak to final_fraction of it."""
    if step <= config.warmup:
        return config.learning_rate * step / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    low = config.final_fraction
    return config.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def train(
    model: Model,
    config: Config,
    device: torch.device,
    hooks: Hooks | None = None,
    resume: dict[str, Any] | None = None,
    flops_per_token: float = 0.0,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Train to config.training.steps. Returns training losses (means over the last tenth), tokens and seconds.

    With training.select the model ends with its best weights; held-out losses are theirs, training losses are not.
    `resume` is a payload as `hooks.checkpoint` received it. Every process of `ranks` calls this with its part of the
    model (`ranks.place`). Raises Interrupted (after saving) or Diverged, on all processes at the same step.
    """
    from mmctl.runs.checkpoint import flatten, unflatten

    t, hooks = config.training, hooks or Hooks()
    mixture = Mixture(config.data, config.seed)
    optimizer = torch.optim.AdamW(
        model.parameter_groups(t.weight_decay), lr=t.learning_rate, betas=(t.beta1, t.beta2), fused=True
    )
    window, tail, start, seconds_before, tokens = Means(), Means(), 0, 0.0, 0
    if resume is not None:
        model.load_state_dict(resume["tensors"]["model"])
        optimizer.load_state_dict(unflatten(resume["tensors"]["optimizer"], resume["state"]["optimizer"]))
        state = resume["state"]
        start, tokens, seconds_before = state["step"], state["tokens"], state["seconds"]
        window, tail = Means(state["window"]), Means(state["tail"])
    selection = Selection(config, resume)
    parameters = list(model.parameters())
    began, ended = time.perf_counter(), start

    def payload(step: int) -> dict[str, Any]:
        tensors, optimizer_state = flatten(optimizer.state_dict())
        return {
            "tensors": {"model": model.state_dict(), "optimizer": tensors, **selection.tensors()},
            "state": {
                "step": step,
                "tokens": tokens,
                "seconds": seconds_before + time.perf_counter() - began,
                "optimizer": optimizer_state,
                "window": window.sums,
                "tail": tail.sums,
                **({"selection": dict(selection.state)} if selection.active else {}),
            },
        }

    model.train()
    with signals() as received:
        for step in range(start + 1, (start if selection.done else t.steps) + 1):
            batch = mixture.batch(step)
            delay = model.sample_delay(np.random.default_rng([config.seed, DELAY_STREAM, step]))
            rate = learning_rate(step, t)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
            parts, noise = [], (config.seed, step)
            for part, losses, tasks in step_losses(
                model, batch, delay, device, t.precision, t.accumulation, ranks, noise
            ):
                part.backward()  # type: ignore[no-untyped-call]
                parts.append((part.item(), losses, tasks))
            model.noise = None
            means = step_means(batch.names, parts, ranks)
            loss = means.pop("loss")
            total = ranks.whole(get_total_norm([p.grad for p in parameters if p.grad is not None]))
            clip_grads_with_norm_(parameters, t.clip if t.clip > 0 else math.inf, total)
            norm = total.item()
            if not math.isfinite(loss) or not math.isfinite(norm):
                hooks.metrics(step, {"loss": loss, "gradient_norm": norm, "learning_rate": rate})
                raise Diverged(step, "the loss" if not math.isfinite(loss) else "the gradient")
            optimizer.step()
            tokens += batch.tokens.size
            values = {"loss": loss, "gradient_norm": norm, **means}
            window.add(values)
            if step > t.steps * (1 - TAIL):
                tail.add(values)

            seconds = seconds_before + time.perf_counter() - began
            validation = selection.validate(step, model, device, ranks) if selection.due(step) else {}
            last = step == t.steps or selection.done
            if step % config.operation.log_every == 0 or last or validation:
                row = {**window.means(), "learning_rate": rate, "tokens": tokens, "seconds": seconds, **validation}
                row |= {"flops": 3 * flops_per_token * tokens, **ranks.diagnostics(model)}
                if t.evaluate_every and (step % t.evaluate_every == 0 or last):
                    row |= held_out_losses(model, mixture, device, t.precision, ranks)
                hooks.metrics(step, row)
                window.clear()
            # Read once: a signal that comes after the saving is for the next step, which saves again.
            stopped_by = ranks.signal(received)
            if stopped_by or last or step % config.operation.checkpoint_every == 0:
                hooks.checkpoint(step, payload(step))
            speed = (step - start) / (time.perf_counter() - began)
            hooks.listener(
                Progress(
                    hooks.run, "training", step, t.steps, loss, speed * batch.tokens.size, (t.steps - step) / speed
                )
            )
            ended = step
            if stopped_by and not last:
                raise Interrupted(stopped_by)
            if last:
                break
        interrupted = ranks.signal(received)
    selection.restore(model)
    model.eval()
    # Nothing of a training that ended before its last tenth: such a mean would be compared with others' ends.
    return {
        **{f"train_{name}": value for name, value in tail.means().items()},
        **held_out_losses(model, mixture, device, t.precision, ranks),
        **selection.result(),
        "steps": ended,
        "tokens": tokens,
        "seconds": seconds_before + time.perf_counter() - began,
        "interrupted": interrupted,
    }
