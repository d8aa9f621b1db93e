"""A sweep's report as a document, made from results.json's dictionary alone; HTML and Markdown are written from it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmctl.evaluation.changes import CHANGES, Changes, changed
from mmctl.sweeps.comparing import CHANCE_MARGIN
from mmctl.sweeps.costs import tokens_taken
from mmctl.sweeps.reporting import preamble, words
from mmctl.sweeps.reporting.across import across_blocks
from mmctl.sweeps.reporting.claim import claim_blocks
from mmctl.sweeps.reporting.document import (
    Block,
    Code,
    Commands,
    Document,
    Figure,
    Heading,
    Link,
    Paragraph,
    Span,
    Table,
    Text,
)
from mmctl.sweeps.reporting.figures import caption
from mmctl.sweeps.reporting.tuning import tuning_blocks
from mmctl.sweeps.reporting.words import MISSING
from mmctl.sweeps.units import scale_of

MOST_COLUMNS = 6
"""Arms beyond which a table of scores has a row an arm instead of a column."""
FIRST = "overview"
"""The figure that stands with the verdicts; the others stand at the end."""


def document(results: Mapping[str, Any], figures: Mapping[str, Path] | None = None) -> Document:
    """The report. figures: {name: PNG file}; drawn over the whole sweep, they stand at its end, but for the first."""
    drawn = figures or {}
    blocks = [*preamble.header(results), *preamble.summary(results)]
    if FIRST in drawn:
        blocks.append(_figure(FIRST, drawn, results))
    for ablation in results["ablations"]:
        blocks += _ablation(ablation, drawn)
    blocks += tuning_blocks(results)
    if set(drawn) - {FIRST}:
        blocks += [Heading("Figures", id="figures"), *(_figure(n, drawn, results) for n in drawn if n != FIRST)]
    blocks += [*preamble.registration(results), *preamble.provenance(results), *_failures(results)]
    return Document(preamble.title(results), blocks)


def _figure(name: str, figures: Mapping[str, Path], results: Mapping[str, Any]) -> Figure:
    title, alt = caption(name, results)
    return Figure(title, figures[name], alt, id=f"figure.{name}")


def _file(ablation: Mapping[str, Any]) -> list[Span]:
    """The ablation's file with its hash, beside the registered one."""
    now, then = ablation["sha256"], ablation["sha256_registered"]
    same: list[Span] = (
        ["as registered"] if now == then else ["registered as ", Code(then)] if then else ["not registered"]
    )
    return ["File: ", Code(ablation["file"]), ", SHA-256 ", Code(now), ", ", *same, "."]


def _ablation(ablation: Mapping[str, Any], figures: Mapping[str, Path]) -> Iterator[Block]:
    yield Heading(ablation["name"], id=preamble.ablation_id(ablation))
    yield Paragraph(ablation["question"])
    yield Paragraph(_file(ablation))
    yield Heading("Arms", 3)
    yield _costs(ablation)
    if ablation["excluded"]:
        yield Paragraph("Left out: " + "; ".join(f"{e['arm']} ({e['reason']})" for e in ablation["excluded"]) + ".")
    yield Heading("Scores", 3)
    yield Paragraph(_scores_note(ablation))
    yield _scores(ablation)
    yield from _noted(ablation)
    yield from across_blocks(ablation)
    alpha = list(_alpha(ablation))
    if alpha:
        yield Heading("Learned bandwidth exponent alpha", 3)
        yield Paragraph(
            "Published: 0.2 to 0.4 (arXiv 2507.03285). Means over the heads of a layer: mean ± standard deviation over seeds "
            "and 95% interval of the mean. Arms whose alpha is fixed at 0 are left out."
        )
        head = ["arm", "memory", "layer", "before training", "after training", "n"]
        yield Table(f"{ablation['name']}: learned alpha", head, alpha)
    yield Heading("Claims", 3)
    for claim in ablation["claims"]:
        yield from claim_blocks(ablation, claim)
    if not ablation["claims"]:
        yield Paragraph("None.")
    if ablation["figures"]:
        yield Paragraph(["Figures: ", *_linked(ablation["figures"], figures), "."])
    yield Heading("Commands", 3)
    yield Commands(_commands(ablation))


