"""evaluate(): known models get known scores; scores depend on nothing but model, settings and suite."""

from __future__ import annotations

import dataclasses
import json
import platform
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Constant, Learner, Lookup, quick_config

from mmctl.config import load
from mmctl.data import build_task
from mmctl.errors import UsageError
from mmctl.evaluation import SUITES, evaluate, file_stem, same_settings, wanted_suites
from mmctl.evaluation.changes import Changes
from mmctl.evaluation.scoring import examples


def values(result: dict) -> dict[str, float]:
    return {name: score["value"] for name, score in result["scores"].items()}


def test_perfect_recall_scores_one_and_says_so_with_honest_bounds() -> None:
    result = evaluate(Lookup(), quick_config(), "new-knowledge")
    assert set(result["scores"]) == {f"recall/{s}@{k}x" for s in ("accuracy", "accuracy-far", "loss") for k in (1, 2)}
    for multiple, n, pairs in ((1, 40, 4), (2, 20, 8)):
        score = result["scores"][f"recall/accuracy@{multiple}x"]
        assert score["value"] == 1.0
        assert score["n"] == n
        assert score["correct"] == score["total"] == [pairs] * n
        assert score["interval"][1] == 1
        assert 0.8 < score["interval"][0] < 1  # not a width of 0
        # The peak of 8 over 511 others at 0: the loss is known.
        expected = np.log(np.exp(8) + 511) - 8
        assert result["scores"][f"recall/loss@{multiple}x"]["value"] == pytest.approx(expected, rel=1e-3)
        assert result["tasks"][f"recall@{multiple}x"] == {"chance": 1 / pairs, "pairs": pairs}


def test_a_learner_gets_every_label_whose_class_shared_a_word_before_and_no_first_one() -> None:
    config = quick_config("data.tasks.icl.words_per_class=3")  # then every example of a class has the same words
    got = values(evaluate(Learner(), config, "in-context"))
    assert got["icl/accuracy-shots0@1x"] == 0
    for shots in (1, 2):
        assert got[f"icl/accuracy-shots{shots}@2x"] == 1
    task = build_task("icl", config.data)
    seen = np.concatenate([b.extras["shots"] for b in examples(task, 128, 0, 20)])
    assert got["icl/accuracy@2x"] == pytest.approx((seen > 0).sum() / (seen >= 0).sum())


def test_a_constant_answer_is_at_chance() -> None:
    config = quick_config("evaluation.examples=1200", "evaluation.lengths=[1]")
    task: Any = build_task("facts", config.data)
    result = evaluate(Constant(int(task.first_object)), config, "persistent")
    low, high = result["scores"]["facts/accuracy@1x"]["interval"]
    # The table is what it is: that object's true share of the 1,500 facts is inside the interval, near 1/64.
    assert low <= (task.table[:, 2] == task.first_object).mean() <= high
    assert result["tasks"]["facts@1x"]["chance"] == 1 / 64
    icl: Any = build_task("icl", config.data)
    blind = evaluate(Constant(int(icl.first_label)), config, "in-context")["scores"]["icl/accuracy@1x"]
    assert blind["interval"][0] <= 1 / 12 <= blind["interval"][1]


def test_text_losses_are_those_of_the_model() -> None:
    config = quick_config()
    result = evaluate(Constant(32), config, "persistent")
    held_out = np.concatenate([b.targets for b in examples(build_task("text", config.data), 64, 0, 40)])
    spaces = (held_out == 32).sum() / (held_out >= 0).sum()
    got = values(result)
    assert got["text/accuracy@1x"] == pytest.approx(spaces)
    assert got["text/loss@1x"] == pytest.approx(np.log(np.exp(8) + 511) - 8 * spaces, rel=1e-5)
    assert got["text/bits-per-byte@1x"] == pytest.approx(got["text/loss@1x"] / np.log(2))
    assert result["corpora"]["text"]["sha256"]
    assert platform.python_version() in result["tasks"]["text@1x"]["corpus"]


@pytest.mark.parametrize("suite", ["persistent", "new-knowledge", "in-context"])
def test_scores_do_not_depend_on_the_batch_size(suite: str) -> None:
    config = quick_config()
    results = []
    for batch_tokens in (1, 200, 10**6):
        model = Lookup()
        settings = dataclasses.replace(config.evaluation, batch_tokens=batch_tokens)
        results.append(evaluate(model, config, suite, settings=settings)["scores"])
        assert all(rows == 1 or rows * length <= batch_tokens for rows, length in model.calls)
    assert results[0] == results[1] == results[2]


def test_a_trained_models_scores_do_not_depend_on_the_batch_size() -> None:
    from mmctl import models

    config = quick_config("model.layers=1", "evaluation.examples=20")
    torch.manual_seed(0)
    model = models.build(config)
    torch.set_num_threads(1)
    one, all_ = (
        evaluate(model, config, "persistent", settings=dataclasses.replace(config.evaluation, batch_tokens=b))["scores"]
        for b in (1, 10**6)
    )
    for name, score in one.items():
        assert score["value"] == pytest.approx(all_[name]["value"], rel=1e-5, abs=1e-9), name


