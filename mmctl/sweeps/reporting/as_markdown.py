"""A document as Markdown (CommonMark with GitHub's tables). Every text is escaped here, and nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from mmctl.errors import visible
from mmctl.sweeps.reporting import document as doc

SPECIAL = re.compile(
    r"""\\                                  # an escape
      | [`*~$]                              # code, emphasis, strikethrough, mathematics
      | (?<![^\W_])_ | _(?![^\W_])          # emphasis; inside a word it is a letter like any other
      | \](?=[(\[:])                        # a link, or the definition of one
      | &(?=[#A-Za-z])                      # an entity
      | <(?=[A-Za-z/!?])                    # an element
    """,
    re.VERBOSE,
)
IN_LINK = re.compile(rf"[\[\]] | {SPECIAL.pattern}", re.VERBOSE)
AT_START = re.compile(r"^(?=[-+](\s|$)|#|>|---|===)|^\d+(?=[.)](\s|$))")
"""What at the start of a block makes it a list, a heading, a quotation or a rule."""


def markdown(document: doc.Document, base: Path) -> str:
    """The document's text. base: the folder it will lie in, to which links to files are relative."""
    return _Writer(document, base).text()


def escaped(text: str, special: re.Pattern[str] = SPECIAL) -> str:
    """A text in which nothing is markup, on one line."""
    one_line = re.sub(r"\s+", " ", visible(text))
    return special.sub(lambda m: "&lt;" if m[0] == "<" else "\\" + m[0], one_line)


def code(text: str) -> str:
    """A code span; its fence is longer than any run of backticks in it."""
    one_line = re.sub(r"\s+", " ", visible(text)).strip()
    if not one_line or "\\|" in one_line:  # in a table, a bar after a backslash would end the cell
        return escaped(one_line)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", one_line)), default=0))
    room = " " if "`" in (one_line[0], one_line[-1]) else ""
    return f"{fence}{room}{one_line}{room}{fence}"


class _Writer:
    def __init__(self, document: doc.Document, base: Path) -> None:
        self.document, self.base = document, base
        self.anchors = _anchors(document)

    def text(self) -> str:
        parts = [f"# {escaped(self.document.title)}", *map(self.block, self.document.blocks)]
        return "\n\n".join(part for part in parts if part) + "\n"

    def block(self, block: doc.Block) -> str:
        match block:
            case doc.Heading():
                return "#" * block.level + " " + self.inline(block.text).replace("#", "\\#")
            case doc.Paragraph():
                return _start(self.inline(block.text))
            case doc.Bullets():
                return "\n".join(f"- {_start(self.inline(item))}" for item in block.items)
            case doc.Fields():
                return "\n".join(self.fields(block.items))
            case doc.Table():
                return self.table(block)
            case doc.Figure():
                about = escaped(block.alt)
                return f"**{escaped(block.title)}**\n\n![{about}]({self.target(block.path)})"
            case doc.Commands():
                return _fenced(block.lines)

    def fields(self, items: Sequence[tuple[str, doc.Text | doc.Several]]) -> list[str]:
        lines = []
        for name, value in items:
            if isinstance(value, doc.Several):
                lines += [f"- {escaped(name)}:", *(f"  - {_start(self.inline(one))}" for one in value.texts)]
            else:
                lines.append(f"- {escaped(name)}: {self.inline(value)}")
        return lines

    def table(self, table: doc.Table) -> str:
        def row(cells: Sequence[doc.Text]) -> str:
            # GitHub takes a bar for a cell's end even inside code.
            return "| " + " | ".join(self.inline(cell).replace("|", "\\|") for cell in cells) + " |"

        return "\n".join([row(table.head), "|" + "---|" * len(table.head), *map(row, table.rows)])

    def inline(self, text: doc.Text) -> str:
        parts: list[doc.Span] = []
        for span in doc.spans(text):  # strings in a row are one text: what makes markup may lie across their seam
            if isinstance(span, str) and parts and isinstance(parts[-1], str):
                parts[-1] += span
            else:
                parts.append(span)
        return "".join(map(self.span, parts))

    def span(self, span: doc.Span) -> str:
        match span:
            case str():
                return escaped(span)
            case doc.Code():
                return code(span.text)
            case doc.Strong() | doc.Word():
                inner = escaped(span.text).strip()
                return f"**{inner}**" if inner else ""
            case doc.Link():
                return f"[{escaped(span.text, IN_LINK)}]({self.target(span.target)})"

    def target(self, target: str | Path) -> str:
        if isinstance(target, Path):
            return quote(os.path.relpath(target, self.base), safe="/.-_=+")
        return "#" + quote(self.anchors.get(target, ""))


def _start(text: str) -> str:
    """A block's text whose first letters do not make it another kind of block."""
    found = AT_START.search(text)
    return text if found is None else f"{found[0]}\\{text[found.end() :]}"


def _fenced(lines: Sequence[str]) -> str:
    text = "\n".join(visible(line).replace("\n", " ") for line in lines)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}sh\n{text}\n{fence}"


def _anchors(document: doc.Document) -> Mapping[str, str]:
    """{id: the anchor that GitHub makes of the heading's words}."""
    seen: dict[str, int] = {}
    found: dict[str, str] = {}
    for words, id in [(document.title, ""), *((doc.plain(b.text), b.id) for b in _headings(document))]:
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number = seen[slug] = seen.get(slug, -1) + 1
        found.setdefault(id, f"{slug}-{number}" if number else slug)
    return found


def _headings(document: doc.Document) -> list[doc.Heading]:
    return [block for block in document.blocks if isinstance(block, doc.Heading)]
