"""The head of a sweep's report: what was run, what was registered before, every verdict, and how to read them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError
from mmctl.sweeps.costs import TOLERANCE, tokens_taken
from mmctl.sweeps.reporting import words
from mmctl.sweeps.reporting.document import (
    Block,
    Bullets,
    Code,
    Fields,
    Heading,
    Link,
    Paragraph,
    Span,
    Strong,
    Table,
    Text,
    Word,
)
from mmctl.sweeps.verdicts import MEANINGS, REPRODUCED, SUPPORTED

RULES = """\
Every difference is paired by seed, treatment minus control; n is the number of seeds. Intervals are 95% (unless said to be \
corrected): Student's t over seeds, or where it is wider (and then said) the interval that adds the sampling error of the \
held-out examples, which all seeds share (Welch-Satterthwaite); for a single seed a paired bootstrap over examples. Claims of \
a direction are tested against 0, two-sided, and corrected by Holm's procedure over the {family} of them in this report: \
p (Holm) is significant below 0.05, whatever the uncorrected 95% interval shows. Claims of no effect and of a range are \
intervals against the margin or range stated with the claim, uncorrected. Hyper-parameters were not chosen on any reported \
number. Accuracies are in percent, their differences in percentage points; of losses, lower is better. "Unmatched": \
parameters, FLOPs or training tokens of the two arms differ by more than {tolerance:g}%."""


@contextlib.contextmanager
def whole(path: Path, results: Mapping[str, Any]) -> Iterator[None]:
    """Around what reads results: those in which something is not there, or is of another kind, are damaged or older than
    it. MmctlError, one line."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        again = results.get("command") or "its own command"
        raise MmctlError(
            f"{path}: not whole ({type(error).__name__}: {error}); brought up to date, without training anything anew, by: "
            f"{again}"
        ) from error


def title(results: Mapping[str, Any]) -> str:
    return f"Ablations of Memory Mosaics: {results['profile']} profile"


def header(results: Mapping[str, Any]) -> Iterator[Block]:
    seeds = {a["name"]: ", ".join(map(str, a["seeds"])) for a in results["ablations"]}
    said = (
        next(iter(seeds.values()))
        if len(set(seeds.values())) == 1
        else "; ".join(f"{k}: {v}" for k, v in seeds.items())
    )
    states = Counter(run["state"] for run in results["runs"])
    arms = [arm for ablation in results["ablations"] for arm in ablation["arms"]]
    yield Fields(
        [
            ("Sweep", [Code(results["sweep"]), ", preset ", Code(results["preset"]), f", seeds {said}"]),
            (
                "Scale",
                f"{_between(a['cost']['parameters'] for a in arms)} parameters, {_between(map(tokens_taken, arms))} "
                "training tokens a run; verdicts are about this scale",
            ),
            ("Runs", ", ".join(f"{count} {state}" for state, count in states.most_common())),
            ("Cost", _cost(results)),
            ("Date", results["date"]),
            ("Command", Code(results["command"])),
            ("This report", [Code(f"mmctl report {results['sweep']}"), ", from results.json and the runs' folders"]),
        ]
    )
    for key, arms in results["passed_over"].items():
        yield Paragraph([Code(key), f" does not exist in the models of {', '.join(arms)} and was passed over there."])


def _between(counts: Iterable[float]) -> str:
    ordered = sorted(set(counts))
    return " to ".join(words.large(c) for c in dict.fromkeys((ordered[0], ordered[-1])))


def training_flops(arm: Mapping[str, Any]) -> float:
    """FLOPs of a run's training as executed: a step costs three times its forward pass."""
    return 3.0 * float(arm["cost"]["flops_per_token"]["executed"]) * tokens_taken(arm)


def _cost(results: Mapping[str, Any]) -> str:
    """What all finished runs cost together; arms that share a run share its cost."""
    tokens = flops = seconds = 0.0
    seen: set[tuple[str, str]] = set()
    for arm in (arm for ablation in results["ablations"] for arm in ablation["arms"]):
        taken = (arm["scores"].get("seconds") or {}).get("seeds", {})
        for seed, run in arm["runs"].items():
            if run["state"] != "finished" or (arm["identity"], seed) in seen:
                continue
            seen.add((arm["identity"], seed))
            tokens += tokens_taken(arm)
            flops += training_flops(arm)
            seconds += taken.get(seed, {"value": 0.0})["value"]
    return (
        f"{len(seen)} finished runs: {words.large(tokens)} training tokens, {words.large(flops)} training FLOPs (executed, "
        f"forward and backward), {words.duration(seconds)} of the runs' own time"
    )


