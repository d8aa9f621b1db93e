"""The training loop, readable top to bottom.

Everything a step does is a function of (configuration, seed, step): the batch, this step's m, the learning rate. A
checkpoint therefore holds weights, optimizer state, the step number and the running sums of the losses, and a resumed
run is bitwise the run that never stopped (CPU; CUDA with deterministic algorithms).
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mmctl.config import Config
from mmctl.data.mixture import Mixture, MixtureBatch
from mmctl.models.base import Model
from mmctl.training.progress import Listener, Progress, silent

DELAY_STREAM = 1_000_003
"""Private random stream of the stochastic long-term mask, apart from the data's streams."""
TAIL = 0.1
"""The training loss of a run is the mean over this last part of its steps."""


class Interrupted(Exception):
    """A signal asked to stop; the state has been saved. `signal` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


class Stopped(KeyboardInterrupt):
    """A signal that ends the work at once, without saving first: outside the loop, or a second one. `signal` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


class Diverged(Exception):
    """The loss or the gradient stopped being finite at `step`."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"{what} is not finite at step {step}")
        self.step = step


@dataclass
class Means:
    """Running means by name; sums and counts so that they survive a checkpoint exactly."""

    sums: dict[str, list[float]] = field(default_factory=dict)

    def add(self, values: dict[str, float]) -> None:
        for key, value in values.items():
            pair = self.sums.setdefault(key, [0.0, 0.0])
            pair[0] += value
            pair[1] += 1

    def means(self) -> dict[str, float]:
        return {k: s / n for k, (s, n) in self.sums.items()}

    def clear(self) -> None:
        self.sums = {}


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


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy (N,) in nats at each labelled position, in float32 (float64 for a float64 model)."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, targets, reduction="none")


@contextmanager
def autocast(device: torch.device, precision: str) -> Iterator[None]:
    """bf16 autocast for the matrix products when the configuration says so."""
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
        yield


def step_losses(
    model: Model, batch: MixtureBatch, delay: int | None, device: torch.device, precision: str, parts: int = 1
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each of `parts` slices of the batch: its part of the loss (0-d), and the (N,) losses and task indices."""
    for rows in np.array_split(np.arange(len(batch.tokens)), parts):
        if not len(rows):
            continue
        tokens, targets, weights = (
            torch.from_numpy(np.ascontiguousarray(a[rows])).to(device)
            for a in (batch.tokens, batch.targets, batch.weights)
        )
        documents = None
        if batch.documents is not None:
            documents = torch.from_numpy(np.ascontiguousarray(batch.documents[rows])).to(device)
        labelled = targets >= 0
        with autocast(device, precision):
            logits = model(tokens, documents=documents, delay=delay, labelled=labelled)
        losses = token_losses(logits, targets[labelled])
        task = torch.from_numpy(np.ascontiguousarray(batch.task[rows])).to(device)
        yield (losses * weights[labelled]).sum(), losses.detach(), task[:, None].expand_as(targets)[labelled]