def _linked(names: Sequence[str], figures: Mapping[str, Path]) -> Iterator[Span]:
    for place, name in enumerate(names):
        shown = name.replace("-", " ")
        yield ", " if place else ""
        yield Link(shown, figures[name]) if name in figures else f"{shown}: {MISSING}"


def _matched(arm: Mapping[str, Any]) -> str:
    against = arm["compared_to"]
    if not against:
        return ""
    if arm["same_run"]:
        return f"the same trained runs as {against}, read otherwise"
    return f"unmatched with {against}: {', '.join(arm['unmatched'])}" if arm["unmatched"] else f"matched with {against}"


def _delay(delay: Mapping[str, Any] | None) -> str:
    """m in training and at evaluation, in tokens."""
    if delay is None:
        return "none"
    low, high = delay["training"]
    trained = f"{low} to {high}, drawn at each step" if low < high else f"{low}, fixed"
    return f"{trained}; " + ("memory removed" if delay["evaluation"] is None else str(delay["evaluation"]))


def _costs(ablation: Mapping[str, Any]) -> Table:
    rows: list[list[Text]] = []
    ranged = any(arm["delay"] for arm in ablation["arms"])
    for arm in ablation["arms"]:
        cost = arm["cost"]
        finished = sum(run["state"] == "finished" for run in arm["runs"].values())
        unfinished = Counter(run["state"] for run in arm["runs"].values() if run["state"] != "finished")
        state = f"{finished}/{len(arm['runs'])} finished" + "".join(f", {n} {s}" for s, n in unfinished.items())
        seconds = arm["scores"].get("seconds")
        rows.append(
            [
                [Code(arm["name"]), f": {arm['label']}"],
                words.large(cost["parameters"]),
                words.large(cost["flops_per_token"]["published"]) + _added(cost),
                words.large(cost["flops_per_token"]["executed"]) + _added(cost),
                words.large(tokens_taken(arm)),
                words.large(preamble.training_flops(arm)),
                *([_delay(arm["delay"])] if ranged else []),
                MISSING if seconds is None else f"{seconds['mean']:.0f} s",
                state,
                _matched(arm),
            ]
        )
    context = ablation["arms"][0]["cost"]["context"]
    head = ["arm", "parameters", f"FLOPs/token at {context} (published)", f"FLOPs/token at {context} (executed)"]
    head += ["training tokens", "training FLOPs a run (executed)"]
    m = ["m in training; at evaluation (tokens)"] if ranged else []
    head += [*m, "wall time a run (mean)", "runs", "compared"]
    return Table(f"{ablation['name']}: arms", head, rows, records=True)


def _added(cost: Mapping[str, Any]) -> str:
    """What an evaluation-time change adds to the model's own FLOPs."""
    return f" + {words.large(cost['added_flops'])}" if cost.get("added_flops") else ""


def _scores_note(ablation: Mapping[str, Any]) -> str:
    counts = sorted({score["n"] for arm in ablation["arms"] for score in arm["scores"].values()})
    n = " to ".join(str(c) for c in dict.fromkeys((counts[0], counts[-1]))) if counts else "0"
    return (
        f"Mean ± standard deviation over seeds and the mean's 95% interval (cut at 0 and 100%; of a single seed "
        f"the interval over its examples); n = {n} seed{'s' * (n != '1')}. The arms see "
        "the same held-out examples, so their differences, under Claims, are known better than these intervals suggest. "
        "Chance: a guess that knows the task's form and nothing else. "
        f"@4x: at 4 times the training length. †: no more than {100 * CHANCE_MARGIN:g} points above chance: not learned."
    )


