"""`mmctl generate`: continue a text with a trained run, token by token."""

from __future__ import annotations

from typing import Annotated

import typer

from mmctl.cli.options import Device, Root, Run, print_json


def generate(
    run: Run,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to continue; - reads it from stdin, as it is.")],
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Most tokens to make.")] = 128,
    temperature: Annotated[
        float, typer.Option("--temperature", help="0 takes the most likely token, 1 the model's own distribution.")
    ] = 0.0,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", help="Draw from the fewest tokens whose probabilities reach this.", show_default=False),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Draw from so many most likely tokens.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draws.")] = 0,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", help="End before this text; repeat it. \\n and \\t are understood.", show_default=False),
    ] = None,
    remove_long_term: Annotated[
        bool, typer.Option("--remove-long-term", help="Take the long-term memories' outputs away.")
    ] = False,
    device: Device = "auto",
    runs: Root = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one object at the end instead of text as it comes.")
    ] = False,
) -> None:
    """Continue TEXT with a run, token by token.

    The newest checkpoint writes to stdout as it goes. Only tokens of text are drawn, no symbols of synthetic tasks.

    Example: mmctl generate lab/seed0 "def main(" --temperature 0.8 --top-p 0.95 --stop "\\n\\n"
    """
    import sys
    import time

    from mmctl.errors import UsageError
    from mmctl.runs import RunFolder, runs_root

    folder = RunFolder.find(runs_root(runs), run)
    config = folder.config()
    prompt = sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if text == "-" else text
    if not prompt:
        raise UsageError("TEXT is empty: expected something to continue")

    import torch

    from mmctl.data.tokenizers import load_tokenizer
    from mmctl.generation import Sampling
    from mmctl.generation import generate as make
    from mmctl.training.run import load_trained, pick_device

    sampling = Sampling(temperature, top_k, top_p, seed)
    sampling.validate()
    place = pick_device(device)
    torch.set_num_threads(config.training.threads)
    tokenizer = load_tokenizer(config.data)
    tokens = tokenizer.encode(prompt)
    model, _, step = load_trained(folder, place)
    if "text" not in config.data.tasks_in_mixture():
        print(
            f"mmctl: {folder.label} was trained on no text: {', '.join(config.data.tasks_in_mixture())}",
            file=sys.stderr,
        )

    def show(_: int, piece: str) -> None:
        print(piece, end="", flush=True)

    started = time.perf_counter()
    with model.evaluation_changes(remove_long_term=remove_long_term):
        (made,) = make(
            model,
            tokenizer,
            [tokens],
            max_tokens=max_tokens,
            sampling=sampling,
            stop=[_unescaped(s) for s in stop or []],
            allowed=tokenizer.size,
            on_text=None if as_json else show,
        )
    seconds = time.perf_counter() - started
    if as_json:
        print_json(
            {
                "run": folder.label,
                "step": step,
                "prompt": prompt,
                "text": made.text,
                "finish": made.finish,
                "prompt_tokens": len(tokens),
                "tokens": made.tokens,
                "log_probabilities": made.log_probabilities,
                "sampling": {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed},
                "stop": stop or [],
                "max_tokens": max_tokens,
                "remove_long_term": remove_long_term,
                "tokenizer": tokenizer.name if tokenizer.sha256 is None else tokenizer.sha256,
                "device": place,
                "seconds": round(seconds, 3),
            }
        )
    else:
        print()


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")