def task_means(names: list[str], losses: Tensor, tasks: Tensor) -> dict[str, float]:
    """Mean loss of each task present, keyed "loss/<task>"."""
    sums = torch.zeros(len(names), dtype=losses.dtype, device=losses.device).index_add_(0, tasks, losses)
    counts = torch.bincount(tasks, minlength=len(names))
    rows = zip(names, sums.tolist(), counts.tolist(), strict=True)
    return {f"loss/{name}": total / count for name, total, count in rows if count}


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying, so that a step is finished and saved first. A second one kills."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _: Any) -> None:
        if received:
            raise Stopped(number)
        received.append(number)

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train(
    model: Model,
    config: Config,
    device: torch.device,
    hooks: Hooks | None = None,
    resume: dict[str, Any] | None = None,
    flops_per_token: float = 0.0,
) -> dict[str, Any]:
    """Train to config.training.steps. Returns training losses (means over the last tenth), tokens and seconds.

    `resume` is a payload as `hooks.checkpoint` received it. Raises Interrupted (after saving) or Diverged.
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
    parameters = list(model.parameters())
    began = time.perf_counter()

    def payload(step: int) -> dict[str, Any]:
        tensors, optimizer_state = flatten(optimizer.state_dict())
        return {
            "tensors": {"model": model.state_dict(), "optimizer": tensors},
            "state": {
                "step": step,
                "tokens": tokens,
                "seconds": seconds_before + time.perf_counter() - began,
                "optimizer": optimizer_state,
                "window": window.sums,
                "tail": tail.sums,
            },
        }

    model.train()
    with signals() as received:
        for step in range(start + 1, t.steps + 1):
            batch = mixture.batch(step)
            delay = model.sample_delay(np.random.default_rng([config.seed, DELAY_STREAM, step]))
            rate = learning_rate(step, t)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
            loss, parts = 0.0, []
            for part, losses, tasks in step_losses(model, batch, delay, device, t.precision, t.accumulation):
                part.backward()  # type: ignore[no-untyped-call]
                loss += part.item()
                parts.append((losses, tasks))
            norm = torch.nn.utils.clip_grad_norm_(parameters, t.clip if t.clip > 0 else math.inf).item()
            if not math.isfinite(loss) or not math.isfinite(norm):
                hooks.metrics(step, {"loss": loss, "gradient_norm": norm, "learning_rate": rate})
                raise Diverged(step, "the loss" if not math.isfinite(loss) else "the gradient")
            optimizer.step()
            tokens += batch.tokens.size
            values = {"loss": loss, "gradient_norm": norm}
            values |= task_means(batch.names, *(torch.cat(x) for x in zip(*parts, strict=True)))
            window.add(values)
            if step > t.steps * (1 - TAIL):
                tail.add(values)

            seconds = seconds_before + time.perf_counter() - began
            last = step == t.steps
            if step % config.operation.log_every == 0 or last:
                row = {**window.means(), "learning_rate": rate, "tokens": tokens, "seconds": seconds}
                row |= {"flops": 3 * flops_per_token * tokens, **model.diagnostics()}
                if t.evaluate_every and (step % t.evaluate_every == 0 or last):
                    row |= held_out_losses(model, mixture, device, t.precision)
                hooks.metrics(step, row)
                window.clear()
            # Read once: a signal that comes after the saving is for the next step, which saves again.
            stopped_by = received[0] if received else None
            if stopped_by or last or step % config.operation.checkpoint_every == 0:
                hooks.checkpoint(step, payload(step))
            speed = (step - start) / (time.perf_counter() - began)
            hooks.listener(
                Progress(
                    hooks.run, "training", step, t.steps, loss, speed * batch.tokens.size, (t.steps - step) / speed
                )
            )
            if stopped_by and not last:
                raise Interrupted(stopped_by)
    model.eval()
    means = tail.means()
    result = {"train_loss": means.pop("loss"), "train_gradient_norm": means.pop("gradient_norm")}
    result |= {f"train_{k}": v for k, v in means.items()}
    return {
        **result,
        **held_out_losses(model, mixture, device, t.precision),
        "steps": t.steps,
        "tokens": tokens,
        "seconds": seconds_before + time.perf_counter() - began,
        "interrupted": received[0] if received else None,
    }


HELD_OUT_BATCHES = 4
"""Batches the held-out loss is a mean over: the same ones for every model and at every step."""


@torch.no_grad()
def held_out_losses(model: Model, mixture: Mixture, device: torch.device, precision: str) -> dict[str, float]:
    """Mean loss over fixed held-out batches of the mixture, in all and by task, at inference m."""
    was_training = model.training
    model.eval()
    means = Means()
    for index in range(HELD_OUT_BATCHES):
        batch = mixture.batch(index, split="held-out")
        for loss, losses, tasks in step_losses(model, batch, None, device, precision):
            means.add({"held_out_loss": loss.item()})
            means.add({f"held_out_{k}": v for k, v in task_means(batch.names, losses, tasks).items()})
    model.train(was_training)
    return means.means()
