"""`--at`: the same claims at other settings, each a sweep of its own, and the table of their verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_runs import SMALL

from mmctl.errors import UsageError
from mmctl.sweeps import sensitivity_session
from mmctl.sweeps.matrix import find
from mmctl.sweeps.plan import Plan, make_plan
from mmctl.sweeps.profiles import profile
from mmctl.sweeps.reporting import sensitivity
from mmctl.sweeps.reporting.finish import FORMS
from mmctl.sweeps.session import Where
from mmctl.sweeps.todo import Options

AT = ["training.learning_rate=2e-3,8e-3", "model.width=32"]


def composed(further: list[str]) -> Plan:
    return make_plan(find(["key-extractor"]), profile("smoke"), [*SMALL, *further], (0, 1, 2), ["key-extractor"])


def test_every_value_is_a_setting_beside_the_sweep_as_it_is() -> None:
    settings = sensitivity.parse(AT, SMALL)
    assert settings == ["training.learning_rate=2e-3", "training.learning_rate=8e-3", "model.width=32"]
    found = sensitivity.plans(settings, composed)
    assert list(found) == [sensitivity.AS_IS, *settings]
    assert len({plan.name for plan in found.values()}) == 4
    assert {plan.cell("key-extractor", "gated").config.model.width for plan in found.values()} == {64, 32}
    said = sensitivity_session.command(found, AT)
    assert said.endswith("--at training.learning_rate=2e-3,8e-3 --at model.width=32")


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (["model.width"], "--at model.width: expected KEY=VALUE"),
        (["model.width=32,"], "expected KEY=VALUE or"),
        (["training.steps=4"], '"training.steps" is given as an override too'),
        (["model.width=32", "model.width=32"], "--at model.width=32: is given twice"),
        (["training.learning_rate=1"], '"training.learning_rate" is what --tune chooses'),
    ],
)
def test_what_is_no_setting_is_said_in_one_line(at: list[str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        sensitivity.parse(at, SMALL, "training.learning_rate")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_setting_that_changes_nothing_or_is_no_key_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--at model\.width=64: is the same sweep as without it"):
        sensitivity.plans(["model.width=64"], composed)
    with pytest.raises(UsageError, match=r'did you mean "model\.width"'):
        sensitivity.plans(["model.widht=32"], composed)
    with pytest.raises(UsageError, match="choose its arms with --only or --skip"):
        sensitivity.plans(["model.key_extractor=fixed"], composed)


def claim(verdict: str, mean: float) -> dict[str, Any]:
    difference = {
        "n": 3, "mean": mean, "interval": [mean - 0.1, mean + 0.1], "over": "seeds", "error_from": "seeds", "sampling": None
    }  # fmt: skip
    return {
        "id": "c", "statement": "It helps.", "metric": "recall/accuracy@1x", "verdict": verdict, "reason": "r", "parts": [],
        "difference": difference, "control": "b", "p_holm": 0.01, "at_chance": [], "unmatched": [], "treatment": "a",
    }  # fmt: skip


def results(sweep: str, *claims: dict[str, Any]) -> dict[str, Any]:
    return {"sweep": sweep, "ablations": [{"name": "own", "claims": list(claims)}]}


def test_the_table_puts_verdicts_side_by_side(tmp_path: Path) -> None:
    found = sensitivity.table_of(
        {
            "as it is": results("s-1", claim("reproduced", 0.3), {**claim("reproduced", 0.2), "id": "d"}),
            "x=1": results("s-2", claim("opposite", -0.3), {**claim("reproduced", 0.5), "id": "d"}),
        },
        "mmctl ablate own --at x=1",
    )
    assert [(c["id"], c["agree"]) for c in found["claims"]] == [("c", False), ("d", True)]
    for form in FORMS.values():
        text = form(sensitivity.document(found), tmp_path)
        assert "Claims: 2; settings: 2; with the same verdict at every one: 1" in text
        assert "+30.00 [+20.00, +40.00] points" in text
        assert "-30.00" in text
    rows = sensitivity.as_csv(found).splitlines()
    assert rows[2] == "own,c,recall/accuracy@1x,x=1,s-2,-0.3,-0.4,-0.19999999999999998,3,opposite,False"
    # Not run anywhere, or missing at one setting, is no agreement.
    never = sensitivity.table_of({"a": results("s", claim("not run", 0)), "b": results("t", claim("not run", 0))}, "")
    assert not never["claims"][0]["agree"]
    once = sensitivity.table_of({"a": results("s", claim("reproduced", 1)), "b": results("t")}, "")
    assert not once["claims"][0]["agree"]
    assert "missing" in FORMS[".md"](sensitivity.document(once), tmp_path)


class Sweeps:
    """Stands for session.py: writes results instead of running; `ends` maps a sweep's name to its exit code."""

    def __init__(self, ends: dict[str, int]) -> None:
        self.ends, self.ran = ends, 0

    def run(self, plan: Plan, root: Path, where: Where, as_json: bool, options: Options) -> int:
        self.ran += 1
        print("a table of its own")
        folder = root / "sweeps" / plan.name
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(json.dumps(results(plan.name, claim("reproduced", 0.1 * self.ran))))
        return self.ends.get(plan.name, 0)

    def dry_run(self, plan: Plan, root: Path, where: Where, as_json: bool) -> None:
        print(json.dumps({"sweep": plan.name}) if as_json else f"plan of {plan.name}")

    def show_status(self, plan: Plan, root: Path, as_json: bool) -> None:
        self.dry_run(plan, root, Where(), as_json)


def test_a_failed_setting_does_not_stop_the_others_and_a_signal_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = sensitivity.plans(["model.width=32", "model.width=48"], composed)
    second = found["model.width=32"].name
    does = Sweeps({second: 1})
    code = sensitivity_session.run(found, ["model.width=32,48"], does, tmp_path, Where(), True, Options())
    told = json.loads(capsys.readouterr().out)  # nothing else on stdout
    assert (code, does.ran) == (1, 3)
    assert told["settings"] == {setting: plan.name for setting, plan in found.items()}
    folder = sensitivity.folder(found, tmp_path)
    assert {p.name for p in folder.iterdir()} == {f"sensitivity{s}" for s in (".json", ".csv", ".md", ".html")}
    assert json.loads((folder / "sensitivity.json").read_text()) == told

    stopped = Sweeps({second: 143})
    code = sensitivity_session.run(found, ["model.width=32,48"], stopped, tmp_path / "b", Where(), False, Options())
    assert (code, stopped.ran) == (143, 2)
    assert not sensitivity.folder(found, tmp_path / "b").exists()

    sensitivity_session.dry_run(found, does, tmp_path, Where(), True)
    assert list(json.loads(capsys.readouterr().out)) == list(found)
    sensitivity_session.show_status(found, does, tmp_path, False)
    assert f"model.width=48:\nplan of {found['model.width=48'].name}" in capsys.readouterr().out
