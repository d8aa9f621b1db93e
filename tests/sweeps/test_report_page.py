"""A sweep's report and the scoreboard, from hostile results: one content in two forms, whole and without anything foreign."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import fake_runs
import pytest
from test_document import HOSTILE, PARSED, Read, words
from test_sweep_report import train

from mmctl.sweeps import manifest, profiles
from mmctl.sweeps.reporting import as_html, as_markdown, scoreboard
from mmctl.sweeps.reporting import document as doc
from mmctl.sweeps.reporting import sweep as report
from mmctl.sweeps.reporting import words as said
from mmctl.sweeps.reporting.figures import draw, present
from mmctl.sweeps.reporting.finish import finish
from mmctl.sweeps.verdicts import MEANINGS

OWN = """
name: own
question: {question}
baseline: {{set: {{model.name: mosaic-v2}}}}
arms: [{{name: a, label: {label}}}, {{name: b, set: {{model.bandwidth: constant}}}}]
claims:
  - {{id: one, statement: {statement}, metric: train_loss, treatment: a, control: b, expected: less, margin: 0.01,
     stand_in: {stand_in}, caveat: {caveat}, published: {{source: {source}, metric: m, value: {value}}}}}
figures: [effects]
"""
EVIL = "<script>alert('{}')</script> & \"q\" [l](http://e.x) | `c` **b**"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Path]]:
    """A finished sweep whose YAML is hostile wherever it may hold text; made once, for tests that only look."""
    from mmctl.sweeps import matrix, plan

    place = tmp_path_factory.mktemp("hostile")
    own, root = place / "own.yaml", place / "runs"
    texts = {key: json.dumps(EVIL.format(key)) for key in re.findall(r"(?<!\{)\{(\w+)\}", OWN)}
    own.write_text(OWN.format(**texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMCTL_FAKE", str(place / "actions.json"))
        made = plan.make_plan(matrix.find([str(own)]), profiles.profile("smoke"), fake_runs.SMALL, None, [str(own)])
        folder, fixed = manifest.folder(made, root), manifest.write(made, root, {"mmctl": "0"})
        train(made, root)
        yield finish(made, root, folder, fixed).results, folder


def test_the_page_holds_every_text_and_nothing_that_runs_or_loads(hostile: tuple[dict[str, Any], Path]) -> None:
    _, folder = hostile
    page = (folder / "report.html").read_text(encoding="utf-8")
    read = Read(page)
    shown = " ".join(" ".join(read.text).split())
    for key in ("question", "label", "statement", "stand_in", "caveat", "source", "value"):
        assert EVIL.format(key) in shown
    assert not {"script", "link", "iframe", "object", "embed", "form"} & {tag for tag, _ in read.elements}
    for tag, attributes in read.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name) or ""
            assert not re.match(r"[a-z]+:|//", value) or value.startswith("data:image/png;base64,"), (tag, value[:80])
    policy = next(a["content"] for t, a in read.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:")


def test_the_page_is_whole(hostile: tuple[dict[str, Any], Path]) -> None:
    """Ids are unique, links inside it lead somewhere, tables and pictures have what a reader who cannot see needs."""
    _, folder = hostile
    page = (folder / "report.html").read_text(encoding="utf-8")
    read = Read(page)
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids)) > 5
    targets = {a["href"][1:] for t, a in read.elements if t == "a" and a["href"].startswith("#")}
    assert targets
    assert targets <= set(ids)
    tables = re.findall(r"<table[^>]*>(.*?)</table>", page, re.DOTALL)
    assert len(tables) >= 4
    for table in tables:
        assert re.search(r"<caption>.+?</caption>", table)
        columns = len(re.findall(r'<th scope="col">', table))
        rows = re.findall(r"<tr>(.*?)</tr>", table.partition("<tbody>")[2], re.DOTALL)
        assert rows
        assert {len(re.findall(r"<t[hd]\b", row)) for row in rows} == {columns}
        assert all(row.startswith('<th scope="row">') for row in rows)
    pictures = [a for t, a in read.elements if t == "img"]
    assert [len(a["alt"]) > 40 and int(a["width"]) > 500 for a in pictures] == [True, True]  # overview and effects
    levels = [int(t[1]) for t, _ in read.elements if re.fullmatch(r"h[1-6]", t)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_both_forms_say_the_same(hostile: tuple[dict[str, Any], Path]) -> None:
    results, folder = hostile
    made = report.document(results)
    page = " ".join(" ".join(Read(as_html.html(made, folder)).text).split())
    for sign in said.SIGNS.values():
        page = page.replace(f"{sign} ", "")
    text = words(PARSED.render(as_markdown.markdown(made, folder)))

    def letters(shown: str) -> str:
        # Markdown's names of fields end in a colon.
        return re.sub(r"[\s:]", "", shown)

    assert letters(text).removeprefix(letters(made.title)) == letters(page)


def test_a_verdict_is_a_word_a_sign_and_a_colour(hostile: tuple[dict[str, Any], Path]) -> None:
    _, folder = hostile
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert '<span class="verdict held"><span aria-hidden="true">✓</span> reproduced</span>' in page
    assert {said.tone(word) for word in MEANINGS} == set(said.SIGNS)
    assert len(set(said.SIGNS.values())) == len(said.SIGNS)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    assert all(f".verdict.{kind}" in style[1] for kind in said.SIGNS)


def test_cost_is_what_all_runs_took_together(hostile: tuple[dict[str, Any], Path]) -> None:
    results, folder = hostile
    arms = results["ablations"][0]["arms"]
    flops = sum(3 * 3 * a["cost"]["flops_per_token"]["executed"] * a["cost"]["training_tokens"] for a in arms)
    tokens = sum(3 * a["cost"]["training_tokens"] for a in arms)
    expected = f"6 finished runs: {said.large(tokens)} training tokens, {said.large(flops)} training FLOPs (executed, "
    assert f"- Cost: {expected}forward and backward), 1.25 minutes of the runs' own time" in (
        folder / "report.md"
    ).read_text(encoding="utf-8")


def test_figures_that_are_no_longer_asked_for_go_and_what_others_drew_stays(
    hostile: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    results, folder = hostile[0], tmp_path / "copy"
    shutil.copytree(hostile[1], folder)
    figures = folder / "figures"
    assert (figures / "effects.png").is_file()
    (figures / "effects-own.png").write_bytes(b"mine")
    record = json.loads((figures / "drawn.json").read_text())
    record["gone"] = {"inputs": "x", "files": {"png": "figures/gone-1.png", "csv": "figures/../results.json"}}
    (figures / "drawn.json").write_text(json.dumps(record))
    (figures / "gone-1.png").write_bytes(b"old")
    assert set(present(folder, results)) == {"overview", "effects"}
    drawn = draw(folder, ["overview"], results)
    assert list(drawn.paths) == ["overview"]
    assert sorted(p.name for p in figures.glob("*.png")) == ["effects-own.png", "overview.png"]
    assert (folder / "results.json").is_file()
    assert set(json.loads((figures / "drawn.json").read_text())) == {"overview"}


def board(tmp_path: Path, *changes: dict[str, Any], results: dict[str, Any]) -> list[scoreboard.Source]:
    """Copies of results in folders of their own, changed."""
    made = []
    for place, change in enumerate(changes):
        folder = tmp_path / f"copy{place}"
        folder.mkdir()
        (folder / "results.json").write_text(json.dumps({**results, **change}))
        (folder / "report.md").write_text("# r")
        made.append(scoreboard.read(folder / "results.json"))
    return made


def test_the_scoreboard_has_every_shipped_ablation_and_the_newest_first(
    hostile: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    from mmctl.sweeps.matrix import load, shipped

    results, _ = hostile
    old = {"date": "2026-01-01T00:00:00+00:00", "command": "mmctl ablate x --profile smoke model.width=8 --match flops"}
    new = {"date": "2026-02-01T00:00:00+00:00", "profile": "standard"}
    made = scoreboard.document(board(tmp_path, old, new, results=results), "mmctl report --all")
    text = as_markdown.markdown(made, tmp_path)
    for name, path in shipped().items():
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        (command,) = re.findall(rf"^mmctl ablate {name} --profile (\S+)$", section, re.MULTILINE)
        assert command == profiles.chosen(command, [name]).name  # some ablations are about a recipe of their own
        assert section.count("**not run**") == len(load(path).claims)
    own = text.partition("\n## own\n")[2]
    rows = [line for line in own.splitlines() if "**reproduced**" in line]
    assert ["copy1/report.md" in rows[0], "copy0/report.md" in rows[1], len(rows)] == [True, True, 2]
    assert "| standard, preset smoke, training.steps=2," in rows[0]
    assert "| smoke, --match flops, model.width=8 |" in rows[1]
    assert "| **reproduced** | 1 |" in text  # of two sweeps of one claim the newest counts
    shipped_claims = sum(len(load(path).claims) for path in shipped().values())
    assert f"| **not run** | {shipped_claims} |" in text
    assert f"{shipped_claims + 1} claims of {len(shipped()) + 1} ablations, from 2 sweeps." in text
    page = Read(as_html.html(made, tmp_path))
    assert {a["href"] for t, a in page.elements if t == "a"} >= {"copy0/report.md", "copy1/report.md", "#ablation.own"}


def test_hostile_text_is_text_on_the_scoreboard_too(hostile: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    results, _ = hostile
    evil = json.loads(json.dumps(results))
    for key in ("profile", "preset", "command", "date", "sweep"):
        evil[key] = HOSTILE[0]
    evil["ablations"][0]["name"] = HOSTILE[1]
    evil["ablations"][0]["claims"][0]["verdict"] = HOSTILE[2]
    made = scoreboard.document(board(tmp_path, evil, results=results), HOSTILE[0], [HOSTILE[3]])
    elements = Read(as_html.html(made, tmp_path)).elements
    assert not {"script", "img"} & {tag for tag, _ in elements}
    tokens = PARSED.parse(as_markdown.markdown(made, tmp_path))
    assert not [t for token in tokens for t in [token, *(token.children or [])] if t.type.startswith("html")]


def test_results_of_an_unknown_form_are_refused(tmp_path: Path) -> None:
    from mmctl.errors import MmctlError

    file = tmp_path / "results.json"
    for content, says in [
        ({"schema": 99, "ablations": [], "command": "mmctl ablate"}, "of form 99"),
        ({}, "not the results of a sweep"),
    ]:
        file.write_text(json.dumps(content))
        with pytest.raises(MmctlError, match=says) as caught:
            scoreboard.read(file)
        assert "\n" not in str(caught.value)


def test_a_cell_of_a_card_names_its_column(tmp_path: Path) -> None:
    """What a phone shows before each cell is the head of the cell's own column; tables too wide for that have none, but
    of records however many."""
    for columns, records in ((2, False), (as_html.CARDS, False), (as_html.CARDS + 1, False), (2 * as_html.CARDS, True)):
        head = [doc.Code(f"column {place}") if place % 2 else f"column {place}" for place in range(columns)]
        rows = [[f"cell {row}.{place}" for place in range(columns)] for row in range(2)]
        page = as_html.html(doc.Document("t", [doc.Table("about", head, rows, records)]), tmp_path)
        labels = re.findall(r'<td data-label="column (\d+)">cell \d\.(\d+)</td>', page)
        assert len(labels) == (2 * (columns - 1) if records or columns <= as_html.CARDS else 0)
        assert all(label == place for label, place in labels)


SHARES = """Math.min(...[...document.querySelectorAll('.scroll')].flatMap(box => [...box.querySelectorAll('tbody tr')].map(
  row => {
    const end = box.getBoundingClientRect().right, height = row.getBoundingClientRect().height
    const seen = [...row.children].filter(cell => cell.getBoundingClientRect().right <= end + 1).map(cell => {
      const text = document.createRange()
      text.selectNodeContents(cell)
      return text.getBoundingClientRect()
    }).filter(found => found.height)
    return (Math.max(...seen.map(f => f.bottom)) - Math.min(...seen.map(f => f.top))) / height
  })))"""
"""Least share of a row's height that is taken by the cells one sees before scrolling sideways."""


