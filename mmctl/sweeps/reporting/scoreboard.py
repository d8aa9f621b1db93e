"""The scoreboard: every claim of every ablation with its verdicts, over all the sweeps at hand, as one document.

An ablation that no sweep has run, and a claim that no sweep has tested, stand there as not run, with the command that
would run them.
"""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError
from mmctl.sweeps import profiles
from mmctl.sweeps.matrix import Matrix, load, shipped
from mmctl.sweeps.reporting import as_html, as_markdown, preamble, words
from mmctl.sweeps.reporting.document import (
    Block,
    Code,
    Commands,
    Document,
    Heading,
    Link,
    Paragraph,
    Span,
    Table,
    Text,
    Word,
    joined,
)
from mmctl.sweeps.verdicts import NOT_RUN

TITLE = "Reproduction scoreboard of Memory Mosaics"
OLDEST = 2
"""The form of results.json from which on claims look as they do here."""


@dataclass(frozen=True)
class Source:
    """A sweep's results.json."""

    file: Path
    results: Mapping[str, Any]

    @property
    def report(self) -> Path | None:
        """The sweep's own report, where it lies beside the results."""
        found = [self.file.with_name(name) for name in ("report.html", "report.md")]
        return next((path for path in found if path.is_file()), None)

    @property
    def name(self) -> str:
        return str(self.results["sweep"])


@dataclass(frozen=True)
class Tested:
    """A claim as one sweep tested it."""

    claim: Mapping[str, Any]
    ablation: Mapping[str, Any]
    source: Source


def read(file: Path) -> Source:
    """A results.json of this form or of the last one; MmctlError, one line, for any other."""
    from mmctl.runs.files import read_object
    from mmctl.sweeps.results import SCHEMA

    results = read_object(file)
    if not isinstance(results.get("ablations"), list):
        raise MmctlError(f"{file}: not the results of a sweep")
    form = results.get("schema")
    if not isinstance(form, int) or not OLDEST <= form <= SCHEMA:
        again = results.get("command") or "its own command"
        raise MmctlError(f"{file}: of form {form}, expected {OLDEST} to {SCHEMA}; brought up to date by: {again}")
    found = Source(file, results)
    with preamble.whole(file, results):  # all that the page will read of it, so that what is damaged is named
        parts = {
            name: _ablation(name, None, [found]) for name in dict.fromkeys(a["name"] for a in results["ablations"])
        }
        blocks = [
            *_ablations(parts),
            *_sweeps([found], ()),
            *(block for part in parts.values() for block in part.blocks),
        ]
        for form in (as_markdown.markdown, as_html.html):
            form(Document(TITLE, blocks), file.absolute().parent)
    return found


def document(sources: Sequence[Source], command: str, unread: Sequence[str] = ()) -> Document:
    """command: what wrote it; unread: sweeps that could not be read, in a line each."""
    newest = sorted(sources, key=lambda source: str(source.results["date"]), reverse=True)
    known = {name: load(path) for name, path in shipped().items()}
    own = dict.fromkeys(a["name"] for source in newest for a in source.results["ablations"])
    names = [*known, *(name for name in own if name not in known)]
    tables = {name: _ablation(name, known.get(name), newest) for name in names}
    latest = [verdicts[0] for table in tables.values() for verdicts in table.verdicts]
    blocks: list[Block] = [*_counts(latest, len(names), newest, command), *_ablations(tables), *_sweeps(newest, unread)]
    for table in tables.values():
        blocks += table.blocks
    return Document(TITLE, blocks)


@dataclass(frozen=True)
class _Shown:
    """An ablation's part of the page, and for each of its claims the verdicts, newest first."""

    blocks: list[Block]
    verdicts: list[list[str]]


def _counts(latest: Sequence[str], ablations: int, sources: Sequence[Source], command: str) -> Iterator[Block]:
    runs = f"{len(sources)} sweep{'s' * (len(sources) != 1)}"
    yield Paragraph(
        f"{len(latest)} claims of {ablations} ablations, from {runs}. Where several sweeps tested a claim, each has a row, the "
        "newest first, and the newest counts here. Corrections for several tests are each sweep's own."
    )
    rows: list[list[Text]] = [[Word(w), str(n), f"{preamble.meaning(w)}."] for w, n in _ordered(latest)]
    yield Table("Verdicts", ["verdict", "claims", "meaning"], rows)
    yield Paragraph("Made by:")
    yield Commands([command])


