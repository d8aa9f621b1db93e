"""Plans: composition, sharing, names, seeds, and what a user may and may not override."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from mmctl.config import identity, load
from mmctl.errors import UsageError
from mmctl.runs import RunFolder
from mmctl.sweeps import estimates, matrix, profiles
from mmctl.sweeps.cells import parameters


def test_the_five_ablations_share_cells(make_plan) -> None:
    plan = make_plan()
    assert [cell.name for cell in plan.cells.values()] == [
        "mosaic-v2",
        "bandwidth-constant",
        "bandwidth-constant-matched",
        "key-extractor-fixed",
        "long-term-mask-fixed",
        "transformer",
        "transformer-masks",
        "transformer-masks-masks-matched",
    ]
    assert len(plan.runs()) == 8 * 3
    baseline = plan.cell("bandwidth", "adaptive")
    assert {f"{u.ablation}/{u.arm}" for u in baseline.uses} == {
        "bandwidth/adaptive",
        "key-extractor/gated",
        "long-term-mask/stochastic",
        "long-term-removal/kept",
        "long-term-removal/removed",
        "transformer-masks/mosaic",
    }
    assert [r.seed for r in plan.runs()] == [0] * 8 + [1] * 8 + [2] * 8
    assert len({run.key for run in plan.runs()}) == 24


def test_a_run_is_the_one_that_mmctl_train_makes(make_plan) -> None:
    plan = make_plan(overrides=["training.learning_rate=0.001"])
    for cell in plan.cells.values():
        words = shlex.split(cell.train_command(plan.profile, 1))
        assert words[:3] == ["mmctl", "train", "smoke"]
        assert words[-1] == "seed=1"
        config = load("smoke", words[3:])
        config.training.precision = cell.config.training.precision
        assert identity(config) == cell.identity


def test_matched_parameters_are_as_close_as_whole_numbers_allow(make_plan) -> None:
    plan = make_plan(["transformer-masks"])
    wanted = parameters(plan.cell("transformer-masks", "transformer").config)
    config = plan.cell("transformer-masks", "masks-matched").config
    found = abs(parameters(config) - wanted)
    for step in (-1, 1):
        config.model.ffn_width += step
        assert abs(parameters(config) - wanted) >= found
        config.model.ffn_width -= step
    assert found / wanted < 0.005
    # By memory-mosaics.md, section 8: 8 d^2 + 3 d d'' = 4 d^2 + 3 d d'.
    assert config.model.ffn_width == round(192 - 4 * 64 / 3)
    # It follows the transformer through the user's overrides, and a selection that leaves the transformer out.
    narrow = make_plan(["transformer-masks"], overrides=["model.ffn_width=400"], only=["masks-matched"])
    assert narrow.cell("transformer-masks", "masks-matched").config.model.ffn_width == round(400 - 4 * 64 / 3)


def test_the_sweeps_name_depends_on_what_is_run_and_not_on_how(make_plan) -> None:
    plan = make_plan(["bandwidth"])
    same = make_plan(["bandwidth"], overrides=["operation.log_every=3"])
    assert plan.name == same.name
    assert plan.name.startswith("smoke-")
    others = [
        make_plan(["bandwidth"], seeds=[0]),
        make_plan(["key-extractor"]),
        make_plan(["bandwidth"], overrides=["training.clip=2"]),
        make_plan(["bandwidth"], overrides=["evaluation.seed=3"]),
        make_plan(["bandwidth"], only=["constant"]),
    ]
    assert len({p.name for p in [plan, *others]}) == 6


def test_seeds_come_from_the_user_the_ablation_or_the_profile(make_plan, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("name: own\nquestion: q\nbaseline: {}\nseeds: [4, 7]\naxes: {data.batch: [16, 8]}\n")
    assert make_plan(["bandwidth", str(own)]).seeds == {"bandwidth": (0, 1, 2), "own": (4, 7)}
    assert make_plan([str(own)], seeds=[1]).seeds == {"own": (1,)}
    shared = make_plan(["bandwidth", str(own)])
    assert shared.cell("own", "baseline") is shared.cell("bandwidth", "adaptive")
    assert shared.cell("own", "baseline").seeds == [0, 1, 2, 4, 7]


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (0, 1, 2)), ("0,2", (0, 2)), ("7,", (7,)), (" 5, 1 ", (1, 5)), (None, None)]
)
def test_seeds_as_typed(text: str | None, seeds: tuple[int, ...] | None) -> None:
    assert profiles.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "x", "1,1", "-1", "1.5", ",", "99999999999"])
def test_wrong_seeds(text: str) -> None:
    with pytest.raises(UsageError, match="--seeds"):
        profiles.parse_seeds(text)


def test_profiles_scale_with_their_preset() -> None:
    assert {name: (p.preset, len(p.seeds)) for name, p in profiles.PROFILES.items()} == {
        "smoke": ("smoke", 3),
        "standard": ("lab", 5),
        "full": ("micro", 5),
        "paper-small": ("paper-small", 1),
        "paper-large": ("paper-large", 1),
        "regbench": ("regbench", 3),
        "recall": ("recall", 3),
        "intents": ("intents", 3),
    }
    with pytest.raises(UsageError, match='"smok": no such profile; did you mean "smoke"'):
        profiles.profile("smok")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["model.bandwidth=constant"], '"model.bandwidth" is what ablation "bandwidth" varies'),
        (["model.name=transformer"], '"model.name" is what ablation "transformer-masks" varies'),
        (["seed=3"], "use --seeds"),
        (["name=x"], "cells name themselves"),
        (["training.stesp=3"], "training.stesp"),
        (["training.learning_rate=many"], "training.learning_rate=many"),
        (["model.widnow=3"], "model.widnow"),
        (["model.window=4"], "model.delay_max=32: expected at most model.window=4"),
        (["training.clip=1", "training.clip=2"], '"training.clip" is given twice'),
        (["training.clip"], "expected key=value"),
    ],
)
def test_wrong_overrides_are_one_line(make_plan, overrides: list[str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(overrides=overrides)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_of_one_model_is_passed_over_for_the_others_and_listed(make_plan) -> None:
    plan = make_plan(["transformer-masks"], overrides=["model.delay_min=4"])
    assert plan.cell("transformer-masks", "mosaic").config.model.delay_min == 4
    assert plan.cell("transformer-masks", "masks").config.model.delay_min == 4
    assert plan.passed_over == {"model.delay_min": ["transformer-masks/transformer"]}
    assert "model.delay_min=4" not in plan.cell("transformer-masks", "transformer").overrides
    with pytest.raises(UsageError, match="rope_base"):
        make_plan(["bandwidth"], overrides=["model.rope_base=100"])


def test_a_baseline_may_be_overridden(make_plan) -> None:
    plan = make_plan(["long-term-mask"], overrides=["model.name=transformer-masks"])
    assert {c.config.model.name for c in plan.cells.values()} == {"transformer-masks"}
    assert len(plan.cells) == 2


def matrix_of(tmp_path: Path, arms: str) -> str:
    path = tmp_path / "own.yaml"
    path.write_text(f"name: own\nquestion: q\nbaseline: {{set: {{model.name: mosaic-v2}}}}\narms:\n{arms}")
    return str(path)


@pytest.mark.parametrize(
    ("arms", "says"),
    [
        (
            "  - {name: a}\n  - {name: b, set: {model.bandwith: constant}}\n",
            'own/b: "model.bandwith": no such key of model "mosaic-v2"; did you mean "model.bandwidth"',
        ),
        ("  - {name: a}\n  - {name: b, set: {model.bandwidth: wide}}\n", "own/b: model.bandwidth="),
        (
            "  - {name: a}\n  - {name: b, set: {model.name: mosaic-v3}}\n",
            'own/b: model.name="mosaic-v3": no such model',
        ),
        (
            "  - {name: a}\n  - {name: b, set: {model.name: transformer}, evaluate: {remove_long_term: true}}\n",
            'own/b: remove-long-term: model "transformer" has no long-term memory',
        ),
        (
            "  - {name: a}\n  - {name: b, set: {model.long_term: false}, evaluate: {delay: 8}}\n",
            "own/b: m=8: model",
        ),
        (
            "  - {name: a}\n  - {name: b, match: {parameters_of: a, key: model.window}}\n",
            "own/b: model.window does not change the number of parameters",
        ),
        (
            "  - {name: a}\n  - {name: b, match: {parameters_of: a, key: model.fn_width}}\n",
            'own/b: match.key "model.fn_width": no size of the model; did you mean "model.ffn_width"',
        ),
    ],
)
def test_every_cell_is_validated_before_anything_runs(make_plan, tmp_path: Path, arms: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan([matrix_of(tmp_path, arms)])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_commands_of_a_plan_make_it_again(make_plan) -> None:
    plan = make_plan(["bandwidth", "key-extractor"], seeds=[3])
    words = shlex.split(plan.command())
    assert words[:6] == ["mmctl", "ablate", "bandwidth", "key-extractor", "--profile", "smoke"]
    assert words[6:8] == ["--seeds", "3,"]
    assert words[8:] == plan.overrides
    again = make_plan(words[2:4], profiles.parse_seeds(words[7]))
    assert again.name == plan.name
    assert plan.command("bandwidth").startswith("mmctl ablate bandwidth --profile smoke --seeds 3,")


def test_an_estimate_uses_the_speed_of_finished_runs(make_plan, tmp_path: Path, fakes) -> None:
    import fake_runs

    plan = make_plan(["bandwidth"], seeds=[0, 1])
    rows, totals = estimates.table(plan, tmp_path / "runs", 2)
    assert {row["state"] for row in rows} == {"planned"}
    assert (totals["missing"], totals["basis"]) == (6, "a guess: nothing has run here yet")
    assert not (tmp_path / "runs").exists()
    first = plan.runs()[0]
    fake_runs.execute(first.config, tmp_path / "runs")
    rows, totals = estimates.table(plan, tmp_path / "runs", 2)
    assert rows[0]["state"] == "finished"
    assert (totals["missing"], totals["basis"]) == (5, "speed of 1 finished run")
    # The finished run took 12.5 s by its result; the other seed of its cell is the same work plus its evaluation.
    same = next(r for r in rows if r["identity"] == first.cell.identity and r["seed"] == 1)
    assert (rows[0]["seconds"], rows[0]["seconds_left"], rows[0]["bytes_left"]) == (12.5, 0.0, 0)
    flops = estimates._cost(first.config)
    scoring = 12.5 * flops["evaluation_flops"] / flops["training_flops"]
    assert same["seconds"] == pytest.approx(12.5 + scoring)
    assert totals["seconds"] == pytest.approx(sum(r["seconds"] for r in rows if r["missing"]) / 2)


def test_a_plan_of_nothing_but_finished_runs_is_no_guess_and_shows_what_they_took(
    make_plan, tmp_path: Path, fakes
) -> None:
    """Known gap: their time was that of an evaluation, "(a guess: nothing has run here yet)" though much had."""
    import fake_runs

    plan = make_plan(["long-term-mask"], seeds=[0])
    for run in plan.runs():
        fake_runs.execute(run.config, tmp_path / "runs")
    rows, totals = estimates.table(plan, tmp_path / "runs", 2)
    assert [row["seconds"] for row in rows] == [12.5, 12.5]
    assert (totals["missing"], totals["seconds"], totals["bytes"]) == (0, 0.0, 0)
    assert totals["basis"] == "speed of 2 finished runs"
    # Another sweep, of which nothing has run: what has run here tells its speed.
    result = RunFolder.locate(tmp_path / "runs", plan.runs()[0].config).path / "result.json"
    result.write_text(json.dumps(json.loads(result.read_text()) | {"flops_per_token/executed": 1e6}))
    other, totals = estimates.table(make_plan(["key-extractor"], seeds=[5]), tmp_path / "runs", 1)
    assert totals["basis"] == "speed of 1 finished run of other sweeps"
    flops = estimates._cost(make_plan(["key-extractor"], seeds=[5]).runs()[0].config)
    speed = 3e6 * 1000 / 12.5
    assert other[0]["seconds"] == pytest.approx((flops["training_flops"] + flops["evaluation_flops"]) / speed)


def test_shipped_matrices_compose_at_every_profile() -> None:
    from mmctl.sweeps.plan import make_plan

    for scale in profiles.PROFILES.values():
        if scale.name == "intents":  # needs the user's files: tests/data/test_intents.py
            continue
        plan = make_plan(matrix.find([]), scale, ["operation.mlflow=false"])
        assert len(plan.cells) == 8, scale.name


@pytest.mark.parametrize("text", ["", ",", "0", "-1", "1.5", "x", "1,1", "²", "1,²", "٣", "1,,2", "99999999999"])
def test_seeds_that_are_none_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="--seeds") as error:
        profiles.parse_seeds(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("selector", ["", ",", "constant,", ",constant", " "])
def test_an_empty_selector_does_not_select_everything(selector: str) -> None:
    from mmctl.sweeps.selection import select

    with pytest.raises(UsageError, match="--only"):
        select(matrix.find(["bandwidth"]), [selector], [])
    with pytest.raises(UsageError, match="--skip"):
        select(matrix.find(["bandwidth"]), [], [selector])