@pytest.mark.skipif(browser.found() is None, reason="no Chromium or Chrome is installed")
def test_a_real_browser_shows_report_and_scoreboard(hostile: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """Nothing wider than a phone but inside boxes that scroll, every picture there, nothing asked of the network, no
    complaint; by day, by night and on paper."""
    results, folder = hostile
    made = scoreboard.document(board(tmp_path, {}, results=results), "mmctl report --all")
    (tmp_path / "scoreboard.html").write_text(as_html.html(made, tmp_path), encoding="utf-8")
    head = ["metric", "unit", "chance", *(f"arm {place}" for place in range(as_html.CARDS + 3))]
    number = ["x/accuracy@1x", "nats", "none", *["0.8123 ± 0.0123 [0.7123, 0.9123]"] * (len(head) - 3)]
    long = ["an arm", "1", "2", *["compared in many words with another one"] * (len(head) - 3)]
    wide = [doc.Table("scores", head, [number]), doc.Table("arms", head, [long], records=True)]
    (tmp_path / "wide.html").write_text(as_html.html(doc.Document("wide", wide), tmp_path), encoding="utf-8")
    pages = [folder / "report.html", tmp_path / "scoreboard.html", tmp_path / "wide.html"]
    shown = browser.Browser(str(browser.found()), tmp_path / "profile")
    try:
        for page in pages:
            for width in (360, 1280):
                shown.open(page, width)
                assert shown.ask("document.documentElement.scrollWidth") <= width
                assert shown.ask("[...document.querySelectorAll('.scroll')].every(e => e.clientWidth <= innerWidth)")
                narrow = "[...document.querySelectorAll('.scroll')].filter(e => e.querySelector('.cards'))"
                assert shown.ask(f"{narrow}.length") > 0
                assert width > 600 or shown.ask(f"{narrow}.every(e => e.scrollWidth <= e.clientWidth)")
                assert shown.ask(SHARES) >= 0.4  # a row is not mostly empty where it is looked at first
                assert shown.ask("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
                assert shown.ask("document.images.length") == (2 if page == pages[0] else 0)
            paper = "getComputedStyle(document.body).backgroundColor"
            by_day = shown.ask(paper)
            shown.media(prefers_color_scheme="dark")
            assert shown.ask(paper) != by_day
            shown.media("print")
            assert shown.ask("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
            shown.media()
        local = {page.resolve().as_uri() for page in pages}
        assert {url for url in shown.requests if not url.startswith("data:")} == local
        assert shown.problems == []
    finally:
        shown.close()


EVIDENCE = sorted((Path(__file__).parents[2] / "evidence").glob("*/results.json"))


@pytest.mark.parametrize("file", EVIDENCE, ids=lambda file: file.parent.name)
def test_committed_evidence_can_be_reported_and_names_no_machine(file: Path, tmp_path: Path) -> None:
    found = scoreboard.read(file)
    assert found.report == file.with_name("report.md")
    made = report.document(found.results, {n: file.parent / p for n, p in present(file.parent, found.results).items()})
    assert Read(as_html.html(made, tmp_path)).elements
    assert file.stat().st_size < 1_500_000
    for text in (path.read_text(encoding="utf-8") for path in (file, *file.parent.glob("*.md"))):
        assert not re.search(r"(?<![\w.])/(?:tmp|home|root|work|mnt)/", text)
