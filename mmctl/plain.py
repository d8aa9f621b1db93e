"""YAML as plain data: what is checked of a text before OmegaConf reads it, whoever wrote it.

Tags would make objects, an alias can name a text of billions of values in ten lines, and deep nesting ends in a
recursion: they are refused from the parser's events, before anything is built. (`${...}` is refused by those who read
values: here it is only text.)
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

LONGEST = 1_000_000
"""Characters of a configuration."""
DEEPEST = 40
"""Levels of nesting."""
MOST = 10_000
"""Values, with every alias counted as what it stands for."""


class NotPlain(ValueError):
    """Why a text is not taken, in one line."""


def load(text: str) -> Any:
    """The mapping or list of a YAML text, read as OmegaConf does (1e-3 is a number); {} for an empty one.

    NotPlain if it is too large or more than data; whatever OmegaConf and YAML raise for what is neither of the two.
    """
    import io

    from omegaconf import OmegaConf

    check(text)
    return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)


def typed(value: Any) -> str:
    """A value as one would type it after `key=`."""
    import json

    return value if isinstance(value, str) else json.dumps(value)


def check(text: str) -> None:
    """NotPlain for a text with tags, that is too long, too deep, or expands to too many values.

    What is not YAML passes: whoever reads it says so, and builds nothing.
    """
    import yaml

    if len(text) > LONGEST:
        raise NotPlain(f"larger than {LONGEST:,} characters")
    with suppress(yaml.YAMLError):
        _count(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def _count(events: Any) -> None:
    import yaml

    open_nodes: list[tuple[str | None, int]] = []  # (anchor, values in it so far) of each collection we are inside
    sizes: dict[str, int] = {}

    def add(values: int) -> None:
        if open_nodes:
            anchor, sum_so_far = open_nodes.pop()
            open_nodes.append((anchor, sum_so_far + values))
        if values > MOST or (open_nodes and open_nodes[-1][1] > MOST):
            raise NotPlain(f"it expands to more than {MOST:,} values")

    for event in events:
        line = event.start_mark.line + 1
        if getattr(event, "tag", None) is not None:
            raise NotPlain(f'the tag "{event.tag}" (line {line}): expected plain data')
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise NotPlain(f'"*{event.anchor}" (line {line}) stands for itself or for nothing')
            add(sizes[event.anchor])
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor:
                sizes[event.anchor] = 1
            add(1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1))
            if len(open_nodes) > DEEPEST:
                raise NotPlain(f"nested more than {DEEPEST} levels deep (line {line})")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values = open_nodes.pop()
            if anchor:
                sizes[anchor] = values
            add(values)
