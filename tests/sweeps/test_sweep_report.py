"""Results and report from runs with known numbers, checked against scipy and by hand."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import fake_runs
import pytest
from scipy import stats

from mmctl.evaluation.changes import Changes
from mmctl.runs import RunFolder
from mmctl.sweeps import manifest
from mmctl.sweeps.evaluating import missing
from mmctl.sweeps.reporting.finish import finish

NAMES = ["bandwidth", "long-term-removal", "transformer-masks"]


def train(plan: Any, root: Path, leave_out: tuple[str, ...] = ()) -> None:
    for run in plan.runs():
        if run.label in leave_out:
            continue
        fake_runs.execute(run.config, root)
        changes = run.cell.changes(run.seed, plan.seeds)
        if changes:
            fake_runs.evaluate(run.config, root, changes=[c.record() for c in changes])


def write(plan: Any, root: Path) -> tuple[dict[str, Any], Path]:
    folder = manifest.folder(plan, root)
    fixed = manifest.write(plan, root, {"mmctl": "0"})
    return finish(plan, root, folder, fixed, draw=False).results, folder


def claims(results: dict[str, Any]) -> dict[str, Any]:
    return {f"{a['name']}/{c['id']}": c for a in results["ablations"] for c in a["claims"]}


@pytest.fixture
def root(tmp_path: Path, fakes) -> Path:
    return tmp_path / "runs"


def test_verdicts_from_known_numbers(make_plan, root: Path) -> None:
    plan = make_plan(NAMES)
    manifest.write(plan, root, {})
    train(plan, root)
    results, folder = write(plan, root)
    found = claims(results)

    # Adaptive 2.2, constant 2.3 (2.299 at seed 2): differences -.1, -.1, -.099.
    loss = found["bandwidth/training-loss"]
    reference = stats.ttest_1samp([-0.1, -0.1, -0.099], 0.0)
    interval = reference.confidence_interval(0.95)
    assert loss["difference"]["mean"] == pytest.approx(-0.299 / 3)
    assert loss["difference"]["interval"] == pytest.approx([interval.low, interval.high])
    assert loss["difference"]["p"] == pytest.approx(reference.pvalue)
    assert loss["verdict"] == "reproduced"
    assert loss["treatment_score"]["mean"] == pytest.approx(3.0 - 0.81)
    family = [c for c in found.values() if c["expected"] in ("greater", "less")]
    assert loss["p_holm"] <= len(family) * reference.pvalue

    # Layer 0 stands at 0.30, 0.31, 0.32 (the start value 1/3 lies just within its interval), layer 1 at 0.25, 0.26,
    # 0.27.
    alpha = found["bandwidth/alpha-long-term"]
    first, second = alpha["parts"]
    assert first["difference"]["mean"] == pytest.approx(0.31)
    assert first["difference"]["interval"] == pytest.approx(
        list(stats.ttest_1samp([0.30, 0.31, 0.32], 0).confidence_interval(0.95))
    )
    assert first["start"] == second["start"] == pytest.approx(1 / 3)
    assert (first["verdict"], second["verdict"]) == ("not moved", "inside the range")
    assert alpha["verdict"] == "not moved"
    # 0.50 outside, 0.30 inside: the mean over layers, 0.5 in these runs, would have hidden one of them.
    assert found["bandwidth/alpha-short-term"]["verdict"] == "partly outside"

    assert found["long-term-removal/facts"]["difference"]["mean"] == 0.0
    assert found["long-term-removal/facts"]["verdict"] == "reproduced"
    assert found["long-term-removal/recall"]["difference"]["mean"] == pytest.approx(-0.5)
    assert found["long-term-removal/recall"]["verdict"] == "reproduced"
    assert found["transformer-masks/in-context"]["difference"]["mean"] == pytest.approx(0.5)
    assert found["long-term-removal/facts"]["difference"]["interval"] == pytest.approx([-1e-4, 1e-4], rel=0.7)
    assert found["long-term-removal/facts"]["difference"]["error_from"] == "examples"
    assert found["transformer-masks/masks-recall"]["difference"]["mean"] == pytest.approx(0.01)
    assert found["transformer-masks/masks-recall"]["verdict"] == "reproduced"

    report = (folder / "report.md").read_text()
    assert (
        "| [transformer-masks](#transformer-masks): The mosaic learns in context better than the transformer. |"
        in report
    )
    assert "small: transformer 23.0, mosaic 45.5" in report
    assert "(+22.5 points)" in report
    cost = found["transformer-masks/in-context"]["unmatched"]
    assert (
        f"| **reproduced**; unmatched: {', '.join(cost)}; the same at every seed | small: transformer 23.0, mosaic 45.5"
        in report
    )
    assert (
        "+50.00 [+49.98, +50.02] points (n = 3 seeds; interval widened for 4 held-out examples) | < 0.001 |" in report
    )
    assert "| `adaptive` | long-term | 0 | 0.3333 | 0.3100 ± 0.0100 [0.2852, 0.3348] | 3 |" in report
    assert "removed 31.0 ± 1.0 [28.5, 33.5] % (n = 3), kept 81.0 ± 1.0 [78.5, 83.5] % (n = 3)" in report
    assert "the same trained runs as kept, read otherwise" in report
    assert found["long-term-removal/recall"]["unmatched"] == []
    assert "before the first run" in report
    assert plan.command() in report
    assert "mmctl eval mosaic-v2-" in report
    assert json.loads((folder / "results.json").read_text())["sweep"] == plan.name


def test_what_is_missing_is_missing_and_never_zero(make_plan, root: Path) -> None:
    plan = make_plan(["bandwidth"])
    train(plan, root, leave_out=("bandwidth-constant/seed0", "bandwidth-constant/seed1", "bandwidth-constant/seed2"))
    results, folder = write(plan, root)
    found = claims(results)
    assert found["bandwidth/training-loss"]["verdict"] == "not run"
    assert found["bandwidth/training-loss"]["difference"] is None
    assert found["bandwidth/training-loss-matched"]["verdict"] == "reproduced"
    report = (folder / "report.md").read_text()
    assert "Ours: missing; adaptive 2.1900 ± 0.0100 [2.1652, 2.2148] nats (n = 3), constant missing." in report
    assert "0/3 finished, 3 planned" in report
    # held_out_loss is NaN in every result: not a number, so not there.
    assert "held_out_loss" not in report
    rows = list(csv.DictReader(io.StringIO((folder / "numbers.csv").read_text())))
    assert not [r for r in rows if r["arm"] == "constant" and r["kind"] in ("seed", "mean")]
    (claim,) = [r for r in rows if r["kind"] == "claim" and r["source"] == "training-loss"]
    assert (claim["value"], claim["n"], claim["verdict"]) == ("", "0", "not run")


def test_the_csv_has_every_number_by_seed(make_plan, root: Path) -> None:
    plan = make_plan(["long-term-removal"])
    train(plan, root)
    _, folder = write(plan, root)
    rows = list(csv.DictReader(io.StringIO((folder / "numbers.csv").read_text())))
    removed = {
        r["seed"]: float(r["value"])
        for r in rows
        if (r["kind"], r["arm"], r["metric"]) == ("seed", "removed", "recall/accuracy@8x")
    }
    assert removed == pytest.approx({"0": 0.30, "1": 0.31, "2": 0.32})
    sources = {r["source"] for r in rows if r["arm"] == "removed" and r["metric"] == "recall/accuracy@8x"}
    assert sources == {"eval/new-knowledge+remove-long-term.json"}
    # What training gave is the trained run's, not the removed arm's.
    assert not [r for r in rows if r["arm"] == "removed" and r["metric"] == "train_loss"]


def test_the_csv_has_layers_starts_and_the_unit_of_every_number(make_plan, root: Path) -> None:
    plan = make_plan(["bandwidth"])
    train(plan, root)
    _, folder = write(plan, root)
    rows = list(csv.DictReader(io.StringIO((folder / "numbers.csv").read_text())))
    layers = [r for r in rows if r["kind"] == "part" and r["source"] == "alpha-long-term"]
    assert [(r["metric"].rpartition("/")[2], r["verdict"]) for r in layers] == [
        ("layer0", "not moved"), ("layer1", "inside the range")
    ]  # fmt: skip
    assert [float(r["start"]) for r in layers] == pytest.approx([1 / 3, 1 / 3])
    assert {r["unit"] for r in rows if r["metric"].startswith("recall/accuracy")} == {"accuracy (0 to 1)"}


def test_costs_stand_beside_scores_and_unmatched_comparisons_are_flagged(make_plan, root: Path) -> None:
    from mmctl.models import flops

    plan = make_plan(["transformer-masks", "long-term-removal"], seeds=[0])
    results, folder = write(plan, root)
    arms = {a["name"]: a for a in results["ablations"][0]["arms"]}
    config = plan.cell("transformer-masks", "mosaic").config
    cost = arms["mosaic"]["cost"]
    assert cost["parameters"] == flops.parameters(config.model, 512)
    for convention in ("published", "executed"):
        expected = flops.flops_per_token(config.model, 512, 128, convention)
        assert cost["flops_per_token"][convention] == pytest.approx(expected)
    assert cost["training_tokens"] == 2 * 16 * 128
    change = 100 * (cost["parameters"] / arms["transformer"]["cost"]["parameters"] - 1)
    claim = claims(results)["transformer-masks/in-context"]
    assert claim["unmatched"][0] == f"parameters {change:+.1f}%"
    assert not any(text.startswith("parameters") for text in arms["masks-matched"]["unmatched"])
    removed = results["ablations"][1]["arms"][1]
    assert removed["cost"]["parameters"] < cost["parameters"]
    report = (folder / "report.md").read_text()
    assert "FLOPs/token at 128 (published) | FLOPs/token at 128 (executed)" in report
    assert "unmatched with transformer: parameters" in report


def test_one_seed_has_an_interval_over_examples_and_is_underpowered(make_plan, root: Path) -> None:
    plan = make_plan(["long-term-removal"], seeds=[1])
    train(plan, root)
    results, folder = write(plan, root)
    claim = claims(results)["long-term-removal/recall"]
    assert claim["difference"]["over"] == "examples"
    assert claim["difference"]["interval"] == pytest.approx([-0.5, -0.5])
    assert claim["verdict"] == "underpowered"
    assert results["ablations"][0]["arms"][0]["scores"]["recall/accuracy@1x"]["interval"] == pytest.approx([0.76, 0.86])
    assert "points (n = 1 seed, interval over examples)" in (folder / "report.md").read_text()


def test_the_manifest_fixes_the_claims(make_plan, root: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    text = """
name: own
question: q
baseline: {set: {model.name: mosaic-v2}}
arms: [{name: a}, {name: b, set: {model.bandwidth: constant}}]
claims:
  - {id: one, statement: s, metric: train_loss, treatment: a, control: b, expected: less, margin: 0.01,
     published: {source: p, metric: m, value: none}}
