"""Whatever is typed after a command: success or one line, exit 1 or 2, never a traceback and never a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from inprocess import mmctl
from small_run import small

from mmctl.runs import RunFolder

WORD = st.text(st.characters(blacklist_characters="\0"), max_size=20)
KEY = st.sampled_from(
    ["model.bandwidth", "seed", "data.mixture", "evaluation.lengths", "operation.device", "bandwidth", "a"]
)
VALUE = WORD | st.sampled_from(["[", "{", "1e999", "-1", "null", "true", "[1,2", "nan", "${oc.env:HOME}", "seed0"])
TYPED = WORD | st.builds("{}={}".format, KEY, VALUE)
COMMANDS = (
    ("runs", "list"),
    ("runs", "list", "--older-than"),
    ("runs", "list", "--sort"),
    ("runs", "list", "--state"),
    ("runs", "show"),
    ("runs", "compare", "one"),
    ("runs", "clean"),
    ("runs", "export", "one"),
    ("runs", "import"),
    ("data", "inspect", "smoke", "data.mixture.text=0"),
    ("train", "--dry-run", "--plugin"),
    ("train", "smoke", "--dry-run"),
    ("doctor", "smok"),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    RunFolder.create(tmp_path / "runs", small("name=one"))
    return tmp_path


@given(st.sampled_from(COMMANDS), st.lists(TYPED, min_size=1, max_size=3))
@example(("train", "--dry-run", "--plugin"), ["a/\ud800.py"])
@example(("runs", "list"), ["=", "=="])
@example(("runs", "show"), ["~"])
@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_words_end_in_success_or_one_line(root: Path, command: tuple[str, ...], words: list[str]) -> None:
    before = sorted(root.rglob("*"))
    done = mmctl(*command, *words)
    assert done.code in (0, 1, 2)
    if done.code and "Usage:" not in done.out:
        assert done.err.splitlines()[-1].startswith("mmctl: ")
        assert "Traceback" not in done.err
    assert sorted(root.rglob("*")) == before
