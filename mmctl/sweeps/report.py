"""The Markdown report, made from results.json's dictionary alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from mmctl.sweeps import words
from mmctl.sweeps.words import MISSING

MOST_COLUMNS = 6
"""Arms beyond which a table of scores has a row an arm instead of a column."""

RULES = """\
Differences are paired by seed (treatment minus control); intervals are 95% (Student's t over seeds; for a single seed a
paired bootstrap over examples). `reproduced`: the interval, Holm-corrected over this report's claims of a direction, lies on
the published side of 0; `opposite`: on the other. `no effect`: the 95% interval lies within the claim's margin; a claim of no
effect, or of a range, is `reproduced` when the 95% interval lies within its margin or range. `underpowered`: fewer than
3 seeds, or an interval wider than the published effect (or than the whole margin). Else the direction is said, and that it
is not significant. Hyper-parameters were not chosen on any reported number."""


def markdown(results: Mapping[str, Any], figures: Mapping[str, str] | None = None) -> str:
    """The report. figures: {name: path relative to the report}; drawn over the whole sweep, they stand at its end."""
    parts = [*_header(results), *_summary(results)]
    for ablation in results["ablations"]:
        parts += _ablation(ablation, figures or {})
    if figures:
        parts += ["## Figures", *(f"![{_title(name)}]({path})" for name, path in figures.items())]
    parts += _failures(results)
    return "\n\n".join(parts) + "\n"


def _header(results: Mapping[str, Any]) -> Iterator[str]:
    machine, versions = results["machine"], results["versions"]
    seeds = {a["name"]: ", ".join(map(str, a["seeds"])) for a in results["ablations"]}
    said = (
        next(iter(seeds.values()))
        if len(set(seeds.values())) == 1
        else "; ".join(f"{k}: {v}" for k, v in seeds.items())
    )
    states = Counter(run["state"] for run in results["runs"])
    earlier = len(results["finished_before"])
    before = (
        f"when {earlier} of its {len(results['runs'])} runs were finished already"
        if earlier
        else "before the first run"
    )
    yield f"# Ablations of Memory Mosaics: {results['profile']} profile"
    yield "\n".join(
        [
            f"- Sweep: `{results['sweep']}`, preset `{results['preset']}`, seeds {said}",
            f"- Runs: {', '.join(f'{count} {state}' for state, count in states.most_common())}",
            f"- Machine: {machine['processor']}, {machine['cores']} cores, device {machine['device']}, {machine['system']}",
            f"- Date: {results['date']}; claims registered {results['registered']}, {before}",
            "- Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
            f"- Command: `{results['command']}`",
        ]
    )
    for key, arms in results["passed_over"].items():
        yield f"`{key}` does not exist in the models of {', '.join(arms)} and was passed over there."


def _summary(results: Mapping[str, Any]) -> Iterator[str]:
    yield "## Verdicts"
    rows = [
        [f"[{a['name']}](#{a['name']}): {c['statement']}", words.published(c), words.ours(c), _verdict(c)]
        for a in results["ablations"]
        for c in a["claims"]
    ]
    if not rows:
        yield "These ablations make no claims."
        return
    yield words.table(["claim", "published", "ours (difference, 95% interval)", "verdict"], rows)
    yield RULES


def _verdict(claim: Mapping[str, Any]) -> str:
    marks = [f"**{claim['verdict']}**"]
    if claim["unmatched"]:
        marks.append("unmatched comparison")
    if claim["at_chance"]:
        marks.append("both arms at chance: neither learned the task, so this says little")
    if claim["registered"]:
        marks.append(f"claim {claim['registered']}")
    return "; ".join(marks)


def _ablation(ablation: Mapping[str, Any], figures: Mapping[str, str]) -> Iterator[str]:
    yield f"## {ablation['name']}"
    yield ablation["question"]
    yield "### Arms"
    yield _costs(ablation)
    if ablation["excluded"]:
        yield "Left out: " + "; ".join(f"{e['arm']} ({e['reason']})" for e in ablation["excluded"]) + "."
    yield "### Scores"
    yield "Mean ± standard deviation over seeds (n)."
    yield _scores(ablation)
    alpha = list(_alpha(ablation))
    if alpha:
        yield "### Learned bandwidth exponent alpha"
        yield "Published: 0.2 to 0.4 (arXiv 2507.03285). Arms whose alpha is fixed at 0 are left out."
        yield words.table(["arm", "memory", "alpha, mean ± sd over seeds"], alpha)
    yield "### Claims"
    for claim in ablation["claims"]:
        yield _claim(claim)
    if not ablation["claims"]:
        yield "None."
    linked = [
        f"[{_title(name)}]({figures[name]})" if name in figures else f"{_title(name)}: {MISSING}"
        for name in ablation["figures"]
    ]
    if linked:
        yield f"Figures: {', '.join(linked)}."
    yield "### Commands"
    yield _commands(ablation)


def _costs(ablation: Mapping[str, Any]) -> str:
    rows = []
    for arm in ablation["arms"]:
        cost = arm["cost"]
        finished = sum(run["state"] == "finished" for run in arm["runs"].values())
        unfinished = Counter(run["state"] for run in arm["runs"].values() if run["state"] != "finished")
        state = f"{finished}/{len(arm['runs'])} finished" + "".join(f", {n} {s}" for s, n in unfinished.items())
        flag = f"unmatched with {arm['compared_to']}: {', '.join(arm['unmatched'])}" if arm["unmatched"] else ""
        if not flag and arm["compared_to"]:
            flag = f"matched with {arm['compared_to']}"
        seconds = arm["scores"].get("seconds")
        rows.append(
            [
                f"`{arm['name']}`: {arm['label']}",
                words.large(cost["parameters"]),
                words.large(cost["flops_per_token"]["published"]),
                words.large(cost["flops_per_token"]["executed"]),
                words.large(cost["training_tokens"]),
                MISSING if seconds is None else f"{seconds['mean']:.0f} s",
                state,
                flag,
            ]
        )
    context = ablation["arms"][0]["cost"]["context"]
    head = ["arm", "parameters", f"FLOPs/token at {context} (published)", f"FLOPs/token at {context} (executed)"]
    return words.table([*head, "training tokens", "wall time a run", "runs", "compared"], rows)


def _scores(ablation: Mapping[str, Any]) -> str:
    arms = ablation["arms"]
    claimed = [c["metric"] for c in ablation["claims"]]
    measured = list(dict.fromkeys(metric for arm in arms for metric in arm["scores"]))
    shown = words.order(measured)
    shown += [m for m in dict.fromkeys(claimed) if m not in shown]
    if len(arms) > MOST_COLUMNS:
        shown = list(dict.fromkeys(["train_loss", *claimed]))
        rows = [[f"`{a['name']}`", *(words.score(a["scores"].get(m)) for m in shown)] for a in arms]
        return words.table(["arm", *shown], rows)
    rows = [[m, *(_score(arm, m) for arm in arms)] for m in shown]
    return words.table(["metric", *(f"`{a['name']}`" for a in arms)], rows)


def _score(arm: Mapping[str, Any], metric: str) -> str:
    changed = arm["evaluate"]["remove_long_term"] or arm["evaluate"]["delay"] is not None
    of_training = "@" not in metric
    if changed and of_training:
        return "as trained"
    return words.score(arm["scores"].get(metric))


def _alpha(ablation: Mapping[str, Any]) -> Iterator[list[str]]:
    prefix = "diagnostics:bandwidth/alpha/"
    for arm in ablation["arms"]:
        found = {m.removeprefix(prefix): s for m, s in arm["scores"].items() if m.startswith(prefix)}
        for memory in sorted(found):
            # Exactly 0 at every seed is a bandwidth that does not learn alpha, not a measurement.
            if found[memory]["mean"] or found[memory]["sd"]:
                yield [f"`{arm['name']}`", memory, words.score(found[memory])]


def _claim(claim: Mapping[str, Any]) -> str:
    source = claim["published"]
    lines = [
        f"- **{claim['statement']}** `{claim['id']}`",
        f"  - Measured: {words.compared(claim)}; unit: {claim['unit'] or 'none'}.",
        f"  - Published: {source['text']} ({source['metric']}; {source['source']}).",
        f"  - Ours: {words.ours(claim)}; {claim['treatment']} {words.score(claim['treatment_score'])}"
        + (f", {claim['control']} {words.score(claim['control_score'])}" if claim["control"] else "")
        + ".",
        f"  - Verdict: **{claim['verdict']}**: {claim['reason']}.",
    ]
    if claim["corrected_interval"] is not None:
        p = "" if claim["p_holm"] is None else f"; Holm-adjusted p = {claim['p_holm']:.3g}"
        level = f"{100 * claim['corrected_level']:.2f}%"
        lines.append(f"  - Corrected interval ({level}): {words.interval(claim['corrected_interval'])}{p}.")
    if claim["stand_in"]:
        lines.append(f"  - Stand-in: {claim['stand_in']}")
    if claim["unmatched"]:
        lines.append(f"  - Unmatched comparison: {', '.join(claim['unmatched'])}.")
    if claim["registered"]:
        lines.append(f"  - This claim was {claim['registered']}.")
    return "\n".join(lines)


def _commands(ablation: Mapping[str, Any]) -> str:
    lines = [ablation["command"]]
    for arm in ablation["arms"]:
        lines += [f"# {arm['name']}, one seed", arm["train_command"]]
        change = arm["evaluate"]
        options = (" --remove-long-term" if change["remove_long_term"] else "") + (
            f" m={change['delay']}" if change["delay"] is not None else ""
        )
        path = next((run["path"] for run in arm["runs"].values() if run["path"]), None)
        if options and path:
            lines.append(f"mmctl eval {path}{options}")
    return "```sh\n" + "\n".join(lines) + "\n```"


def _failures(results: Mapping[str, Any]) -> Iterator[str]:
    if results["failures"]:
        yield "## Not finished"
        yield words.table(
            ["run", "state", "reason"],
            [[f["label"], f["state"], f["reason"] or "no reason given"] for f in results["failures"]],
        )


def _title(name: str) -> str:
    return name.replace("-", " ")