"""
    own.write_text(text)
    plan = make_plan([str(own)], seeds=[0])
    results, folder = write(plan, root)
    before = (folder / "manifest.json").read_bytes()
    content = json.loads(before)
    assert content["ablations"][0]["sha256"] == plan.matrices[0].digest
    assert content["ablations"][0]["claims"][0]["margin"] == 0.01
    assert [c["identity"] for c in content["cells"]] == list(plan.cells)
    assert claims(results)["own/one"]["registered"] is None

    own.write_text(
        text.replace("margin: 0.01", "margin: 0.5")
        + "  - {id: two, statement: s, metric: train_loss, treatment: a, control: b, expected: less, margin: 0.01,\n"
        "     published: {source: p, metric: m, value: none}}\n"
    )
    plan = make_plan([str(own)], seeds=[0])
    results, again = write(plan, root)
    assert again == folder
    assert (folder / "manifest.json").read_bytes() == before
    found = claims(results)
    assert found["own/one"]["registered"] == "changed after the first run (margin)"
    assert found["own/two"]["registered"] == "added after the first run"
    report = (folder / "report.md").read_text()
    assert "claim changed after the first run (margin)" in report
    assert "2 of 2 claims are not as they were then" in report
    assert f"SHA-256 `{plan.matrices[0].digest}`, registered as `{content['ablations'][0]['sha256']}`" in report

    own.write_text(text.replace("statement: s", "statement: said otherwise"))
    results, _ = write(make_plan([str(own)], seeds=[0]), root)
    assert claims(results)["own/one"]["registered"] == "reworded after the first run"


def test_rules_of_analysis_are_registered_with_the_claims(make_plan, root: Path) -> None:
    plan = make_plan(["long-term-mask"], seeds=[0])
    _, folder = write(plan, root)
    assert "No claim has changed since. Nor have the rules of analysis." in (folder / "report.md").read_text()
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    content["analysis"]["correction"] = "none"
    path.write_text(json.dumps(content))
    write(plan, root)
    assert "Rules of analysis changed since: correction." in (folder / "report.md").read_text()


def test_runs_finished_before_the_claims_were_fixed_are_said(make_plan, root: Path) -> None:
    plan = make_plan(["long-term-mask"], seeds=[0])
    fake_runs.execute(plan.runs()[0].config, root)
    results, folder = write(plan, root)
    assert results["finished_before"] == [plan.runs()[0].label]
    assert "when 1 of 2 runs were finished already" in (folder / "report.md").read_text()


def test_evaluations_made_with_other_settings_do_not_count(make_plan, root: Path) -> None:
    plan = make_plan(["long-term-mask"], seeds=[0])
    train(plan, root)
    other = make_plan(["long-term-mask"], seeds=[0], overrides=["evaluation.resamples=300"])
    assert list(other.cells) == list(plan.cells)
    run = other.runs()[0]
    folder = RunFolder.locate(root, run.config)
    assert folder is not None
    assert missing(folder, run.config, Changes()) == run.config.evaluation.suites
    results, _ = write(other, root)
    assert claims(results)["long-term-mask/recall-1x"]["verdict"] == "not run"
    results, _ = write(plan, root)
    assert claims(results)["long-term-mask/recall-1x"]["verdict"] != "not run"


def test_many_arms_and_odd_text_make_a_readable_table(make_plan, root: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "name: own\nquestion: Is a|b better?\nbaseline: {set: {model.name: mosaic-v2}}\n"
        "axes: {model.window: [32, 33, 34, 35, 36, 37, 38]}\n"
    )
    plan = make_plan([str(own)], seeds=[0])
    train(plan, root)
    _, folder = write(plan, root)
    report = (folder / "report.md").read_text()
    assert "| arm | train_loss (nats; chance none) |" in report
    assert "| `window=38` | 2.2000 |" in report
    assert "These ablations make no claims." in report
    assert str(own) in report


OWN = """
name: own
question: q
baseline: {set: {model.name: mosaic-v2}}
arms: [{name: a}, {name: b, set: {model.bandwidth: constant}}]
claims:
  - {id: one, statement: s, metric: train_loss, treatment: a, control: b, expected: less, margin: 0.01}
