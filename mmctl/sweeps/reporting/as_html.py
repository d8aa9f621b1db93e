"""A document as one HTML file that needs nothing else: no script, no network, figures inside it.

The page is a tree of elements (xml.etree), so whatever a text holds is escaped when the tree is written. A page may load
nothing but what stands in it, which its content security policy says too.
"""

from __future__ import annotations

import base64
import os
import re
import struct
from pathlib import Path
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, tostring

from mmctl.errors import MmctlError, visible
from mmctl.sweeps.reporting import document as doc
from mmctl.sweeps.reporting.page_style import CSS
from mmctl.sweeps.reporting.words import SIGNS, tone

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

CARDS = 6
"""Columns a table may have to be shown as cards on a phone, unless its rows are records."""


def html(document: doc.Document, base: Path) -> str:
    """The document as a page. base: the folder it will lie in, to which links to files are relative.

    MmctlError for a figure's file that is gone or is no PNG.
    """
    return _Writer(document, base).page()


class _Writer:
    def __init__(self, document: doc.Document, base: Path) -> None:
        self.document, self.base = document, base
        self.taken: set[str] = set()
        self.ids: dict[str, str] = {}
        for block in document.blocks:
            if isinstance(block, doc.Heading | doc.Figure) and block.id:
                self.ids.setdefault(block.id, self._unique(block.id))

    def page(self) -> str:
        root = Element("html", lang="en")
        head = SubElement(root, "head")
        SubElement(head, "meta", charset="utf-8")
        SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": POLICY})
        SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
        SubElement(head, "meta", name="color-scheme", content="light dark")
        SubElement(head, "title").text = visible(self.document.title)
        SubElement(head, "style").text = CSS
        body = SubElement(root, "body")
        SubElement(SubElement(body, "header"), "h1").text = visible(self.document.title)
        self._contents(body)
        main = SubElement(body, "main")
        written: set[str] = set()
        for block in self.document.blocks:
            self._block(main, block, written)
        return "<!DOCTYPE html>\n" + tostring(root, encoding="unicode", method="html") + "\n"

    def _contents(self, body: Element) -> None:
        sections = self.document.sections()
        if len(sections) < 2:
            return
        listed = SubElement(SubElement(body, "nav", {"aria-label": "Contents"}), "ul")
        for section in sections:
            link = SubElement(SubElement(listed, "li"), "a", href="#" + self.ids.get(section.id, ""))
            link.text = visible(doc.plain(section.text))

    def _unique(self, id: str) -> str:
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", id).strip("-") or "part"
        name, number = slug, 1
        while name in self.taken:
            number += 1
            name = f"{slug}-{number}"
        self.taken.add(name)
        return name

    def _block(self, parent: Element, block: doc.Block, written: set[str]) -> None:
        match block:
            case doc.Heading():
                self._inline(SubElement(parent, f"h{block.level}", self._id(block.id, written)), block.text)
            case doc.Paragraph():
                self._inline(SubElement(parent, "p"), block.text)
            case doc.Bullets():
                listed = SubElement(parent, "ul")
                for item in block.items:
                    self._inline(SubElement(listed, "li"), item)
            case doc.Fields():
                self._fields(parent, block)
            case doc.Table():
                self._table(parent, block)
            case doc.Figure():
                self._figure(parent, block, written)
            case doc.Commands():
                pre = SubElement(parent, "pre", {"tabindex": "0", "aria-label": "Commands"})
                SubElement(pre, "code").text = "\n".join(visible(line).replace("\n", " ") for line in block.lines)

    def _id(self, id: str, written: set[str]) -> dict[str, str]:
        """The attribute of a heading; a second one of the same name gets an id of its own."""
        if not id:
            return {}
        name = self.ids[id] if self.ids[id] not in written else self._unique(id)
        written.add(name)
        return {"id": name}

    def _fields(self, parent: Element, block: doc.Fields) -> None:
        listed = SubElement(parent, "dl")
        for name, value in block.items:
            SubElement(listed, "dt").text = visible(name)
            for one in value.texts if isinstance(value, doc.Several) else [value]:
                self._inline(SubElement(listed, "dd"), one)

    def _table(self, parent: Element, block: doc.Table) -> None:
        """On a phone a table of few columns, or of records, becomes a card a row, each cell after its column's name; wider
        ones scroll."""
        about, cards = visible(block.about), block.records or len(block.head) <= CARDS
        box = SubElement(parent, "div", {"class": "scroll", "role": "region", "tabindex": "0", "aria-label": about})
        table = SubElement(box, "table", {"class": "cards"} if cards else {})
        SubElement(table, "caption").text = about
        row = SubElement(SubElement(table, "thead"), "tr")
        for cell in block.head:
            self._inline(SubElement(row, "th", scope="col"), cell)
        body = SubElement(table, "tbody")
        for cells in block.rows:
            row = SubElement(body, "tr")
            for place, cell in enumerate(cells):
                label = {"data-label": visible(doc.plain(block.head[place]))} if cards else {}
                self._inline(SubElement(row, "td", label) if place else SubElement(row, "th", scope="row"), cell)

    def _figure(self, parent: Element, block: doc.Figure, written: set[str]) -> None:
        figure = SubElement(parent, "figure", self._id(block.id, written))
        data, width, height = _png(block.path)
        source = "data:image/png;base64," + base64.b64encode(data).decode("ascii")
        size = {"width": str(width), "height": str(height)}
        SubElement(figure, "img", {"src": source, "alt": visible(block.alt), **size})
        SubElement(figure, "figcaption").text = visible(block.title)

    def _inline(self, parent: Element, text: doc.Text) -> None:
        last: Element | None = None
        for span in doc.spans(text):
            if isinstance(span, str):
                if last is None:
                    parent.text = (parent.text or "") + visible(span)
                else:
                    last.tail = (last.tail or "") + visible(span)
                continue
            last = self._span(parent, span)

    def _span(self, parent: Element, span: doc.Code | doc.Strong | doc.Word | doc.Link) -> Element:
        if isinstance(span, doc.Word):
            made = SubElement(parent, "span", {"class": f"verdict {tone(span.text)}"})
            mark = SubElement(made, "span", {"aria-hidden": "true"})
            mark.text, mark.tail = SIGNS[tone(span.text)], " " + visible(span.text)
            return made
        if isinstance(span, doc.Link):
            made = SubElement(parent, "a", href=self._target(span.target))
        else:
            made = SubElement(parent, "code" if isinstance(span, doc.Code) else "strong")
        made.text = visible(span.text)
        return made

    def _target(self, target: str | Path) -> str:
        if isinstance(target, Path):
            return quote(os.path.relpath(target, self.base), safe="/.-_=+")
        return "#" + self.ids.get(target, "")


def _png(path: Path) -> tuple[bytes, int, int]:
    """(Content, width, height) of a PNG file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MmctlError(f"{path}: the figure cannot be read ({error.strerror or error})") from None
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[12:16] != b"IHDR":
        raise MmctlError(f"{path}: not a PNG file")
    width, height = struct.unpack(">II", data[16:24])
    return data, width, height
