"""The Markdown report, made from results.json's dictionary alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmctl.sweeps import preamble, words
from mmctl.sweeps.comparing import CHANCE_MARGIN
from mmctl.sweeps.units import scale_of
from mmctl.sweeps.words import MISSING

MOST_COLUMNS = 6
"""Arms beyond which a table of scores has a row an arm instead of a column."""


def markdown(results: Mapping[str, Any], figures: Mapping[str, str] | None = None) -> str:
    """The report. figures: {name: path relative to the report}; drawn over the whole sweep, they stand at its end."""
    parts = [*preamble.header(results), *preamble.summary(results)]
    for ablation in results["ablations"]:
        parts += _ablation(ablation, figures or {})
    if figures:
        parts += ["## Figures", *(f"![{_title(name)}]({path})" for name, path in figures.items())]
    parts += _failures(results)
    return "\n\n".join(parts) + "\n"


def _file(ablation: Mapping[str, Any]) -> str:
    """The ablation's file with its hash, beside the registered one."""
    now, then = ablation["sha256"], ablation["sha256_registered"]
    same = "as registered" if now == then else f"registered as `{then}`" if then else "not registered"
    return f"File: `{ablation['file']}`, SHA-256 `{now}`, {same}."


def _ablation(ablation: Mapping[str, Any], figures: Mapping[str, str]) -> Iterator[str]:
    yield f"## {ablation['name']}"
    yield ablation["question"]
    yield _file(ablation)
    yield "### Arms"
    yield _costs(ablation)
    if ablation["excluded"]:
        yield "Left out: " + "; ".join(f"{e['arm']} ({e['reason']})" for e in ablation["excluded"]) + "."
    yield "### Scores"
    yield _scores_note(ablation)
    yield _scores(ablation)
    alpha = list(_alpha(ablation))
    if alpha:
        yield "### Learned bandwidth exponent alpha"
        yield (
            "Published: 0.2 to 0.4 (arXiv 2507.03285). Means over the heads of a layer: mean ± standard deviation over seeds "
            "and 95% interval of the mean. Arms whose alpha is fixed at 0 are left out."
        )
        yield words.table(["arm", "memory", "layer", "before training", "after training", "n"], alpha)
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


def _costs(ablation: Mapping[str, Any]) -> str:
    rows = []
    ranged = any(arm["delay"] for arm in ablation["arms"])
    for arm in ablation["arms"]:
        cost = arm["cost"]
        finished = sum(run["state"] == "finished" for run in arm["runs"].values())
        unfinished = Counter(run["state"] for run in arm["runs"].values() if run["state"] != "finished")
        state = f"{finished}/{len(arm['runs'])} finished" + "".join(f", {n} {s}" for s, n in unfinished.items())
        flag = _matched(arm)
        seconds = arm["scores"].get("seconds")
        rows.append(
            [
                f"`{arm['name']}`: {arm['label']}",
                words.large(cost["parameters"]),
                words.large(cost["flops_per_token"]["published"]),
                words.large(cost["flops_per_token"]["executed"]),
                words.large(cost["training_tokens"]),
                *([_delay(arm["delay"])] if ranged else []),
                MISSING if seconds is None else f"{seconds['mean']:.0f} s",
                state,
                flag,
            ]
        )
    context = ablation["arms"][0]["cost"]["context"]
    head = ["arm", "parameters", f"FLOPs/token at {context} (published)", f"FLOPs/token at {context} (executed)"]
    m = ["m in training; at evaluation (tokens)"] if ranged else []
    return words.table([*head, "training tokens", *m, "wall time a run (mean)", "runs", "compared"], rows)


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


def _scores(ablation: Mapping[str, Any]) -> str:
    arms = ablation["arms"]
    claimed = [c["metric"] for c in ablation["claims"] if not c["metric"].startswith("diagnostics:")]
    measured = list(dict.fromkeys(metric for arm in arms for metric in arm["scores"]))
    shown = words.order(measured)
    shown += [m for m in dict.fromkeys(claimed) if m not in shown]
    if len(arms) > MOST_COLUMNS:
        shown = list(dict.fromkeys(["train_loss", *claimed]))
        rows = [[f"`{a['name']}`", *(_score(a, m) for m in shown)] for a in arms]
        return words.table(["arm", *(f"{m} ({scale_of(m).unit}; chance {_chance(arms, m)})" for m in shown)], rows)
    rows = [[m, scale_of(m).unit, _chance(arms, m), *(_score(arm, m) for arm in arms)] for m in shown]
    return words.table(["metric", "unit", "chance", *(f"`{a['name']}`" for a in arms)], rows)


