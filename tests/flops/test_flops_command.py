"""`mmctl flops`, as a person and as a program reads it."""

from __future__ import annotations

import json

import pytest
from typer import Typer
from typer.testing import CliRunner

from mmctl.cli.flops import flops
from mmctl.config import load
from mmctl.errors import UsageError
from mmctl.models import flops as counter

app = Typer()
app.command()(flops)


def run(*words: str):
    result = CliRunner().invoke(app, list(words))
    if isinstance(result.exception, UsageError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_holds_the_published_table_and_the_configuration_in_both_conventions():
    read = json.loads(run("smoke", "model.name=mosaic-v2", "--context", "128", "--context", "999", "--json"))
    large = [row for row in read["published"] if row["size"] == "large"]
    assert len(large) == 8
    assert all(row["matches"] for row in large)
    config = load("smoke", ["model.name=mosaic-v2"])
    for convention in ("published", "executed"):
        for variant, removed in (("whole", False), ("long_term_removed", True)):
            found = read["configuration"][convention][variant]
            assert found["parameters"] == counter.parameters(config.model, 512, convention, removed)
            assert found["flops_per_token"]["999"] == counter.flops_per_token(
                config.model, 512, 999, convention, removed
            )


def test_the_printed_table_names_conventions_and_the_small_rows_inconsistency():
    text = run("smoke", "model.name=transformer")
    for words in (
        "8.8 | 8.84 =",
        "27.4 | 27.42 =",
        "differs",
        "convention published",
        "convention executed",
        "16 layers",
    ):
        assert words in text
    assert "long-term removed" not in text.split("convention published")[1]


@pytest.mark.parametrize("words", [("labb",), ("lab", "model.widht=3"), ("lab", "--context", "0")])
def test_wrong_input_is_one_clear_line(words):
    with pytest.raises(UsageError) as error:
        run(*words)
    assert "\n" not in str(error.value)
