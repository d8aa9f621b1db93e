"""`mmctl flops`: parameters and FLOPs per token, the published ones beside ours and those of any configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mmctl.cli import complete
from mmctl.cli.options import preset_and_overrides, print_json


def flops(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET] [KEY=VALUE]...",
            help="A preset (default: lab), then overrides.",
            show_default=False,
            autocompletion=complete.preset_then_keys,
        ),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(
            "--context",
            help="Context length in tokens; may be repeated (default: 1, 2, 4, 8 x the training length).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON on stdout.")] = False,
) -> None:
    """Print the published parameters and FLOPs beside ours, and those of a configuration in both conventions.

    "published" counts as the paper does (matrices only, one triangle of the mask); "executed" counts what the
    operations really do (gates, whole tiles). FLOPs are forward FLOPs per token; a training step costs three times as
    much.

    Example: mmctl flops micro model.name=transformer --context 512 --context 4096
    """
    from mmctl.config import load
    from mmctl.errors import UsageError

    preset, words = preset_and_overrides(arguments)
    config = load(preset, words)
    for length in context or []:
        if length < 1:
            raise UsageError(f"--context {length}: expected a whole number of tokens, at least 1")
    contexts = list(dict.fromkeys(context or [config.data.length * k for k in (1, 2, 4, 8)]))
    counted = count(config, contexts)
    if as_json:
        print_json({"published": published_rows(), "configuration": counted})
        return
    print_published()
    print()
    print_configuration(preset, config, counted)


def published_rows() -> list[dict[str, Any]]:
    """Every printed figure beside ours, as plain rows."""
    from mmctl.models import published

    return [
        {
            "size": cell.row.size,
            "model": cell.row.model,
            "long_term_removed": cell.row.removed,
            "quantity": "parameters" if cell.what == "P" else "flops_per_token",
            "context": None if cell.what == "P" else int(cell.what),
            "printed_billions": float(cell.printed),
            "ours": cell.ours,
            "matches": cell.matches,
        }
        for cell in published.cells()
    ]


def count(config: Any, contexts: Sequence[int]) -> dict[str, Any]:
    """Parameters and FLOPs per token of `config`, by part, in both conventions, whole and with long-term memory
    removed."""
    from mmctl.models import flops as counter

    model, vocabulary = config.model, config.data.vocabulary
    removable = getattr(model, "long_term", hasattr(model, "long_term_mask")) and getattr(model, "short_term", True)
    counted: dict[str, Any] = {"model": model.name, "vocabulary": vocabulary, "contexts": list(contexts)}
    for convention in counter.CONVENTIONS:
        counted[convention] = {}
        for variant, removed in (("whole", False), *([("long_term_removed", True)] if removable else [])):
            by_context = {n: counter.parts(model, vocabulary, n, convention, removed) for n in contexts}
            counted[convention][variant] = {
                "parameters": counter.parameters(model, vocabulary, convention, removed),
                "flops_per_token": {str(n): counter.total(parts).flops for n, parts in by_context.items()},
                "parts": {
                    name: {
                        "parameters": round(cost.parameters),
                        "flops_per_token": {str(n): by_context[n][name].flops for n in contexts},
                    }
                    for name, cost in by_context[contexts[0]].items()
                },
            }
    return counted


def print_published() -> None:
    """The paper's table: printed figure, ours, and whether ours rounds to it."""
    from mmctl.models import published

    heading = ("", "parameters", "FLOPs/token at 256", f"at {published.LONG_CONTEXT:,}")
    table = {row: {"P": "", "256": "", str(published.LONG_CONTEXT): ""} for row in published.LARGE + published.SMALL}
    for cell in published.cells():
        mark = "=" if cell.matches else "differs"
        table[cell.row][cell.what] = f"{cell.printed} | {cell.ours / 1e9:.2f} {mark}"
    print('Published | ours, in billions, by the convention "published" ("=": ours rounds to the printed digits)')
    lines = [
        (f"{row.size}: {row.model}" + (", long-term removed" if row.removed else ""), *cells.values())
        for row, cells in table.items()
    ]
    print_table(heading, lines)
    print(published.SMALL_NOTE)


def print_configuration(preset: str, config: Any, counted: dict[str, Any]) -> None:
    """The chosen configuration: parameters and FLOPs per token at each context, by part, conventions apart."""
    m = config.model
    own = ", ".join(f"{k} {getattr(m, a)}" for k, a in SIZES if getattr(m, a, None) is not None)
    print(
        f"{m.name}, preset {preset}: {own}, vocabulary {config.data.vocabulary:,}; forward FLOPs per token at context n"
    )
    contexts = [str(n) for n in counted["contexts"]]
    heading = ("", "parameters", *(f"n = {int(n):,}" for n in contexts))
    for convention in ("published", "executed"):
        print(f"\nconvention {convention}")
        variants = counted[convention]
        lines = [_line(name, part, contexts) for name, part in variants["whole"]["parts"].items()]
        lines.append(_line("total", variants["whole"], contexts))
        if "long_term_removed" in variants:
            lines.append(_line("total, long-term removed", variants["long_term_removed"], contexts))
        print_table(heading, lines)


SIZES = (
    ("layers", "layers"),
    ("d", "width"),
    ("heads", "heads"),
    ("d'", "ffn_width"),
    ("h", "window"),
    ("m", "inference_delay"),
)


def _line(name: str, part: dict[str, Any], contexts: Sequence[str]) -> tuple[str, ...]:
    return (name, f"{part['parameters']:,}", *(f"{part['flops_per_token'][n]:,.0f}" for n in contexts))


def print_table(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Columns of text on stdout: the first to the left, the others to the right."""
    widths = [max(len(line[i]) for line in (heading, *lines)) for i in range(len(heading))]
    for line in (heading, *lines):
        first, *others = line
        print(
            "  ".join(
                [first.ljust(widths[0]), *(text.rjust(w) for text, w in zip(others, widths[1:], strict=True))]
            ).rstrip()
        )
