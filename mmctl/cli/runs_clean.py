"""`mmctl runs clean`: free disk without losing a result."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from mmctl.cli.options import Json, Name, Older, Root, State, Words, console, plain, print_json, table


def clean(
    words: Words = None,
    state: State = None,
    name: Name = None,
    older_than: Older = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it nothing changes.")] = False,
    runs: Root = None,
    as_json: Json = False,
) -> None:
    """Show what can go, and delete it with --yes: old checkpoints, half-written files, locks of the dead.

    A finished run keeps its last and its best checkpoint, one that will resume its two newest; results, scores, metrics
    and logs always stay, and nothing of a running run is touched. Nothing is ever asked.

    Example: mmctl runs clean --older-than 7d --yes
    """
    from mmctl.errors import MmctlError
    from mmctl.runs import clean as cleaning
    from mmctl.runs import runs_root
    from mmctl.runs.filters import Filters, select
    from mmctl.runs.preflight import size

    root = runs_root(runs)
    items = list(cleaning.find(root, select(root, Filters.of(words or [], state, name, older_than))))
    cleaned = cleaning.delete(items, root) if yes else cleaning.Cleaned([], [])
    if as_json:
        print_json(
            {
                "deleted": yes,
                "bytes": sum(i.bytes for i in (cleaned.done if yes else items)),
                "items": [_entry(i) for i in (cleaned.done if yes else items)],
                "left": [{**_entry(i), "reason": reason} for i, reason in cleaned.left],
            }
        )
    elif not items:
        print(f"nothing to clean in {root}")
    else:
        shown = table("what", "frees", "why", right=(1,))
        for item in cleaned.done if yes else items:
            path = item.path.relative_to(root) if item.path.is_relative_to(root) else item.path
            shown.add_row(plain(str(path)), size(item.bytes), plain(item.why))
        console().print(shown)
        freed = size(sum(item.bytes for item in (cleaned.done if yes else items)))
        print(f"freed {freed}" if yes else f"would free {freed}; --yes does it")
    for item, reason in cleaned.left:
        print(f"mmctl: {item.path} left: {reason}", file=sys.stderr)
    if cleaned.left:
        raise MmctlError(f"{len(cleaned.left)} of {len(items)} could not be deleted")


def _entry(item: Any) -> dict[str, Any]:
    return {"kind": item.kind, "path": str(item.path), "bytes": item.bytes, "why": item.why, "run": item.run}
