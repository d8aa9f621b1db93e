"""The figures of shots and of depth: what is taken from evaluations, what is drawn, what is refused."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmctl.config import load
from mmctl.errors import UsageError
from mmctl.plots import depth, shots
from mmctl.sweeps.results import SCHEMA


def score(value: float, n: int = 10) -> dict[str, Any]:
    return {"value": value, "n": n, "interval": [max(0.0, value - 0.1), min(1.0, value + 0.1)]}


def run(label: str, *evaluations: dict[str, Any]) -> Any:
    made = {str(i): {"changes": {}, "settings": {}, "tasks": {}} | e for i, e in enumerate(evaluations)}
    return SimpleNamespace(
        label=label, path=Path("/runs/x-01234567/seed0"), config=lambda: load("lab", []), evaluations=lambda: made
    )


EPISODES = {
    "settings": {"training_length": 64},
    "tasks": {"icl@1x": {"chance": 0.125}},
    "scores": {
        "icl/accuracy-shots0@1x": score(0.1),
        "icl/accuracy-shots4@1x": score(0.5),
        "icl/accuracy@1x": score(0.4),
    },
}
LONGER = {
    "settings": {"training_length": 64},
    "tasks": {"icl@8x": {"chance": 0.125}},
    "scores": {"icl/accuracy-shots4@8x": score(0.9), "icl/accuracy-shots32@8x": score(0.8)},
}
REMOVED = LONGER | {"changes": {"remove_long_term": True}, "scores": {"icl/accuracy-shots4@8x": score(0.0)}}
CLASSES = {
    "tasks": {"banking77": {"chance": 1 / 77}},
    "scores": {"banking77-anonymous/accuracy-mean@5": score(0.3), "banking77-anonymous/accuracy-best@5": score(0.4)},
}


def test_shots_come_from_the_longest_sequences_and_from_prompts(tmp_path: Path) -> None:
    points = shots.collect([run("a", EPISODES, LONGER, REMOVED, CLASSES), run("b", EPISODES)])
    found = {(p.run, p.task, p.shots): (p.value, p.chance) for p in points}
    assert found == {
        ("a", "icl", 0): (0.1, 0.125),
        ("a", "icl", 4): (0.9, 0.125),
        ("a", "icl", 32): (0.8, 0.125),
        ("a", "banking77-anonymous", 5): (0.3, 1 / 77),
        ("b", "icl", 0): (0.1, 0.125),
        ("b", "icl", 4): (0.5, 0.125),
    }
    drawn = shots.plot(points)
    panels = {axes.get_title(): axes for axes in drawn.axes}
    assert set(panels) == {"icl", "banking77-anonymous"}
    line = next(line for line in panels["icl"].get_lines() if line.get_label() == "a")
    assert list(line.get_ydata()) == pytest.approx([10, 90, 80])
    paths = shots.draw([run("a", EPISODES)], tmp_path)
    assert [row["accuracy"] for row in csv.DictReader(paths["csv"].open())] == ["0.1", "0.5"]


def test_a_sweep_is_drawn_over_its_seeds(tmp_path: Path) -> None:
    def arm(name: str, values: dict[str, float], **changes: Any) -> dict[str, Any]:
        scores = {k: {"mean": v, "interval": [v - 0.1, v + 0.1], "n": 3, "chance": 0.125} for k, v in values.items()}
        evaluate = {"remove_long_term": False, "delay": None, **changes}
        return {"name": name, "label": name, "model": name, "identity": name, "evaluate": evaluate, "scores": scores}

    values = {"icl/accuracy-shots1@1x": 0.5, "icl/accuracy-shots3@1x": 0.6, "icl/accuracy-shots1@8x": 0.7}
    arms = [arm("mosaic", values | {"icl/accuracy-shots9@8x": 0.9}), arm("removed", values, remove_long_term=True)]
    folder = tmp_path / "sweep"
    folder.mkdir()
    results = {"schema": SCHEMA, "runs": [], "ablations": [{"name": "shots", "arms": arms}]}
    (folder / "results.json").write_text(json.dumps(results))
    points = shots.collect_sweep(folder)
    assert [(p.run, p.shots, p.value, p.n, p.seen) for p in points] == [
        ("mosaic", 1, 0.7, 3, 3), ("mosaic", 3, 0.6, 3, 3), ("mosaic", 9, 0.9, 3, 3)
    ]  # fmt: skip
    panel = shots.plot(points, "seeds").axes[0]
    assert [3.0, 3.0] in [list(line.get_xdata()) for line in panel.get_lines()]  # training's most shots, dotted
    rows = list(csv.DictReader(shots.draw_sweep(folder, tmp_path)["csv"].open()))
    assert [row["accuracy"] for row in rows] == ["0.7", "0.6", "0.9"]
    (folder / "results.json").write_text(json.dumps(results | {"ablations": []}))
    with pytest.raises(UsageError, match="no scores by shots"):
        shots.collect_sweep(folder)


DEPTHS = {
    "settings": {"training_length": 64},
    "scores": {f"passkey/accuracy-depth{d}@4x": score(d / 4) for d in range(4)} | {"passkey/accuracy@4x": score(0.3)},
}
RULER = {"scores": {"niah_single_1/accuracy-depth2@1024": score(0.75, 4), "qa/accuracy@1024": score(0.2)}}


def test_depths_are_in_tokens_and_what_was_not_measured_stays_empty(tmp_path: Path) -> None:
    cells = depth.collect([run("a", DEPTHS, RULER)])
    assert {(c.task, c.length, c.depth): c.value for c in cells} == {
        **{("passkey", 256, d): d / 4 for d in range(4)},
        ("niah_single_1", 1024, 2): 0.75,
    }
    drawn = depth.plot(cells)
    panel = next(axes for axes in drawn.axes if axes.get_title() == "passkey")
    assert [t.get_text() for t in panel.texts] == ["0", "25", "50", "75"]
    assert panel.images[0].get_array().mask.flatten().tolist() == [False] * 4 + [True]
    paths = depth.draw([run("a", DEPTHS)], tmp_path, ["passkey"])
    assert len(list(csv.DictReader(paths["csv"].open()))) == 4


def test_of_two_evaluations_the_larger_is_drawn() -> None:
    small = {"scores": {"niah_single_1/accuracy-depth2@1024": score(0.1, 2)}}
    assert [c.value for c in depth.collect([run("a", RULER, small)])] == [0.75]


def test_what_is_missing_is_said_with_what_would_make_it() -> None:
    with pytest.raises(UsageError, match=r"no scores by depth \(suite ruler, task passkey\); first mmctl eval "):
        depth.collect([run("a", EPISODES)])
    with pytest.raises(UsageError, match=r'--task "paskey".*"passkey"'):
        depth.collect([run("a", DEPTHS)], ["paskey"])
    with pytest.raises(UsageError, match="no scores by shots"):
        shots.collect([run("a", DEPTHS)])
    with pytest.raises(UsageError, match=r'--task "icll".*"icl"'):
        shots.collect([run("a", EPISODES)], ["icll"])


@pytest.mark.parametrize("figure", ["shots", "depth"])
def test_what_is_said_to_make_the_scores_makes_them_as_typed(
    figure: str, own_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of a run that was not trained on what the figure shows, wherever its folder lies."""
    from mmctl.cli import main

    def typed(*words: str) -> str:
        """What the command complains about."""
        monkeypatch.setattr("sys.argv", ["mmctl", *words])
        try:
            main()
        except SystemExit as stop:
            assert stop.code
            return capsys.readouterr().err
        return ""

    draw = ("plot", figure, "mosaic-v2", "--runs", str(own_root))
    for usual in (own_root.parent / "elsewhere", own_root):
        monkeypatch.setenv("MMCTL_RUNS", str(usual))
        advice = re.search(r"first mmctl (eval .+)$", typed(*draw).strip())
        assert advice is not None
        words = shlex.split(advice[1])
        few = ("evaluation.lengths=[1,8]", "evaluation.examples=4", "evaluation.minimum_examples=2")
        assert typed(*words, *few) == ""
        assert typed(*draw) == ""
        for made in own_root.glob("mosaic-v2-*/seed0/eval/*"):  # so that the next is refused again
            made.unlink()


@pytest.mark.parametrize(
    ("figure", "task", "words", "why"),
    [
        (shots, "icl", ["data.mixture={text: 1}", "data.vocabulary=256"], "needs data.vocabulary"),
        (depth, "passkey", ["data.length=64", "evaluation.lengths=[1]"], "needs at least"),
    ],
    ids=["shots", "depth"],
)
def test_a_run_that_can_never_have_the_scores_is_told_so(figure: Any, task: str, words: list[str], why: str) -> None:
    one = run("a")
    one.config = lambda: load("smoke", words)
    with pytest.raises(UsageError, match=f"task {task} cannot be measured on it: .*{why}"):
        figure.collect([one])