def _scores(ablation: Mapping[str, Any]) -> Table:
    arms = ablation["arms"]
    claimed = [c["metric"] for c in ablation["claims"] if not c["metric"].startswith(("diagnostics:", "across:"))]
    measured = list(dict.fromkeys(metric for arm in arms for metric in arm["scores"]))
    shown = words.order(measured)
    shown += [m for m in dict.fromkeys(claimed) if m not in shown]
    about = f"{ablation['name']}: scores"
    if len(arms) > MOST_COLUMNS:
        shown = list(dict.fromkeys(["train_loss", *claimed]))
        by_arm: list[list[Text]] = [[Code(a["name"]), *(_score(a, m) for m in shown)] for a in arms]
        return Table(about, ["arm", *(f"{m} ({scale_of(m).unit}; chance {_chance(arms, m)})" for m in shown)], by_arm)
    rows: list[list[Text]] = [[m, scale_of(m).unit, _chance(arms, m), *(_score(arm, m) for arm in arms)] for m in shown]
    return Table(about, ["metric", "unit", "chance", *(Code(a["name"]) for a in arms)], rows)


def _noted(ablation: Mapping[str, Any]) -> Iterator[Block]:
    """What evaluation-time changes said of themselves, means over seeds, one table a change: an arm a column."""
    for change in CHANGES:
        start = f"diagnostics:{change}/"
        arms = [arm for arm in ablation["arms"] if any(m.startswith(start) for m in arm["scores"])]
        if not arms:
            continue
        metrics = dict.fromkeys(m for arm in arms for m in arm["scores"] if m.startswith(start))
        rows: list[list[Text]] = [
            [m.removeprefix(start), *(_bare(arm["scores"].get(m)) for arm in arms)] for m in metrics
        ]
        yield Heading(f"What {change} noted", 3)
        yield Paragraph("Mean over seeds (and over the suite measured last), with its standard deviation.")
        yield Table(f"{ablation['name']}: {change}", ["", *(Code(arm["name"]) for arm in arms)], rows)


def _bare(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return MISSING
    return f"{summary['mean']:.4g}" + (f" ± {summary['sd']:.2g}" if summary["sd"] else "")


def _chance(arms: Sequence[Mapping[str, Any]], metric: str) -> str:
    found = {a["scores"][metric]["chance"] for a in arms if metric in a["scores"]} - {None}
    return " to ".join(scale_of(metric).value(c) for c in sorted(found)) or "none"


def _score(arm: Mapping[str, Any], metric: str) -> str:
    of_training = "@" not in metric
    if changed(arm["evaluate"]) and of_training:
        return "as trained"
    found = arm["scores"].get(metric)
    mark = " †" if found and found["at_chance"] else ""
    return words.score(found, scale_of(metric), 1.0 if "/accuracy" in metric else None) + mark


def _alpha(ablation: Mapping[str, Any]) -> Iterator[list[Text]]:
    pattern = re.compile(r"diagnostics:bandwidth/alpha/(?P<memory>[^/]+)/layer(?P<layer>\d+)")
    for arm in ablation["arms"]:
        found = [(m, summary) for name, summary in arm["scores"].items() if (m := pattern.fullmatch(name))]
        for match, summary in sorted(found, key=lambda f: (f[0]["memory"], int(f[0]["layer"]))):
            # Exactly 0 at every seed is a bandwidth that does not learn alpha, not a measurement.
            if summary["mean"] or summary["sd"]:
                scale, start = scale_of(match[0]), arm["start"].get(match[0])
                before = MISSING if start is None else scale.value(start)
                after = words.score(summary, scale)
                yield [Code(arm["name"]), match["memory"], match["layer"], before, after, str(summary["n"])]


def _commands(ablation: Mapping[str, Any]) -> list[str]:
    lines = [ablation["command"]]
    for arm in ablation["arms"]:
        lines += [f"# {arm['name']}, one seed", arm["train_command"]]
        options = Changes.of(arm["evaluate"]).options()
        path = next((run["path"] for run in arm["runs"].values() if run["path"]), None)
        if options and path:
            lines.append(f"mmctl eval {path} {options}")
    return lines


def _failures(results: Mapping[str, Any]) -> Iterator[Block]:
    if results["failures"]:
        yield Heading("Not finished", id="not-finished")
        rows = [[f["label"], f["state"], f["reason"] or "no reason given"] for f in results["failures"]]
        yield Table("Not finished", ["run", "state", "reason"], rows)
