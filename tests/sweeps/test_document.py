"""Whatever a text holds, both renderings show it as that text and nothing else."""

from __future__ import annotations

import html as entities
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from mmctl.errors import MmctlError, visible
from mmctl.sweeps.reporting import as_html, as_markdown
from mmctl.sweeps.reporting import document as doc

HOSTILE = [
    "<script>alert(1)</script>", "</style><script>x</script>", "<img src=x onerror=alert(1)>", 'a" onmouseover="x', "a|b",
    "a\\|b", "[x](javascript:alert(1))", "[x]: http://example.org", "![i](http://example.org/u.png)", "**b** _c_ __d__ a_b *",
    "`x`", "``` x", "& &amp; &#60; &lt;", "# h", "## h ##", "1. x", "- x", "+", "> q", "---", "===", "~~x~~", "a\\", "| a |",
    "$a$", "<!-- c", "<http://example.org>", "\x1b[31m\u202e", "\x00\x0b", "a\n\n# b", "[a, b] (n)", "\\<b>", "]]>",
    "{{ x }}", "beta = beta_1 n^alpha + beta_0", "\udc80",
]  # fmt: skip
PARSED = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def one_line(text: str) -> str:
    return " ".join(visible(text).split())


def words(page: str) -> str:
    """The text of HTML without its elements."""
    return " ".join(entities.unescape(re.sub(r"<[^>]*>", "\n", page)).split())


def blocks(text: str) -> list[doc.Block]:
    return [
        doc.Paragraph(text),
        doc.Heading(text),
        doc.Bullets([text, [doc.Strong(text), ": ", text]]),
        doc.Fields([(text, text), ("several", doc.Several([text, [text, doc.Word(text)]]))]),
        doc.Table(text, [text, doc.Code(text)], [[doc.Link(text, Path("/x/report.md")), doc.Code(text)], [text, text]]),
        doc.Paragraph([doc.Code(text), text, doc.Link(text, "nowhere")]),
        doc.Commands([text]),
    ]


class Read(HTMLParser):
    """Elements and attributes of a page, and the text of its main part."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if "main" in self.open and "caption" not in self.open:  # captions are for those who hear the page
            self.text.append(data)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_markdown_shows_a_text_as_it_is(text: str) -> None:
    for block in blocks(text):
        tokens = PARSED.parse(as_markdown.markdown(doc.Document("t", [block]), Path("/x")))
        inner = [child for token in tokens for child in token.children or []]
        assert not [t.type for t in [*tokens, *inner] if t.type.startswith("html") or t.type == "image"]
        targets = {t.attrs["href"] for t in inner if t.type == "link_open"}
        assert targets <= {"report.md", "#"}
        if isinstance(block, doc.Paragraph | doc.Heading) and block.text == text:
            shown = PARSED.render(as_markdown.markdown(doc.Document("t", [block]), Path("/x")))
            assert words(shown).removeprefix("t").strip() == one_line(text)


LETTERS = st.text(st.sampled_from("ab1 <>&|*_`[]()!#-+=.:~$\\\"'\n\t/") | st.characters(), max_size=30)


@settings(max_examples=150, deadline=None)
@given(LETTERS)
@example("[a](b)")
def test_any_text_survives_markdown(text: str) -> None:
    shown = PARSED.render(as_markdown.markdown(doc.Document("t", [doc.Table("x", ["h"], [[text]])]), Path("/x")))
    cell = re.search(r"<td>(.*?)</td>", shown, re.DOTALL)
    assert cell is not None
    assert " ".join(entities.unescape(re.sub("<[^>]*>", "", cell[1])).split()) == one_line(text)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_html_shows_a_text_as_it_is(text: str) -> None:
    page = as_html.html(doc.Document(text, blocks(text)), Path("/x"))
    read = Read(page)
    known = {"html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "nav", "ul", "li", "a", "main", "p",
             "strong", "dl", "dt", "dd", "div", "table", "caption", "thead", "tbody", "tr", "th", "td", "code", "span",
             "pre"}  # fmt: skip
    assert {tag for tag, _ in read.elements} <= known
    assert not [name for _, attributes in read.elements for name in attributes if name.startswith("on")]
    assert {a["href"] for tag, a in read.elements if tag == "a"} <= {"report.md", "#"}
    assert one_line(text) in " ".join(" ".join(read.text).split())
    assert f"<caption>{entities.escape(visible(text), quote=False)}</caption>" in page


def test_ids_are_unique_and_links_find_them() -> None:
    headings = [doc.Heading(n, id=i) for n, i in [("a", "x y"), ("b", "x-y"), ("c", "x y"), ("d", "é"), ("e", "")]]
    made = doc.Document("t", [*headings, doc.Paragraph([doc.Link("to b", "x-y"), doc.Link("to a", "x y")])])
    read = Read(as_html.html(made, Path("/x")))
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids)) == 4
    inside = [a["href"] for tag, a in read.elements if tag == "a"][-2:]
    by_words = {a["id"]: tag for tag, a in read.elements if "id" in a}
    assert [href[1:] in by_words for href in inside] == [True, True]
    assert inside[0] != inside[1]
    text = as_markdown.markdown(
        doc.Document("t", [doc.Heading("T", id="1"), doc.Paragraph(doc.Link("l", "1"))]), Path()
    )
    assert "[l](#t-1)" in text  # the document's own title has the anchor "t"


def test_links_to_files_are_relative_to_where_the_report_lies(tmp_path: Path) -> None:
    made = doc.Document("t", [doc.Paragraph(doc.Link("r", tmp_path / "a b" / "report.md"))])
    for rendered in (as_html.html(made, tmp_path / "c"), as_markdown.markdown(made, tmp_path / "c")):
        assert "../a%20b/report.md" in rendered
        assert str(tmp_path) not in rendered


def test_a_figure_that_is_none_is_one_line(tmp_path: Path) -> None:
    made = doc.Document("t", [doc.Figure("f", tmp_path / "f.png", "alt")])
    with pytest.raises(MmctlError, match=r"f\.png: the figure cannot be read"):
        as_html.html(made, tmp_path)
    (tmp_path / "f.png").write_bytes(b"<svg/>")
    with pytest.raises(MmctlError, match=r"f\.png: not a PNG file"):
        as_html.html(made, tmp_path)