def _ordered(verdicts: Sequence[str]) -> list[tuple[str, int]]:
    """Verdicts with their counts: as claimed, not as claimed, open, nothing to judge; the most frequent first."""
    kinds = list(words.SIGNS)
    return sorted(Counter(verdicts).items(), key=lambda item: (kinds.index(words.tone(item[0])), -item[1]))


def _ablations(shown: Mapping[str, _Shown]) -> Iterator[Block]:
    yield Heading("Ablations", id="ablations")
    rows: list[list[Text]] = []
    for name, part in shown.items():
        newest = _ordered([verdicts[0] for verdicts in part.verdicts])
        counted = joined([[f"{n} ", Word(word)] for word, n in newest], ", ")
        rows.append([Link(name, f"ablation.{name}"), str(len(part.verdicts)), counted or "no claims"])
    yield Table("Ablations", ["ablation", "claims", "newest verdicts"], rows)


def _sweeps(sources: Sequence[Source], unread: Sequence[str]) -> Iterator[Block]:
    yield Heading("Sweeps", id="sweeps")
    rows: list[list[Text]] = []
    for source in sources:
        claims = [claim for ablation in source.results["ablations"] for claim in ablation["claims"]]
        rows.append(
            [
                _report(source),
                _settings(source),
                str(source.results["date"])[:10],
                preamble.counted(c["verdict"] for c in claims) or "no claims",
                Code(source.results["command"]),
            ]
        )
    if rows:
        yield Table("Sweeps", ["report", "profile", "date", "verdicts", "command"], rows)
    else:
        yield Paragraph("None.")
    for line in unread:
        yield Paragraph(f"Not read: {line}")


def _report(source: Source) -> Span:
    # The folder's name tells two copies of a sweep apart, which its own name does not.
    name = source.file.parent.name or source.name
    return source.name if source.report is None else Link(name, source.report)


def _settings(source: Source, ablation: Mapping[str, Any] | None = None) -> str:
    """Profile, its preset where that has another name, and what the command set otherwise."""
    results = source.results
    preset = (ablation or {}).get("preset") or results["preset"]
    typed = _words(str(results["command"]))
    changed = [word for word in typed if "=" in word and not word.startswith("-")]
    match = [f"--match {after}" for before, after in itertools.pairwise(typed) if before == "--match"]
    return ", ".join([results["profile"], *([f"preset {preset}"] * (preset != results["profile"])), *match, *changed])


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # no command of ours
        return command.split()


def _ablation(name: str, matrix: Matrix | None, sources: Sequence[Source]) -> _Shown:
    runs = [(a, source) for source in sources for a in source.results["ablations"] if a["name"] == name]
    question = matrix.question if matrix is not None else str(runs[0][0]["question"])
    blocks: list[Block] = [Heading(name, id=f"ablation.{name}"), Paragraph(question)]
    tested: dict[str, list[Tested]] = {}
    for ablation, source in runs:
        for claim in ablation["claims"]:
            tested.setdefault(claim["id"], []).append(Tested(claim, ablation, source))
    rows: list[list[Text]] = []
    verdicts: list[list[str]] = []
    for claim in matrix.claims if matrix is not None else ():
        if claim.id not in tested:
            rows.append([claim.statement, Word(NOT_RUN), words.published(asdict(claim)), words.MISSING, "", ""])
            verdicts.append([NOT_RUN])
    whole = len(verdicts) == len(matrix.claims if matrix is not None else ()) and not tested
    listed: list[list[Text]] = []
    for found in tested.values():
        verdicts.append([one.claim["verdict"] for one in found])
        listed += [_row(one.claim, one.source, one.ablation) for one in found]
    if listed or rows:
        head = ["claim", "verdict", "published", "ours (mean, 95% interval)", "profile", "report"]
        blocks.append(Table(f"{name}: claims", head, [*listed, *rows]))
    elif runs:
        blocks.append(Paragraph(["Run, without claims to judge: ", *_reports([source for _, source in runs]), "."]))
    if rows or not runs:
        blocks.append(Paragraph("Not run." if whole or not runs else "What is not run yet, by:"))
        blocks.append(Commands([f"mmctl ablate {name} --profile {profiles.chosen(None, [name]).name}"]))
    return _Shown(blocks, verdicts)


def _row(claim: Mapping[str, Any], source: Source, ablation: Mapping[str, Any]) -> list[Text]:
    said, ours = words.published(claim), words.ours(claim)
    profile = _settings(source, ablation)
    return [claim["statement"], preamble.verdict(claim), said, ours, profile, _report(source)]


def _reports(sources: Sequence[Source]) -> Iterator[Span]:
    for place, source in enumerate(sources):
        yield ", " if place else ""
        yield _report(source)
