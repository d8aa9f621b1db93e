"""Tables show the numbers, the intervals, and what is missing."""

from __future__ import annotations

import io

from fakes import Constant, Learner, quick_config
from rich.console import Console

from mmctl.evaluation import evaluate
from mmctl.evaluation.report import cell, print_scores, rows, title


def shown(result: dict, details: bool = False) -> str:
    out = io.StringIO()
    print_scores(result, details=details, console=Console(file=out, width=160))
    return out.getvalue()


def test_every_value_is_in_the_table_with_its_interval() -> None:
    result = evaluate(Learner(), quick_config(), "in-context")
    text = shown(result, details=True)
    for score in result["scores"].values():
        assert cell(score) in text
    assert "1x (64)" in text
    assert "2x (128)" in text
    assert "0.125" in text  # chance
    short = shown(result)
    assert "icl/accuracy-last-quarter" in short
    assert "shots" not in short


def test_a_score_missing_at_a_length_is_a_dash_never_a_zero() -> None:
    result = evaluate(Learner(), quick_config(), "in-context")
    del result["scores"]["icl/accuracy@2x"]
    line = next(line for line in shown(result).splitlines() if "icl/accuracy " in line)
    assert " - " in line
    assert cell(None) == "-"


def test_text_is_shown_by_its_loss_and_other_tasks_by_accuracy() -> None:
    result = evaluate(Constant(32), quick_config(), "persistent")
    names = [name for name, _ in rows(result, details=False)[1]]
    assert names == ["facts/accuracy", "text/accuracy", "text/loss", "text/bits-per-byte"]


def test_what_was_left_out_is_said_on_stderr(capsys) -> None:
    result = evaluate(Constant(32), quick_config("data.mixture={recall: 1}"), "in-context")
    assert shown(result) == ""
    assert "icl not measured: not in the mixture" in capsys.readouterr().err


def test_titles_say_what_was_changed() -> None:
    changes = {"remove_long_term": True, "delay": 16}
    assert title({"suite": "persistent", "changes": changes}) == "persistent, long-term memory removed, m = 16"
