"""numbers.csv: every number of a sweep, seed by seed, made from results.json's dictionary alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any


def numbers_csv(results: Mapping[str, Any]) -> str:
    """Every number: one row an arm, metric and seed, then one a claim's statistics. What is missing is an empty field."""
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
    ]
    writer = csv.DictWriter(text, names, lineterminator="\n", restval="")
    writer.writeheader()
    for ablation in results["ablations"]:
        for arm in ablation["arms"]:
            base = {"ablation": ablation["name"], "arm": arm["name"], "identity": arm["identity"]}
            for row in _cost_rows(arm):
                writer.writerow({**base, "kind": "cost", **row})
            for metric, summary in arm["scores"].items():
                own = {**base, "metric": metric, "unit": summary["unit"], "source": summary["source"]}
                for seed, entry in summary["seeds"].items():
                    low, high = entry["interval"] or ("", "")
                    n = "" if entry["examples"] is None else entry["examples"]
                    row = {"seed": seed, "value": entry["value"], "low": low, "high": high, "n": n}
                    writer.writerow({**own, "kind": "seed", **row})
                low, high = summary["interval"] or ("", "")
                writer.writerow(
                    {**own, "kind": "mean", "value": summary["mean"], "low": low, "high": high, "n": summary["n"]}
                )
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
            writer.writerow({**row, "source": claim["id"], "verdict": claim["verdict"]})
    return text.getvalue()


def _cost_rows(arm: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    cost = arm["cost"]
    yield {"metric": "parameters", "value": cost["parameters"]}
    for convention, value in cost["flops_per_token"].items():
        yield {"metric": f"flops_per_token ({convention}, at {cost['context']} tokens)", "value": value}
    yield {"metric": "training_tokens", "value": cost["training_tokens"]}
