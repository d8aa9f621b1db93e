"""`--tune`: the same trials for every arm, the choice by validation loss alone, and the sweep that follows from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_runs import SMALL

from mmctl.errors import MmctlError, UsageError
from mmctl.sweeps import manifest, tuning, tuning_session
from mmctl.sweeps.matrix import Matrix, find, load
from mmctl.sweeps.plan import Plan
from mmctl.sweeps.profiles import profile
from mmctl.sweeps.reporting import finish
from mmctl.sweeps.tuning import Tuning

RATE = "training.learning_rate"
OWN = """
name: own
question: q
baseline: {set: {model.name: mosaic-v2}}
arms:
  - {name: mosaic}
  - {name: removed, evaluate: {remove_long_term: true}}
  - {name: transformer, set: {model.name: transformer}}
claims:
  - {id: c, statement: s, metric: recall/accuracy@1x, treatment: mosaic, control: transformer, expected: greater, margin: 0.02}
"""


@pytest.fixture
def own(tmp_path: Path) -> list[Matrix]:
    (tmp_path / "own.yaml").write_text(OWN)
    return [load(tmp_path / "own.yaml")]


def base(matrices: list[Matrix], *values: str, seeds: tuple[int, ...] = (0,), overrides: list[str] = SMALL) -> Plan:
    asked = Tuning(RATE, values or ("1e-3", "4e-3", "1e-2"), seeds)
    return tuning.base(matrices, profile("smoke"), overrides, (0, 1, 2), [], None, asked)


def trials(plan: Plan) -> Plan:
    assert plan.tuned is not None
    return tuning.trials(plan, plan.tuned.tuning)


def test_every_arm_gets_the_same_trials_and_shared_ones_are_trained_once(own: list[Matrix]) -> None:
    plan = base(own, seeds=(0, 7))
    made = trials(plan)
    rates = {"mosaic-v2": [], "transformer": []}
    for cell in made.cells.values():
        assert cell.seeds == [0, 7]
        assert cell.config.training.steps == 2
        assert cell.config.evaluation.validation
        rates[cell.config.model.name].append(cell.config.training.learning_rate)
    assert rates == {"mosaic-v2": [1e-3, 4e-3, 1e-2], "transformer": [1e-3, 4e-3, 1e-2]}  # removed shares mosaic's
    assert made.name == plan.name
    # The trial with the value that the profile has anyway is the run of a sweep that is not tuned.
    assert plan.arms["own", "mosaic"] in made.cells
    several = base(find(["bandwidth", "long-term-removal"]))
    assert len(trials(several).cells) == 3 * len(several.cells)


def test_the_choice_is_each_arms_own_and_its_trial_is_its_run(
    own: list[Matrix], tmp_path: Path, fakes: Any, inline_sweep: Callable[..., Any]
) -> None:
    root = tmp_path / "runs"
    plan = base(own)
    made = trials(plan)
    assert tuning.choose(plan, made, root) is None
    fixed = manifest.write(tuning_session.registered(plan, made), root, {})
    assert fixed["tuning"] == {
        "key": RATE,
        "values": ["1e-3", "4e-3", "1e-2"],
        "seeds": [0],
        "chosen_by": "lowest mean validation loss of the mixture over these seeds, in nats",
    }
    assert {cell["identity"] for cell in fixed["cells"]} == set(made.cells)
    assert [arm["identity"] for arm in fixed["ablations"][0]["arms"]] == [None, None, None]
    assert fixed["ablations"][0]["seeds"] == [0, 1, 2]
    assert inline_sweep(made)[0].exit_code == 0
    choices = tuning.choose(plan, made, root)
    assert choices is not None
    assert {one["arm"]: (one["chosen"], one["edge"]) for one in choices} == {
        "mosaic": (4e-3, False),
        "transformer": (1e-2, True),
    }
    assert [one["mean"] for one in choices[0]["tried"]] == pytest.approx([0.602, 0.0, 0.398], abs=1e-3)

    after = tuning.chosen(plan, choices)
    assert after.name == plan.name
    assert after.cell("own", "removed").identity == after.cell("own", "mosaic").identity
    assert after.cell("own", "transformer").config.training.learning_rate == 1e-2
    outcome, _ = inline_sweep(after)
    assert (outcome.exit_code, outcome.ran) == (0, 4)  # seed 0 was trained as a trial
    assert inline_sweep(made)[0].ran == 0

    done = finish.finish(after, root, tmp_path / "sweep", manifest.write(after, root, {}), draw=False)
    told = done.results["tuning"]
    assert told["arms"] == json.loads(json.dumps(choices))
    report = (tmp_path / "sweep" / "report.md").read_text()
    assert "| own/`transformer` | 1.0000 | 0.3979 | **0.0000** | 0.01 | at the edge of the grid" in report
    assert "| own/`mosaic` | 0.6021 | **0.0000** | 0.3979 | 0.004 |" in report
    assert done.results["ablations"][0]["claims"][0]["registered"] is None
    assert f"--tune {RATE}=1e-3,4e-3,1e-2 --tune-seeds 0," in done.results["command"]


def test_a_finished_run_of_another_sweep_is_scored_not_trained_again(
    own: list[Matrix], tmp_path: Path, fakes: Any, inline_sweep: Callable[..., Any]
) -> None:
    from mmctl.sweeps.plan import make_plan

    inline_sweep(make_plan(own, profile("smoke"), SMALL))
    made = trials(base(own))
    fixed = manifest.write(tuning_session.registered(base(own), made), tmp_path / "runs", {})
    assert len(fixed["finished_before"]) == 6  # two cells with every seed, not their trials alone
    assert inline_sweep(made)[0].exit_code == 0
    assert sum(call.startswith("validate ") for call in fakes.calls()) == 2


def test_a_diverged_trial_is_not_chosen_and_a_broken_one_leaves_the_choice_open(
    own: list[Matrix], tmp_path: Path, fakes: Any, inline_sweep: Callable[..., Any]
) -> None:
    root, plan = tmp_path / "runs", base(own)
    made = trials(plan)
    best = made.cells[made.arms["own", "mosaic-learning_rate-4e-3"]].name
    other = made.cells[made.arms["own", "transformer-learning_rate-1e-3"]].name
    fakes.actions({f"{best}/seed0": "diverge", f"{other}/seed0": "fail"})
    assert inline_sweep(made)[0].exit_code == 1
    assert tuning.choose(plan, made, root) is None
    fakes.actions({})
    assert inline_sweep(made, retry_failed=False)[0].exit_code == 1
    fakes.actions({f"{best}/seed0": "diverge"})
    inline_sweep(made, retry_failed=True)
    choices = tuning.choose(plan, made, root)
    assert choices is not None
    assert (choices[0]["chosen"], choices[0]["tried"][1]["mean"]) == (1e-2, None)

    everything = {f"{cell.name}/seed0": "diverge" for cell in trials(base(own, "1e-5", "1e-6")).cells.values()}
    fakes.actions(everything)
    plan = base(own, "1e-5", "1e-6")
    inline_sweep(trials(plan))
    with pytest.raises(MmctlError, match="own/mosaic: diverged with every value"):
        tuning.choose(plan, trials(plan), root)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([f"{RATE}=1e-3"], "expected at least two values"),
        ([f"{RATE}"], "expected KEY=VALUE,VALUE"),
        ([f"{RATE}=1e-3,"], "expected KEY=VALUE,VALUE"),
        ([f"{RATE}=1e-3,1e-2", "model.window=1,2"], "one key at a time"),
        (["data.length=64,128"], "expected a key of training or model"),
        (["model.name=mosaic-v2,transformer"], "expected a key of training or model"),
        (["training.steps=10,20"], "the same for every arm"),
    ],
)
def test_what_cannot_be_tuned_is_said_in_one_line(words: list[str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        tuning.parse(words, None, (0, 1))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_are_checked_where_the_arms_are_known(own: list[Matrix]) -> None:
    assert tuning.parse([], None, (3, 1)) is None
    assert tuning.parse([f"{RATE}=1e-3, 1e-2"], None, (3, 1)) == Tuning(RATE, ("1e-3", "1e-2"), (1,))
    with pytest.raises(UsageError, match="is for --tune"):
        tuning.parse([], (1,), (0,))
    with pytest.raises(UsageError, match=r"1e-3 and 0\.001 are the same value"):
        trials(base(own, "1e-3", "0.001"))
    with pytest.raises(UsageError, match=r"leave training\.learning_rate=1e-3 out"):
        base(own, overrides=[*SMALL, f"{RATE}=1e-3"])
    with pytest.raises(UsageError, match=r'"training\.learning_rat"'):
        trials(tuning.base(own, profile("smoke"), SMALL, None, [], None, Tuning(f"{RATE[:-1]}", ("1", "2"), (0,))))
    with pytest.raises(UsageError, match='"bandwidth/adaptive" sets it'):
        tuning.base(
            find(["bandwidth"]), profile("smoke"), SMALL, None, [], None, Tuning("model.bandwidth", ("adaptive", "constant"), (0,))
        )  # fmt: skip


def test_the_name_depends_on_what_is_tried(own: list[Matrix]) -> None:
    names = {base(own).name, base(own, "1e-3", "4e-3").name, base(own, seeds=(1,)).name}
    assert len(names) == 3
