"""`mmctl bench generate`: decoding from caches beside computing everything again, and beside the transformer."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.bench.measure import device_of, interleaved, numbers

if TYPE_CHECKING:
    from mmctl.models.base import Model

MODELS = ("mosaic-v2", "transformer")
"""The first is divided by the second."""
WARMUP = 1
RECOMPUTED = 4
"""Tokens made by computing everything again: each costs a whole prompt."""


def command(
    size: Annotated[
        str, typer.Option("--size", help="Preset that gives d, L, H, d', h, m and the vocabulary.")
    ] = "lab",
    prompt: Annotated[
        str, typer.Option("--prompt", help="Prompt lengths in tokens, separated by commas.")
    ] = "256,1024",
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens decoded after each prompt.")] = 64,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences decoded at once.")] = 1,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Timed repetitions of each, interleaved.")] = 5,
    threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads (a run's default is 1).")] = 1,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list of objects, one for each prompt length, on stdout.")
    ] = False,
) -> None:
    """Decoding beside computing everything again and beside the transformer; bytes a cached token.

    Greedy, float32, one token a step. Cached: prefill, then a step a token. Recomputed: a whole forward pass a token,
    logits at its last position only. All run in one process, taking turns; numbers are medians. Weights are random:
    speed does not depend on them.
    """
    results = []
    for length in numbers("--prompt", prompt, 1):
        print(f"measuring a prompt of {length} tokens ...", file=sys.stderr, flush=True)
        results.append(measure(size, length, tokens, batch, rounds, threads, device))
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        print_table(results)


def measure(size: str, prompt: int, tokens: int, batch: int, rounds: int, threads: int, device: str) -> dict[str, Any]:
    """One row: ratios first, then each model's numbers. Every model continues the same prompt."""
    import torch

    from mmctl import models
    from mmctl.config import load

    torch.set_num_threads(threads)
    where = device_of(device)
    work: dict[str, Callable[[], Any]] = {}
    memory = {}
    for name in MODELS:
        config = load(size, [f"model.name={name}", "training.precision=float32"])
        model = models.build(config).to(where).eval()
        generator = torch.Generator().manual_seed(0)
        text = torch.randint(0, config.data.vocabulary, (batch, prompt), generator=generator).to(where)
        work[f"{name} prefill"], work[f"{name} cached"], memory[name] = cached(model, text, tokens, rounds)
        work[f"{name} recomputed"] = recomputed(model, text)
    times = interleaved(work, rounds, warmup=WARMUP)
    rows = {}
    for name in MODELS:
        seconds = {kind: times[f"{name} {kind}"].median for kind in ("prefill", "cached", "recomputed")}
        rows[name] = {
            "tokens_per_second": batch * tokens / seconds["cached"],
            "recomputed_tokens_per_second": batch * RECOMPUTED / seconds["recomputed"],
            "prefill_tokens_per_second": batch * prompt / seconds["prefill"],
            **memory[name],
        }
    ours, theirs = (rows[name] for name in MODELS)
    return {
        "prompt": prompt,
        "time_ratio": theirs["tokens_per_second"] / ours["tokens_per_second"],
        "memory_ratio": ours["bytes_per_token"] / theirs["bytes_per_token"],
        "speedup": {n: rows[n]["tokens_per_second"] / rows[n]["recomputed_tokens_per_second"] for n in MODELS},
        "models": rows,
        "size": size,
        "tokens": tokens,
        "batch": batch,
        "precision": "float32",
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
        "threads": threads,
        "rounds": rounds,
        "torch": torch.__version__,
    }


def cached(
    model: Model, prompt: Any, tokens: int, rounds: int
) -> tuple[Callable[[], None], Callable[[], None], dict[str, float]]:
    """Prefill of a new cache; decoding after it; and what a cached sequence holds."""
    import torch

    batch, length = prompt.shape

    def prefill() -> Any:
        cache = model.init_cache(batch, capacity=length + tokens)
        logits = model.prefill(prompt, cache)
        return cache, logits.argmax(-1, keepdim=True)  # reading the token waits for the device

    def timed_prefill() -> None:
        prefill()[1].cpu()

    filled, first = prefill()
    caches = [copy.deepcopy(filled) for _ in range(rounds + WARMUP)]  # each decoding starts after the prompt

    def decode() -> None:
        cache, token = caches.pop(), first
        for _ in range(tokens):
            token = model.step(token, cache)[:, -1].argmax(-1, keepdim=True)
        token.cpu()

    # What one more token adds once every window is full, and what does not grow.
    grown = model.init_cache(1)
    window = getattr(model.config, "window", 0)
    model.prefill(torch.zeros(1, window + 1, dtype=torch.int64, device=prompt.device), grown)
    before = grown.bytes()
    model.prefill(torch.zeros(1, 16, dtype=torch.int64, device=prompt.device), grown)
    each = (grown.bytes() - before) / 16
    return timed_prefill, decode, {"bytes_per_token": each, "fixed_bytes": before - each * (window + 1)}


def recomputed(model: Model, prompt: Any) -> Callable[[], None]:
    """`RECOMPUTED` greedy tokens after the prompt, each by a forward pass over all before it."""
    import torch

    def work() -> None:
        tokens = prompt
        with torch.inference_mode():
            for _ in range(RECOMPUTED):
                x = model.hidden(tokens)[:, -1:]
                tokens = torch.cat([tokens, model.classifier(model.norm(x)).argmax(-1)], dim=1)
        tokens.cpu()

    return work


def print_table(results: list[dict[str, Any]]) -> None:
    """Ratios first, then tokens a second and bytes."""
    one = results[0]
    print(
        f"decoding, {MODELS[0]} / {MODELS[1]}: {one['size']}, {one['tokens']} tokens after each prompt, batch {one['batch']}, "
        f"float32, {one['threads']} thread(s), {one['device']}, torch {one['torch']}, medians of {one['rounds']}"
    )
    for row in results:
        print(
            f"\nprompt {row['prompt']}: time a token {row['time_ratio']:.2f}x, memory a token {row['memory_ratio']:.2f}x"
        )
        columns = ("", "cached tok/s", "recomputed tok/s", "speedup", "prefill tok/s", "bytes a token", "fixed bytes")
        print("  ".join(c.rjust(max(len(c), 12)) for c in columns))
        for name in MODELS:
            m = row["models"][name]
            cells = (
                name, f"{m['tokens_per_second']:,.0f}", f"{m['recomputed_tokens_per_second']:,.1f}",
                f"{row['speedup'][name]:.1f}x", f"{m['prefill_tokens_per_second']:,.0f}",
                f"{m['bytes_per_token']:,.0f}", f"{m['fixed_bytes']:,.0f}",
            )  # fmt: skip
            print("  ".join(cell.rjust(max(len(c), 12)) for cell, c in zip(cells, columns, strict=True)))
