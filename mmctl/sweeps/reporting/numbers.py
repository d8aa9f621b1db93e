"""numbers.csv: every number of a sweep, seed by seed, made from results.json's dictionary alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any


def numbers_csv(results: Mapping[str, Any]) -> str:
    """Every number: one row an arm (or what is made across arms), metric and seed, then one a claim's statistics. What is
    missing is an empty field."""
    text = io.StringIO()
    names = [
        "kind",
        "ablation",
        "arm",
        "identity",
        "seed",
        "metric",
        "unit",
        "value",
        "low",
        "high",
        "n",
        "source",
        "verdict",
        "chance",
        "start",
    ]
    writer = csv.DictWriter(text, names, lineterminator="\n", restval="")
    writer.writeheader()
    for ablation in results["ablations"]:
        for arm in ablation["arms"]:
            base = {"ablation": ablation["name"], "arm": arm["name"], "identity": arm["identity"]}
            for row in _cost_rows(arm):
                writer.writerow({**base, "kind": "cost", **row})
            writer.writerows({**base, **row} for row in _score_rows(arm["scores"], arm["start"]))
        for entry in ablation.get("across", []):
            for name, made in entry["arms"].items():
                base = {"ablation": ablation["name"], "arm": name}
                writer.writerows({**base, **row} for row in _score_rows(made["scores"], {}))
        for claim in ablation["claims"]:
            difference = claim["difference"] or {"mean": "", "interval": None, "n": 0}
            low, high = difference["interval"] or ("", "")
            arms = claim["treatment"] + (f" minus {claim['control']}" if claim["control"] else "")
            row = {
                "kind": "claim",
                "ablation": ablation["name"],
                "arm": arms,
                "metric": claim["metric"],
                "unit": claim["unit"],
            }
            row |= {"value": difference["mean"], "low": low, "high": high, "n": difference["n"]}
            writer.writerow(
                {**row, "source": claim["id"], "verdict": claim["verdict"], "start": _or_empty(claim["start"])}
            )
            for part in claim["parts"]:
                difference = part["difference"] or {"mean": "", "interval": None, "n": 0}
                low, high = difference["interval"] or ("", "")
                values = {"value": difference["mean"], "low": low, "high": high, "n": difference["n"]}
                about = {"metric": part["metric"], "source": claim["id"], "verdict": part["verdict"]}
                writer.writerow({**row, **about, **values, "kind": "part", "start": _or_empty(part["start"])})
    return text.getvalue()


def _or_empty(value: Any) -> Any:
    return "" if value is None else value


def _score_rows(scores: Mapping[str, Any], starts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One row a metric and seed, then one its mean."""
    for metric, summary in scores.items():
        own = {"metric": metric, "unit": summary["unit"], "source": summary["source"]}
        own |= {"chance": _or_empty(summary["chance"]), "start": _or_empty(starts.get(metric))}
        for seed, entry in summary["seeds"].items():
            low, high = entry["interval"] or ("", "")
            n = "" if entry["examples"] is None else entry["examples"]
            yield {**own, "kind": "seed", "seed": seed, "value": entry["value"], "low": low, "high": high, "n": n}
        low, high = summary["interval"] or ("", "")
        yield {**own, "kind": "mean", "value": summary["mean"], "low": low, "high": high, "n": summary["n"]}


def _cost_rows(arm: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    cost = arm["cost"]
    yield {"metric": "parameters", "value": cost["parameters"]}
    for convention, value in cost["flops_per_token"].items():
        yield {"metric": f"flops_per_token ({convention}, at {cost['context']} tokens)", "value": value}
    yield {"metric": "training_tokens", "value": cost["training_tokens"]}
