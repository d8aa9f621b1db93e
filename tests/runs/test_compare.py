"""`mmctl runs compare`: differences of settings, and of scores paired over seeds, worked out by hand here."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from small_run import small

from mmctl.errors import MmctlError, UsageError
from mmctl.runs import RunFolder, compare
from mmctl.runs.names import Ambiguous

T_2 = 4.302652729911275
"""97.5% point of Student's t with 2 degrees of freedom."""


def evaluation(correct: list[int], total: list[int], seed: int = 0) -> dict:
    value = sum(correct) / sum(total)
    score = {
        "value": value,
        "n": len(total),
        "interval": [value - 0.1, value + 0.1],
        "correct": correct,
        "total": total,
    }
    return {
        "suite": "new-knowledge",
        "changes": {"remove_long_term": False, "delay": None},
        "settings": {"training_length": 64, "seed": seed},
        "tasks": {"recall@1x": {"chance": 0.1}},
        "skipped": {},
        "scores": {"recall/accuracy@1x": score},
    }


def made(root: Path, *overrides: str, correct: list[int], loss: float = 1.0, settings: int = 0) -> RunFolder:
    run = RunFolder.create(root, small(*overrides))
    run.write_evaluation("new-knowledge", evaluation(correct, [10] * len(correct), settings))
    run.write_result({"train_loss": loss, "steps": 20, "tokens": 640, "seconds": 2.0, "parameters": 100})
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    many = 1000  # so many that the examples' own error is small beside the spread over seeds
    for seed, (a, b) in enumerate([(5, 6), (4, 6), (6, 9)]):
        made(tmp_path, "name=a", f"seed={seed}", correct=[a] * many, loss=1.0 + seed)
        made(tmp_path, "name=b", "model.bandwidth=constant", f"seed={seed}", correct=[b] * many, loss=3.0)
    made(tmp_path, "name=c", "model.name=transformer", "seed=7", correct=[1] * many)
    return tmp_path


def test_scores_are_paired_over_the_seeds_both_have(root: Path) -> None:
    found = compare.compare(compare.groups(root, ["a", "b"]))
    assert [(g["run"].split("-")[0], g["seeds"]) for g in found["runs"]] == [("a", [0, 1, 2]), ("b", [0, 1, 2])]
    assert found["differences"] == {"model.bandwidth": ["adaptive", "constant"]}
    row = next(r for r in found["scores"] if r["score"] == "recall/accuracy@1x")
    assert [v["mean"] for v in row["values"]] == pytest.approx([0.5, 0.7])
    difference = row["differences"][1]
    assert row["differences"][0] is None
    assert difference["mean"] == pytest.approx(0.2)  # 0.1, 0.2, 0.3: deviation 0.1
    half = T_2 * 0.1 / math.sqrt(3)
    assert difference["interval"] == pytest.approx([0.2 - half, 0.2 + half])
    assert (difference["n"], difference["over"]) == (3, "seeds")
    loss = next(r for r in found["scores"] if r["score"] == "train_loss")
    assert [v["mean"] for v in loss["values"]] == pytest.approx([2.0, 3.0])
    assert loss["differences"][1]["mean"] == pytest.approx(1.0)
    assert found["runs"][0]["cost"]["parameters"] == 100
    assert found["runs"][0]["cost"]["flops_per_token/executed"] is None


def test_one_shared_seed_is_resampled_over_its_examples(tmp_path: Path) -> None:
    made(tmp_path, "name=a", correct=[5, 5, 5, 5, 5, 5])
    made(tmp_path, "name=b", "model.bandwidth=constant", correct=[7, 7, 7, 7, 7, 7])
    found = compare.compare(compare.groups(tmp_path, ["a/seed0", "b/seed0"]))
    row = next(r for r in found["scores"] if r["score"] == "recall/accuracy@1x")
    assert row["values"][0]["interval"] == pytest.approx([0.4, 0.6])  # its own, over examples
    assert row["differences"][1]["mean"] == pytest.approx(0.2)
    assert row["differences"][1]["interval"] == pytest.approx([0.2, 0.2])  # every example differs by as much
    assert (row["differences"][1]["over"], row["differences"][1]["n"]) == ("examples", 1)


def test_what_does_not_pair_up_has_no_difference(root: Path, tmp_path: Path) -> None:
    found = compare.compare(compare.groups(root, ["a", "c"]))
    row = next(r for r in found["scores"] if r["score"] == "recall/accuracy@1x")
    assert row["values"][1]["mean"] == pytest.approx(0.1)
    assert row["differences"][1] is None
    assert "model.window" in found["differences"]
    assert found["differences"]["model.name"] == ["mosaic-v2", "transformer"]


def test_evaluations_on_other_examples_are_not_compared(tmp_path: Path) -> None:
    made(tmp_path, "name=a", correct=[5, 5])
    made(tmp_path, "name=b", "model.bandwidth=constant", correct=[7, 7], settings=1)
    found = compare.compare(compare.groups(tmp_path, ["a", "b"]))
    assert {r["evaluation"] for r in found["scores"]} == {"result"}


def test_unfinished_runs_are_named_and_left_out(root: Path) -> None:
    stopped = RunFolder.create(root, small("name=a", "seed=3"))
    stopped.set_state("interrupted", "SIGINT")
    group, _ = compare.groups(root, ["a", "b"])
    assert sorted(group.runs) == [0, 1, 2]
    assert group.unfinished == {stopped.label: "interrupted"}


def test_what_cannot_be_compared_is_said(root: Path) -> None:
    RunFolder.create(root, small("name=a", "training.beta1=0.1"))
    with pytest.raises(Ambiguous, match='"a" is ambiguous'):
        compare.groups(root, ["a", "b"])
    with pytest.raises(UsageError, match="at least two runs"):
        compare.groups(root, ["b"])
    planned = RunFolder.create(root, small("name=d", "training.beta1=0.2"))
    other = RunFolder.create(root, small("name=e", "training.beta1=0.3"))
    with pytest.raises(MmctlError, match="none of these runs is finished"):
        compare.groups(root, [planned.label, other.label])


def test_what_tells_candidates_apart(root: Path) -> None:
    RunFolder.create(root, small("name=a", "training.beta1=0.1"))
    with pytest.raises(Ambiguous) as caught:
        RunFolder.find(root, "a")
    told = {
        label.split("/")[1]: what for label, _, what in compare.apart(caught.value.places) if "beta1=0.1" not in what
    }
    assert told == {f"seed{n}": "training.beta1=0.9" for n in range(3)}
