"""Published recipes: presets that ablations of the same name start from, each number in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmctl.config import flat, load, presets
from mmctl.data import build_task
from mmctl.errors import UsageError
from mmctl.sweeps import costs, matrix, plan, profiles, units
from mmctl.sweeps.cells import parameters
from mmctl.sweeps.costs import TOLERANCE
from mmctl.sweeps.scores import Number

RECIPES = ("regbench", "recall")


def planned(name: str, *overrides: str) -> plan.Plan:
    scale = profiles.chosen(None, [name])
    return plan.make_plan(matrix.find([name]), scale, overrides, None, [name])


@pytest.mark.parametrize(
    ("names", "found"),
    [([], "smoke"), (["bandwidth", "scale-of-data"], "smoke"), (["recall"], "recall"), (["own/recall.yaml"], "smoke")],
)
def test_an_ablation_starts_from_the_recipe_of_its_name(names: list[str], found: str) -> None:
    assert profiles.chosen(None, names).name == found


def test_two_recipes_in_one_sweep_are_refused_and_so_is_another_scale_for_one() -> None:
    for names in (["recall", "regbench"], ["recall", "bandwidth"]):
        with pytest.raises(UsageError, match="different profiles"):
            profiles.chosen(None, names)
    with pytest.raises(UsageError, match='--profile "smoke": ablation "recall" is about the recipe of its name'):
        profiles.chosen("smoke", ["recall"])
    with pytest.raises(UsageError, match='"smok": no such profile'):
        profiles.chosen("smok", ["recall"])
    assert profiles.chosen("recall", ["recall"]).preset == "recall"
    assert profiles.chosen("standard", ["bandwidth"]).name == "standard"


@pytest.mark.parametrize("name", RECIPES)
def test_matrices_of_recipes_change_the_model_and_nothing_the_preset_says(name: str) -> None:
    made = planned(name)
    assert f"--profile {name}" in made.command()
    recipe = flat(load(name))
    for cell in made.cells.values():
        assert cell.train_command(made.profile, 0).startswith(f"mmctl train {name} ")
        assert {key.partition(".")[0] for key in cell.settings} == {"model"}
        values = flat(cell.config)
        assert {k: v for k, v in values.items() if k.startswith(("data.", "training.", "evaluation."))} == {
            k: values[k] if k == "training.precision" else v
            for k, v in recipe.items()
            if k.startswith(("data.", "training.", "evaluation."))
        }


def test_regbench_is_the_published_recipe() -> None:
    made = planned("regbench")
    v1 = made.cell("regbench", "v1").config
    model = (v1.model.layers, v1.model.width, v1.model.heads, v1.model.persistent_slots, v1.model.dropout)
    assert model == (2, 128, 8, 448, 0.05)
    task = v1.data.tasks.regbench
    assert v1.training.steps * v1.data.batch / task.automata == 200  # epochs
    assert (v1.training.learning_rate, v1.training.weight_decay, v1.training.clip) == (5e-4, 0.1, 1.0)
    assert round(v1.training.warmup / v1.training.steps, 1) == v1.training.final_fraction == 0.1
    assert v1.data.vocabulary == 20
    v2 = made.cell("regbench", "v2").config
    assert abs(parameters(v2) / parameters(v1) - 1) < TOLERANCE
    layers = [made.cell("regbench", f"transformer-{n}").config.model.layers for n in (2, 8)]
    assert layers == [2, 8]


def test_longer_recall_sequences_hold_no_more_pairs() -> None:
    config = load("recall")
    task = build_task("recall", config.data)
    assert max(config.evaluation.lengths) == 16
    assert {task.notes(k * config.data.length)["pairs"] for k in config.evaluation.lengths} == {4}


@pytest.mark.parametrize("name", ["regbench", "recall", "mqar", "induction"])
@pytest.mark.parametrize("model", ["mosaic-v1", "mosaic-v2", "transformer"])
def test_recipes_take_every_model_and_choose_their_checkpoint(name: str, model: str) -> None:
    assert name in presets()
    config = load(name, [f"model.name={model}"])
    (task,) = config.data.tasks_in_mixture()
    assert config.training.select == f"{task}/accuracy"


def test_a_users_own_matrix_of_the_same_name_has_no_recipe(tmp_path: Path) -> None:
    own = tmp_path / "recall.yaml"
    own.write_text(matrix.shipped()["recall"].read_text())
    assert profiles.chosen(None, [str(own)]).name == "smoke"


def test_tokens_of_runs_that_end_at_a_target_are_those_they_took() -> None:
    made = planned("recall")
    cost = costs.cost(made.cell("recall", "v2"), made.matrices[0].arm("v2"))
    assert cost["ends_early"]
    assert costs.tokens_taken({"cost": cost, "scores": {"tokens": {"mean": 819_200}}}) == 819_200
    assert costs.tokens_taken({"cost": cost, "scores": {}}) == cost["training_tokens"] == 3000 * 64 * 64
    whole = costs.cost_of(load("regbench"), matrix.Arm("", ""))
    assert costs.tokens_taken({"cost": whole, "scores": {"tokens": {"mean": 1.0}}}) == whole["training_tokens"]


def test_arms_that_end_at_a_target_are_matched_by_what_they_trained() -> None:
    made = planned("recall")
    own, (one, other) = made.matrices[0], ("v2", "v1")

    def tokens(**by_arm: dict[int, float]) -> list[str]:
        scored = {
            ("recall", name): {seed: {"tokens": Number(value, "result.json")} for seed, value in values.items()}
            for name, values in by_arm.items()
        }
        found = costs.unmatched(made, own, one, other, scored, "recall/accuracy@16x")
        said = [words for words in found if words.startswith("training tokens")]
        asked = costs.unmatched(made, own, one, other, scored, costs.STEPS_TO_TARGET)
        assert asked == [words for words in found if words not in said]
        return said

    assert tokens() == []
    assert tokens(v2={0: 1e6}) == []  # nothing to compare it with: as planned
    assert tokens(v2={0: 1e6, 1: 2e6}, v1={0: 2e6, 1: 4e6}) == ["training tokens -50.0%"]
    assert tokens(v2={0: 1e6, 1: 9e6}, v1={0: 1e6}) == []  # by the seeds that both have
    assert tokens(v2={0: 1.004e6}, v1={0: 1e6}) == []


def test_steps_are_counted_whole() -> None:
    scale = units.scale_of("diagnostics:steps-to-target")
    assert (scale.value(390.4), scale.value(-150, signed=True), scale.size(50)) == ("390", "-150", "50 steps")
    assert units.scale_of("diagnostics:validation-score").unit == ""
