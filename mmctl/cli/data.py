"""`mmctl data`: look at what a run would be trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from mmctl.cli import complete
from mmctl.cli.options import Json, console, plain, preset_and_overrides, print_json, table, with_plugins

app = typer.Typer(
    help="Look at the data of a configuration.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _group() -> None:
    """A Typer of one command would be that command."""


def inspect(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET] [KEY=VALUE]...",
            help="A preset (default: lab), then overrides.",
            show_default=False,
            autocompletion=complete.preset_then_keys,
        ),
    ] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Examples of the held-out split.")] = False,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="Tokens of each example that are shown; --json has all.")
    ] = 64,
    as_json: Json = False,
) -> None:
    """Show sizes, mixture, split and fingerprint, and an example of each task with its labels.

    A label stands after the token at which it is to be predicted: `k3[v9]`.

    Example: mmctl data inspect smoke data.mixture='{recall: 1}' --tokens 40
    """
    from mmctl.config import load
    from mmctl.data.inspection import inspect as look

    preset, overrides = preset_and_overrides(arguments)
    found = look(load(preset, overrides), "held-out" if held_out else "train")
    if as_json:
        print_json(found)
        return
    _print(preset, found, tokens)


app.command("inspect")(with_plugins(inspect))


def _print(preset: str, found: Mapping[str, Any], tokens: int) -> None:
    screen = console()
    print(
        f"preset {preset}: {found['batch']} sequences of {found['length']} tokens a step, {found['steps']:,} steps, "
        f"{found['tokens']:,} tokens in all; vocabulary {found['vocabulary']}, tokenizer {found['tokenizer']}"
    )
    shown = table("task", "suite", "share", "sequences/step", "labelled", "chance", "notes", right=(2, 3, 4, 5))
    for name, task in found["tasks"].items():
        chance = "" if task["chance"] is None else f"{task['chance']:.3f}"
        notes = ", ".join(f"{k}: {v}" for k, v in task["notes"].items())
        shown.add_row(
            name, task["dimension"], f"{task['proportion']:.1%}", f"{task['sequences_per_step']:.2f}",
            f"{task['labelled_share']:.1%}", chance, plain(notes),
        )  # fmt: skip
    screen.print(shown)
    for name, task in found["tasks"].items():
        if corpus := task.get("corpus"):
            _print_corpus(name, corpus, screen)
        example = task["example"]
        more = len(example["tokens"]) - tokens
        print(f"\n{name}, one {found['split']} sequence" + (f" (its first {tokens} tokens)" if more > 0 else "") + ":")
        print(f"  tokens: {' '.join(map(str, example['tokens'][:tokens]))}{' ...' if more > 0 else ''}")
        print(f"  reads:  {rendered(example, tokens)}{' ...' if more > 0 else ''}")
    for name, content in found["fingerprint"].items():
        print(f"\nfingerprint of {name}: " + ", ".join(f"{k} {v}" for k, v in content.items()))


RUNNING_TEXT = 0.9
"""Share of labelled tokens from which a sequence is running text, where every label is simply the next token."""


def rendered(example: Mapping[str, Any], tokens: int) -> str:
    """The example's words, each label in brackets after the token it is predicted at; of running text the letters, with
    a bar where nothing is predicted (the end of a document)."""
    words, targets = example["words"][:tokens], example["target_words"][:tokens]
    labelled = sum(t is not None for t in example["target_words"]) / len(example["target_words"])
    pairs = list(zip(map(_one, words), targets, strict=True))
    if labelled >= RUNNING_TEXT:
        return "".join(word + ("|" if target is None else "") for word, target in pairs)
    return " ".join(word + ("" if target is None else f"[{_one(target)}]") for word, target in pairs)


def _one(word: str) -> str:
    """A word on one line, with the letters a terminal cannot show written out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in word)


def _print_corpus(name: str, corpus: Mapping[str, Any], screen: Any) -> None:
    shown = table(f"{name}: {corpus['label']}", "bytes", "documents", "mean", "shortest", "median", "longest",
                  right=(1, 2, 3, 4, 5, 6))  # fmt: skip
    for part in ("train", "held-out"):
        about = corpus[part]
        q = about["quartiles_bytes"] or [0, 0, 0, 0, 0]
        numbers = (about["bytes"], about["documents"], round(about["mean_bytes"] or 0), q[0], q[2], q[4])
        shown.add_row(part, *(f"{n:,}" for n in numbers))
    screen.print(shown)
