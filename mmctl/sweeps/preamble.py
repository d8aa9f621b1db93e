"""The head of the Markdown report: what was run, what was registered before, every verdict, and how to read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mmctl.sweeps import words
from mmctl.sweeps.costs import TOLERANCE
from mmctl.sweeps.verdicts import MEANINGS

RULES = """\
Every difference is paired by seed, treatment minus control; n is the number of seeds. Intervals are 95% (unless said to be
corrected): Student's t over seeds, or where it is wider (and then said) the interval that adds the sampling error of the
held-out examples, which all seeds share (Welch-Satterthwaite); for a single seed a paired bootstrap over examples. Claims of
a direction are tested against 0, two-sided, and corrected by Holm's procedure over the {family} of them in this report:
p (Holm) is significant below 0.05, whatever the uncorrected 95% interval shows. Claims of no effect and of a range are
intervals against the margin or range stated with the claim, uncorrected. Hyper-parameters were not chosen on any reported
number. Accuracies are in percent, their differences in percentage points; of losses, lower is better. "Unmatched":
parameters, FLOPs or training tokens of the two arms differ by more than {tolerance:g}%."""


def header(results: Mapping[str, Any]) -> Iterator[str]:
    machine, versions = results["machine"], results["versions"]
    seeds = {a["name"]: ", ".join(map(str, a["seeds"])) for a in results["ablations"]}
    said = (
        next(iter(seeds.values()))
        if len(set(seeds.values())) == 1
        else "; ".join(f"{k}: {v}" for k, v in seeds.items())
    )
    states = Counter(run["state"] for run in results["runs"])
    costs = [arm["cost"] for ablation in results["ablations"] for arm in ablation["arms"]]
    yield f"# Ablations of Memory Mosaics: {results['profile']} profile"
    yield "\n".join(
        [
            f"- Sweep: `{results['sweep']}`, preset `{results['preset']}`, seeds {said}",
            f"- Scale: {_between(c['parameters'] for c in costs)} parameters, {_between(c['training_tokens'] for c in costs)} "
            "training tokens a run; verdicts are about this scale",
            f"- Runs: {', '.join(f'{count} {state}' for state, count in states.most_common())}",
            f"- Machine: {machine['processor']}, {machine['cores']} cores, device {machine['device']}, {machine['system']}",
            f"- Date: {results['date']}",
            f"- Pre-registration: {_registration(results)}",
            "- Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
            f"- Command: `{results['command']}`",
        ]
    )
    for key, arms in results["passed_over"].items():
        yield f"`{key}` does not exist in the models of {', '.join(arms)} and was passed over there."


def _between(counts: Iterable[float]) -> str:
    ordered = sorted(set(counts))
    return " to ".join(words.large(c) for c in dict.fromkeys((ordered[0], ordered[-1])))


def _registration(results: Mapping[str, Any]) -> str:
    """What the manifest fixed and when, and what is not as it was then."""
    claims = [c for a in results["ablations"] for c in a["claims"]]
    earlier, runs = len(results["finished_before"]), len(results["runs"])
    before = f"when {earlier} of {runs} runs were finished already" if earlier else "before the first run"
    text = f"metric, direction, margin and seeds of every claim fixed {results['registered']}, {before}, with the "
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


def summary(results: Mapping[str, Any]) -> Iterator[str]:
    yield "## Verdicts"
    counts = Counter(c["verdict"] for a in results["ablations"] for c in a["claims"])
    if counts:
        yield f"{counts.total()} claims: " + "; ".join(f"{n} {word}" for word, n in counts.most_common()) + "."
    rows = [
        [
            f"[{a['name']}](#{a['name']}): {c['statement']}",
            words.published(c),
            words.ours(c),
            words.holm_p(c),
            _verdict(c),
        ]
        for a in results["ablations"]
        for c in a["claims"]
    ]
    if not rows:
        yield "These ablations make no claims."
        return
    yield words.table(["claim", "published", "ours (mean, 95% interval)", "p (Holm)", "verdict"], rows)
    yield RULES.format(family=results["family"], tolerance=100 * TOLERANCE)
    said = {c["verdict"] for a in results["ablations"] for c in a["claims"]}
    said |= {p["verdict"] for a in results["ablations"] for c in a["claims"] for p in c["parts"]}
    yield "The words of the verdicts, by fixed rules:\n\n" + "\n".join(
        f"- **{word}**: {meaning}." for word, meaning in MEANINGS.items() if word in said
    )


def _verdict(claim: Mapping[str, Any]) -> str:
    return "; ".join([f"**{claim['verdict']}**", *words.marks(claim)])
