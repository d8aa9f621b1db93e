"""`mmctl bench step`: what a training step of Memory Mosaics v2 costs beside a transformer's of the same sizes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.bench.measure import device_of, interleaved, numbers, peak_allocated, quartiles

if TYPE_CHECKING:
    from mmctl.config import Config

MODELS = ("mosaic-v2", "transformer")
"""The first is divided by the second; the transformer attends through torch's scaled_dot_product_attention."""


def command(
    size: Annotated[
        str, typer.Option("--size", help="Preset that gives d, L, H, d', h, m and the vocabulary.")
    ] = "lab",
    tokens: Annotated[str, typer.Option("--tokens", help="Sequence lengths T, separated by commas.")] = "256,1024",
    batch: Annotated[
        int,
        typer.Option("--batch", min=1, help="Sequences a step at the shortest T; all T have as many tokens a step."),
    ] = 16,
    precision: Annotated[
        str, typer.Option("--precision", help="float32, bf16 or auto (what a run on this machine takes).")
    ] = "auto",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Timed steps of each model, interleaved.")] = 15,
    threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads (a run's default is 1).")] = 1,
    documents: Annotated[bool, typer.Option("--documents", help="Cut each sequence into four documents.")] = False,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list of objects, one for each T, on stdout.")
    ] = False,
) -> None:
    """Wall time and peak memory of one training step, mosaic v2 over transformer of the same d, L, H and d'.

    A step is the training loop's own: forward, loss at every position, backward, clipping, AdamW. Both models run in
    one process, taking turns; numbers are medians. Memory is what torch allocates: parameters, optimizer state,
    gradients and everything a step keeps.
    """
    # Read when torch is loaded: its profiler would otherwise write lines of its own for each measurement.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    lengths = numbers("--tokens", tokens, 2)
    results = []
    for length in lengths:
        sequences = max(1, batch * min(lengths) // length)
        print(f"measuring T = {length}, {sequences} sequences ...", file=sys.stderr, flush=True)
        results.append(measure(size, length, sequences, precision, rounds, threads, documents, device))
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        print_table(results)


def measure(
    size: str, length: int, sequences: int, precision: str, rounds: int, threads: int, documents: bool, device: str
) -> dict[str, Any]:
    """One row: ratios first, then each model's medians. Every model sees the same tokens."""
    import torch

    from mmctl.config import load

    torch.set_num_threads(threads)
    where = device_of(device)
    steps, state, parameters = {}, {}, {}
    for name in MODELS:
        config = load(size, [f"model.name={name}", f"data.length={length}", f"training.precision={precision}"])
        config.training.resolve(device, config.model.width)
        steps[name], model, state[name] = training_step(config, sequences, documents, where)
        parameters[name] = model.parameter_count()
    times = interleaved(steps, rounds)
    # Measured after the timing: gradients of the last step are dropped first, and counted when the step makes new ones.
    memory = {name: state[name]() + peak_allocated(step, where) for name, step in steps.items()}
    ours, theirs = (times[name] for name in MODELS)
    ratios = [a / b for a, b in zip(ours.wall, theirs.wall, strict=True)]
    return {
        "tokens": length,
        "wall_ratio": round(ours.median / theirs.median, 4),
        "memory_ratio": round(memory[MODELS[0]] / memory[MODELS[1]], 4),
        "cpu_ratio": round(ours.cpu_median / theirs.cpu_median, 4),
        "wall_ratio_quartiles": [round(q, 4) for q in quartiles(ratios)],
        "models": {
            name: {
                "wall_seconds": times[name].median,
                "cpu_seconds": times[name].cpu_median,
                "peak_bytes": memory[name],
                "parameters": parameters[name],
            }
            for name in MODELS
        },
        "size": size,
        "sequences": sequences,
        "tokens_per_step": sequences * length,
        "precision": config.training.precision,
        "documents": documents,
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
        "threads": threads,
        "rounds": rounds,
        "torch": torch.__version__,
    }


def training_step(config: Config, sequences: int, documents: bool, device: Any) -> tuple[Callable[[], None], Any, Any]:
    """A step of the training loop on fixed random tokens; the model; and its standing memory in bytes, as a
    function."""
    import numpy as np
    import torch

    from mmctl import models
    from mmctl.data.mixture import MixtureBatch
    from mmctl.training import loop

    rng = np.random.default_rng([0, config.data.length])
    shape = (sequences, config.data.length)
    tokens = rng.integers(0, config.data.vocabulary, shape)
    parts = np.broadcast_to(np.arange(shape[1], dtype=np.int32) * 4 // shape[1], shape).copy()
    batch = MixtureBatch(
        tokens=tokens,
        targets=rng.integers(0, config.data.vocabulary, shape),
        documents=parts if documents else None,
        task=np.zeros(sequences, dtype=np.int64),
        weights=np.full(shape, 1.0 / tokens.size, dtype=np.float32),
        names=["random"],
    )
    t = config.training
    model = models.build(config).to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameter_groups(t.weight_decay), lr=t.learning_rate, betas=(t.beta1, t.beta2), fused=True
    )
    weights = list(model.parameters())
    delays = np.random.default_rng(1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for loss, _, _ in loop.step_losses(model, batch, model.sample_delay(delays), device, t.precision):
            loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, t.clip)
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def standing() -> int:
        optimizer.zero_grad(set_to_none=True)
        held = [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]
        return sum(v.numel() * v.element_size() for v in held if isinstance(v, torch.Tensor))

    return step, model, standing


def print_table(results: list[dict[str, Any]]) -> None:
    """Ratios first, then milliseconds and mebibytes a step."""
    first = results[0]
    print(
        f"training step, {MODELS[0]} / {MODELS[1]}: {first['size']}, {first['tokens_per_step']:,} tokens a step, "
        f"{first['precision']}, {first['threads']} thread(s), {first['device']}, torch {first['torch']}, "
        f"medians of {first['rounds']} interleaved steps"
        + (", four documents a sequence" if first["documents"] else "")
    )
    columns = ("T", "wall", "(quartiles)", "cpu", "memory", *(f"{m} ms" for m in MODELS), *(f"{m} MiB" for m in MODELS))
    print("  ".join(c.rjust(max(len(c), 7)) for c in columns))
    for row in results:
        low, high = row["wall_ratio_quartiles"]
        each = [row["models"][m] for m in MODELS]
        cells = (
            str(row["tokens"]), f"{row['wall_ratio']:.2f}x", f"{low:.2f}-{high:.2f}", f"{row['cpu_ratio']:.2f}x",
            f"{row['memory_ratio']:.2f}x", *(f"{e['wall_seconds'] * 1e3:.0f}" for e in each),
            *(f"{e['peak_bytes'] / 2**20:.0f}" for e in each),
        )  # fmt: skip
        print("  ".join(cell.rjust(max(len(c), 7)) for cell, c in zip(cells, columns, strict=True)))