def test_every_model_seed_and_arm_sees_the_same_examples() -> None:
    class Recorder(Constant):
        def __init__(self) -> None:
            super().__init__(0)
            self.seen: list[np.ndarray] = []

        def __call__(self, tokens, **rest):
            self.seen.append(tokens.numpy().copy())
            return super().__call__(tokens, **rest)

    def seen(*overrides: str) -> np.ndarray:
        model = Recorder()
        evaluate(model, quick_config("evaluation.lengths=[1]", *overrides), "in-context")
        return np.concatenate(model.seen)

    reference = seen()
    assert np.array_equal(seen("seed=5", "model.name=transformer", "data.mixture={icl: 1}"), reference)
    assert not np.array_equal(seen("evaluation.seed=1"), reference)
    more = seen("evaluation.examples=70")
    assert np.array_equal(more[:40], reference)  # more examples only add


def test_changes_are_applied_recorded_and_undone() -> None:
    model, config = Lookup(), quick_config()
    removed = evaluate(model, config, "new-knowledge", changes=Changes(remove_long_term=True))
    assert removed["scores"]["recall/accuracy@1x"]["value"] < 0.5
    assert removed["changes"] == {"remove_long_term": True, "delay": None}
    assert model.near is None
    assert evaluate(model, config, "new-knowledge", changes=Changes(delay=7))["changes"] == {
        "remove_long_term": False,
        "delay": 7,
    }
    assert values(evaluate(model, config, "new-knowledge"))["recall/accuracy@1x"] == 1


def test_the_model_is_left_in_the_mode_it_was_in() -> None:
    model = Lookup()
    model.train()
    evaluate(model, quick_config(), "new-knowledge")
    assert model.training


def test_untrained_tasks_have_a_reason_and_no_score_unless_asked_for() -> None:
    config = quick_config("data.mixture={recall: 1, text: 1}")
    result = evaluate(Constant(0), config, "persistent")
    assert "facts" in result["skipped"]
    assert not [name for name in result["scores"] if name.startswith("facts")]
    asked = evaluate(Constant(0), config, "persistent", untrained=True)
    assert asked["untrained"] == ["facts"]
    assert "facts/accuracy@1x" in asked["scores"]
    assert asked["skipped"] == {}


def test_a_length_the_held_out_text_cannot_fill_is_skipped_with_the_reason(tmp_path) -> None:
    path = tmp_path / "small.txt"
    path.write_text("some words of text " * 60)  # 114 bytes held out
    config = quick_config(f"data.text={path}", "data.mixture={text: 1}")
    result = evaluate(Constant(32), config, "persistent")
    assert "text/loss@1x" in result["scores"]
    assert "text/loss@2x" not in result["scores"]
    assert "114 bytes of held-out text, 129 needed" in result["skipped"]["text@2x"]


def test_the_result_is_json_and_remembers_its_settings() -> None:
    config = quick_config()
    result = json.loads(json.dumps(evaluate(Lookup(), config, "in-context"), allow_nan=False))
    assert same_settings(result, config)
    assert not same_settings(None, config)
    for override in ("evaluation.examples=41", "evaluation.seed=2", "evaluation.lengths=[1]"):
        assert not same_settings(result, quick_config(override)), override
    memory_only = quick_config("evaluation.batch_tokens=64")
    assert same_settings(result, memory_only)


def test_examples_shrink_with_length_down_to_the_minimum() -> None:
    settings = quick_config().evaluation
    settings = dataclasses.replace(settings, examples=128, minimum_examples=32)
    assert [settings.examples_at(k) for k in (1, 2, 4, 8)] == [128, 64, 32, 32]
    assert dataclasses.replace(settings, examples=10).examples_at(8) == 10


def test_progress_counts_to_the_end() -> None:
    told: list[tuple[str, int, int]] = []
    evaluate(Constant(0), quick_config(), "persistent", progress=lambda *args: told.append(args))
    assert [what for what, _, _ in told] == ["facts@1x", "facts@2x", "text@1x", "text@2x"]
    assert [done for _, done, _ in told] == [40, 60, 100, 120]
    assert {total for _, _, total in told} == {120}


def test_suites_cover_every_task_once_and_have_their_files() -> None:
    from mmctl.data import TASKS

    assert sorted(task for tasks in SUITES.values() for task in tasks) == sorted(TASKS)
    assert SUITES["persistent"] == ["facts", "text"]
    assert wanted_suites(quick_config("data.mixture={icl: 1}")) == ["in-context"]
    assert file_stem("in-context") == "in-context"
    assert file_stem("in-context", Changes(True, None)) == "in-context+remove-long-term"
    assert file_stem("in-context", Changes(False, 16)) == "in-context+m=16"


def test_wrong_settings_are_one_line_naming_the_nearest() -> None:
    with pytest.raises(UsageError, match='did you mean "in-context"'):
        evaluate(Constant(0), quick_config(), "in-contxt")
    for key, value, told in (
        ("suites", ["persistant"], 'did you mean "persistent"'),
        ("lengths", [1, 1], "each value once"),
        ("lengths", [0], r"evaluation\.lengths=\[0\]"),
        ("seed", -1, r"evaluation\.seed=-1"),
        ("batch_tokens", 0, r"evaluation\.batch_tokens=0"),
        ("resamples", 10**9, r"evaluation\.resamples=1000000000: expected at most 100000"),
    ):
        with pytest.raises(UsageError, match=told):
            load("smoke", layers=[{f"evaluation.{key}": value}])