"""


def test_a_hypothesis_without_a_published_value(make_plan, root: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(OWN)
    plan = make_plan([str(own)])
    train(plan, root)
    results, folder = write(plan, root)
    assert claims(results)["own/one"]["verdict"] == "supported"
    report = (folder / "report.md").read_text()
    assert "| no published value | -0.0997" in report
    assert "- Published: no published value." in report
    assert '- **supported**: as "reproduced", for a hypothesis' in report


def test_only_the_words_used_are_explained(make_plan, root: Path) -> None:
    plan = make_plan(["long-term-removal"])
    train(plan, root)
    _, folder = write(plan, root)
    report = (folder / "report.md").read_text()
    explained = {line.split("**")[1] for line in report.splitlines() if line.startswith("- **") and "**: " in line}
    assert explained == {"reproduced"}
    assert "4 claims: 4 reproduced." in report


def test_both_delays_of_every_arm_are_said(make_plan, root: Path) -> None:
    plan = make_plan(["long-term-mask", "long-term-removal", "transformer-masks"], seeds=[0])
    results, folder = write(plan, root)
    found = {f"{a['name']}/{arm['name']}": arm["delay"] for a in results["ablations"] for arm in a["arms"]}
    assert found["long-term-mask/stochastic"] == {"training": [8, 32], "evaluation": 8}
    assert found["long-term-mask/fixed"] == {"training": [8, 8], "evaluation": 8}
    assert found["long-term-removal/removed"] == {"training": [8, 32], "evaluation": None}
    assert found["transformer-masks/transformer"] is None
    report = (folder / "report.md").read_text()
    assert "| 8 to 32, drawn at each step; 8 |" in report
    assert "| 8, fixed; 8 |" in report
    assert "| 8 to 32, drawn at each step; memory removed |" in report


def test_nothing_changed_is_nothing_written(make_plan, root: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(OWN + "figures: [effects, extrapolation]\n")
    plan = make_plan([str(own)])
    train(plan, root)
    folder, fixed = manifest.folder(plan, root), manifest.write(plan, root, {"mmctl": "0"})
    first = finish(plan, root, folder, fixed)
    assert set(first.written) >= {"results.json", "numbers.csv", "report.md", "figure effects", "figure extrapolation"}
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    again = finish(plan, root, folder, fixed)
    assert again.written == []
    assert again.results == first.results
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == before
    # One run less: other numbers, other figures; what depends on nothing else stays.
    (folder / "figures" / "effects.png").unlink()
    # The page holds the figure, whose file says in which minute it was drawn.
    assert finish(plan, root, folder, fixed).written in (["figure effects"], ["figure effects", "report.html"])
    next(root.glob("mosaic-v2-*/seed2/result.json")).unlink()
    changed = finish(plan, root, folder, fixed)
    assert {"results.json", "numbers.csv", "report.md", "figure effects", "figure extrapolation"} <= set(
        changed.written
    )


def test_the_terminals_table_says_its_levels_and_units(make_plan, root: Path) -> None:
    from io import StringIO

    from rich.console import Console

    from mmctl.sweeps.reporting import terminal

    plan = make_plan(NAMES)
    train(plan, root)
    results, _ = write(plan, root)
    screen = Console(file=StringIO(), width=200)
    screen.print(terminal.verdict_table(results))
    text = screen.file.getvalue()
    assert "95% intervals" in text
    family = sum(c["expected"] in ("greater", "less") for c in claims(results).values())
    assert f"Holm-corrected over this report's {family} such claims" in text.replace("\n", " ")
    assert "points" in text
    assert "layer 1 0.2600 [0.2352, 0.2848]" in text


def test_an_arm_at_chance_is_said() -> None:
    from mmctl.sweeps.reporting import words

    claim: dict[str, Any] = {"unmatched": [], "difference": None, "parts": [], "range": None, "start": None}
    claim |= {"registered": None, "caveat": None, "verdict": "reproduced"}
    said = words.marks({**claim, "at_chance": ["transformer"]})
    assert said == ["transformer at chance: it has not learned the task within this budget"]
    assert words.marks({**claim, "at_chance": ["a", "b"]}) == []  # that is a verdict of its own


def test_a_number_without_an_interval_says_so() -> None:
    from mmctl.sweeps.reporting import words
    from mmctl.sweeps.units import scale_of

    one = {"mean": 0.25, "interval": None, "n": 1, "over": "seeds", "error_from": None, "sampling": None}
    assert words.measured(one, scale_of("train_loss"), True) == "+0.2500 nats, no interval (n = 1 seed)"
    assert words.measured(one, scale_of("recall/accuracy@1x"), True) == "+25.00 points, no interval (n = 1 seed)"
    assert words.measured(None, scale_of("train_loss"), True) == "missing"


def test_a_published_effect_is_not_said_twice() -> None:
    from mmctl.sweeps.reporting import words

    def claim(text: str) -> dict[str, Any]:
        return {"published": {"text": text, "effect": 8.0, "unit": "points"}}

    assert words.published(claim("+8 points for gated")) == "+8 points for gated"
    assert words.published(claim("fixed 1, gated 9")) == "fixed 1, gated 9 (+8 points)"
    assert words.published({"published": None}) == "no published value"