def _chance(arms: Sequence[Mapping[str, Any]], metric: str) -> str:
    found = {a["scores"][metric]["chance"] for a in arms if metric in a["scores"]} - {None}
    return " to ".join(scale_of(metric).value(c) for c in sorted(found)) or "none"


def _score(arm: Mapping[str, Any], metric: str) -> str:
    changed = arm["evaluate"]["remove_long_term"] or arm["evaluate"]["delay"] is not None
    of_training = "@" not in metric
    if changed and of_training:
        return "as trained"
    found = arm["scores"].get(metric)
    mark = " †" if found and found["at_chance"] else ""
    return words.score(found, scale_of(metric), 1.0 if "/accuracy" in metric else None) + mark


def _alpha(ablation: Mapping[str, Any]) -> Iterator[list[str]]:
    pattern = re.compile(r"diagnostics:bandwidth/alpha/(?P<memory>[^/]+)/layer(?P<layer>\d+)")
    for arm in ablation["arms"]:
        found = [(m, summary) for name, summary in arm["scores"].items() if (m := pattern.fullmatch(name))]
        for match, summary in sorted(found, key=lambda f: (f[0]["memory"], int(f[0]["layer"]))):
            # Exactly 0 at every seed is a bandwidth that does not learn alpha, not a measurement.
            if summary["mean"] or summary["sd"]:
                scale, start = scale_of(match[0]), arm["start"].get(match[0])
                before = MISSING if start is None else scale.value(start)
                after = words.score(summary, scale)
                yield [f"`{arm['name']}`", match["memory"], match["layer"], before, after, str(summary["n"])]


def _claim(claim: Mapping[str, Any]) -> str:
    source, scale = claim["published"], scale_of(claim["metric"])
    most = 1.0 if "/accuracy" in claim["metric"] else None
    said = f"{words.published(claim)} ({source['metric']}; {source['source']})" if source else words.UNPUBLISHED

    def arm(which: str) -> str:
        summary = claim[f"{which}_score"]
        n = "" if summary is None else f" (n = {summary['n']})"
        return f"{claim[which]} {words.score(summary, scale, most)} {scale.unit if summary else ''}".rstrip() + n

    lines = [
        f"- **{claim['statement']}** `{claim['id']}`",
        f"  - Measured: {words.compared(claim)}.",
        f"  - Published: {said}.",
    ]
    if claim["parts"]:
        lines.append("  - Ours:")
        for part in claim["parts"]:
            start = "" if part["start"] is None else f"; before training {scale.value(part['start'])}"
            value = words.measured(part["difference"], scale, False)
            lines.append(f"    - {part['part']}: {value}{start}: {part['verdict']}, {part['reason']}.")
    else:
        start = "" if claim["start"] is None or claim["control"] else f"; before training {scale.value(claim['start'])}"
        arms = "; " + ", ".join(arm(w) for w in ("treatment", "control")) if claim["control"] else start
        lines.append(f"  - Ours: {words.ours(claim)}{arms}.")
    lines.append(f"  - Verdict: **{claim['verdict']}**: {claim['reason']}.")
    if claim["corrected_interval"] is not None:
        p = words.holm_p(claim)
        p = f"; Holm-adjusted p {p if p.startswith('<') else f'= {p}'}" if p else ""
        level = f"{100 * claim['corrected_level']:.2f}%"
        pair = words.interval(claim["corrected_interval"], scale)
        lines.append(f"  - Corrected interval ({level}): {pair} {scale.of_difference}{p}.")
    if claim["stand_in"]:
        lines.append(f"  - Stand-in: {claim['stand_in']}")
    if claim["caveat"]:
        lines.append(f"  - Caveat: {claim['caveat']}")
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