def registration(results: Mapping[str, Any]) -> Iterator[Block]:
    """What the manifest fixed and when, and what is not as it was then."""
    yield Heading("Pre-registration", id="pre-registration")
    yield Paragraph(_registered(results))
    yield Fields([(name, str(rule)) for name, rule in results["analysis"].items()])


def _registered(results: Mapping[str, Any]) -> str:
    claims = [c for a in results["ablations"] for c in a["claims"]]
    earlier, runs = len(results["finished_before"]), len(results["runs"])
    before = f"when {earlier} of {runs} runs were finished already" if earlier else "before the first run"
    if earlier and results.get("tuning"):
        before = f"when {earlier} of the runs that a choice might ask for were finished already"
    text = f"Metric, direction, margin and seeds of every claim were fixed {results['registered']}, {before}, with the "
    text += "SHA-256 of their file (at each ablation). "
    changed = sum(bool(c["registered"]) for c in claims)
    text += f"{changed} of {len(claims)} claims are not as they were then, and are marked. " if changed else ""
    text += "" if changed else "No claim has changed since. "
    recorded = results["analysis_registered"]
    if recorded is None:
        return text + "The rules of analysis were not recorded then."
    rules = [k for k, v in results["analysis"].items() if recorded.get(k) != v]
    return text + (
        f"Rules of analysis changed since: {', '.join(rules)}." if rules else "Nor have the rules of analysis."
    )


def provenance(results: Mapping[str, Any]) -> Iterator[Block]:
    machine = results["machine"]
    yield Heading("Provenance", id="provenance")
    yield Fields(
        [
            (
                "Machine",
                f"{machine['processor']}, {machine['cores']} cores, device {machine['device']}, {machine['system']}",
            ),
            ("Versions", ", ".join(f"{name} {version}" for name, version in results["versions"].items())),
            ("Every number, seed by seed", [Code("numbers.csv"), " and ", Code("results.json"), " beside this report"]),
            ("Of each run", ["code, packages, device and command line in ", Code("provenance.json"), " of its folder"]),
        ]
    )
    rows: list[list[Text]] = [
        [run["label"], Code(run["identity"]), run["state"], Code(run["path"]) if run["path"] else words.MISSING]
        for run in results["runs"]
    ]
    yield Table("Runs", ["run", "identity", "state", "folder under runs/"], rows)


def summary(results: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading("Verdicts", id="verdicts")
    claims = [c for a in results["ablations"] for c in a["claims"]]
    if not claims:
        yield Paragraph("These ablations make no claims.")
        return
    yield Paragraph(f"{len(claims)} claims: {counted(c['verdict'] for c in claims)}.")
    rows: list[list[Text]] = [
        [
            [Link(a["name"], ablation_id(a)), f": {c['statement']}"],
            verdict(c),
            words.published(c),
            words.ours(c),
            words.holm_p(c),
        ]
        for a in results["ablations"]
        for c in a["claims"]
    ]
    yield Table("Verdicts", ["claim", "verdict", "published", "ours (mean, 95% interval)", "p (Holm)"], rows)
    yield Paragraph(RULES.format(family=results["family"], tolerance=100 * TOLERANCE))
    yield Paragraph("The words of the verdicts, by fixed rules:")
    yield meanings({c["verdict"] for c in claims} | {p["verdict"] for c in claims for p in c["parts"]})


def counted(verdicts: Iterable[str]) -> str:
    return "; ".join(f"{n} {word}" for word, n in Counter(verdicts).most_common())


def meaning(word: str) -> str:
    """What a verdict's word means, wherever it stands in a list."""
    found = MEANINGS.get(word, "")
    same = word.replace(SUPPORTED, REPRODUCED)
    return f'as "{same}"{found.removeprefix("the same")}' if found.startswith("the same") else found


def meanings(said: set[str]) -> Bullets:
    return Bullets([[Strong(word), f": {meaning(word)}."] for word in MEANINGS if word in said])


def verdict(claim: Mapping[str, Any]) -> list[Span]:
    """The word, and what a reader must know beside it."""
    return [Word(claim["verdict"]), *(f"; {mark}" for mark in words.marks(claim))]


def ablation_id(ablation: Mapping[str, Any]) -> str:
    return f"ablation.{ablation['name']}"
