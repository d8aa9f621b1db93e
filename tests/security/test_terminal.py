"""Nothing that stands in a file or a name can steer the terminal it is shown on, or be taken for markup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attacks import new_run, small
from typer.testing import CliRunner

from mmctl.errors import MmctlError, printable, visible
from mmctl.runs import RunFolder
from mmctl.sweeps import matrix

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\r[link=http://x]click[/link]"


def shown(*arguments: str) -> str:
    from mmctl.cli.runs import app

    done = CliRunner().invoke(app, list(arguments))
    assert done.exception is None or isinstance(done.exception, (SystemExit, MmctlError)), done.exception
    return done.output + getattr(done, "stderr", "") + str(done.exception or "")


def harmless(text: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in text)


def evil_run(root: Path) -> RunFolder:
    run = new_run(root)
    run.set_state("failed", EVIL)
    (run.path / "result.json").write_text(json.dumps({"train_loss": EVIL, EVIL: 1.0}))
    provenance = run.provenance()
    (run.path / "provenance.json").write_text(
        json.dumps({**provenance, "versions": {"mmctl": EVIL, "torch": EVIL}, "git": {"commit": EVIL}})
    )
    score = {"value": 0.5, "n": 4, "interval": [0.4, 0.6]}
    evaluation = {
        "suite": EVIL,
        "changes": {"remove_long_term": False, "delay": EVIL},
        "settings": {"training_length": 64},
        "tasks": {f"{EVIL}@1x": {"chance": 0.1}},
        "skipped": {EVIL: EVIL},
        "scores": {f"{EVIL}/accuracy@1x".replace("/link", "link"): score},
    }
    (run.path / "eval" / "new-knowledge.json").write_text(json.dumps(evaluation))
    (run.path / f"file{EVIL.replace('/', '')}").write_text("x")
    (run.path / "config.yaml").write_text(
        (run.path / "config.yaml").read_text() + json.dumps({"note": EVIL})[1:-1] + "\n"
    )
    return run


@pytest.mark.parametrize(
    "command", [["list"], ["show", "mosaic-v2"], ["list", "--json"], ["show", "mosaic-v2", "--json"]]
)
def test_what_a_runs_files_say_is_shown_as_text(root: Path, command: list[str]) -> None:
    evil_run(root)
    text = shown(*command, "--runs", str(root))
    assert harmless(text), [c for c in text if not harmless(c)]
    assert "mosaic-v2" in text
    if "--json" not in command and command[0] == "show":
        assert "[link=http://x]" in text  # shown, not followed


def test_a_folder_whose_name_steers_the_terminal_is_no_run(root: Path) -> None:
    run = new_run(root)
    run.path.parent.rename(root / f"a\x1b[2J-{run.identity}")
    assert list(RunFolder.all(root)) == []
    assert harmless(shown("list", "--runs", str(root)))


def test_what_was_typed_is_kept_in_one_visible_line(root: Path) -> None:
    run = RunFolder.create(root, small(), [f"name={EVIL}\nsecond=line"])
    kept = (run.path / "overrides.txt").read_text()
    assert kept.count("\n") == 1
    assert harmless(kept)


def test_labels_of_an_ablation_hold_no_escapes(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        f"name: mine\nquestion: {json.dumps(EVIL)}\nbaseline: {{set: {{model.name: mosaic-v2}}}}\n"
        f"arms:\n  - {{name: a, label: {json.dumps(EVIL)}}}\n  - {{name: b}}\n"
    )
    found = matrix.load(mine)
    assert harmless(found.question)
    assert harmless(found.arms[0].label)


def test_errors_are_one_visible_line(tmp_path: Path) -> None:
    with pytest.raises(MmctlError) as caught:
        small(f"training.{EVIL}=1")
    assert str(caught.value).isprintable()
    assert printable(EVIL).isprintable()
    assert visible("a\nb\t\x1b") == "a\nb\t\\x1b"
