"""A report as data: what it says, once, before anybody decides how it looks.

A document is a list of blocks; their texts are strings and spans. A string means itself: nothing in it is markup, and
each rendering (as_html.py, as_markdown.py) escapes it in its own way. That is the only place where escaping happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Code:
    """A word of a program: a name, a key, a command."""

    text: str


@dataclass(frozen=True)
class Strong:
    text: str


@dataclass(frozen=True)
class Word:
    """A verdict's word."""

    text: str


@dataclass(frozen=True)
class Link:
    """`target`: the `id` of a heading of this document, or a file."""

    text: str
    target: str | Path


Span = str | Code | Strong | Word | Link
Text = Span | Sequence[Span]
"""One span, or several in a row."""


def spans(text: Text) -> Iterator[Span]:
    """The spans of a text, empty strings left out."""
    for span in [text] if isinstance(text, Span) else text:
        if span != "":
            yield span


def plain(text: Text) -> str:
    """The words alone."""
    return "".join(span if isinstance(span, str) else span.text for span in spans(text))


def joined(parts: Sequence[Text], between: str) -> list[Span]:
    """Texts one after the other with `between` between them."""
    found: list[Span] = []
    for part in parts:
        found += [between] if found else []
        found += spans(part)
    return found


@dataclass(frozen=True)
class Heading:
    """level 2 is a section of the report; the document's title is its only level 1. `id` is what links name."""

    text: Text
    level: int = 2
    id: str = ""


@dataclass(frozen=True)
class Paragraph:
    text: Text


@dataclass(frozen=True)
class Bullets:
    items: Sequence[Text]


@dataclass(frozen=True)
class Several:
    """Several texts under one name."""

    texts: Sequence[Text]


@dataclass(frozen=True)
class Fields:
    """Names and what they are."""

    items: Sequence[tuple[str, Text | Several]]


@dataclass(frozen=True)
class Table:
    """`about` names the table for those who cannot see where it stands. The first column heads its row.

    records: whether a row is read by itself, as what is known of one thing, more than it is compared with the others."""

    about: str
    head: Sequence[Text]
    rows: Sequence[Sequence[Text]]
    records: bool = False


@dataclass(frozen=True)
class Figure:
    """A drawn figure. `alt` says what is in it to those who cannot see it."""

    title: str
    path: Path
    alt: str
    id: str = ""


@dataclass(frozen=True)
class Commands:
    """Lines for a shell."""

    lines: Sequence[str]


Block = Heading | Paragraph | Bullets | Fields | Table | Figure | Commands


@dataclass(frozen=True)
class Document:
    title: str
    blocks: list[Block] = field(default_factory=list)

    def sections(self) -> list[Heading]:
        return [block for block in self.blocks if isinstance(block, Heading) and block.level == 2]
