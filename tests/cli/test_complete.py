"""Shell completion: what is offered, in a real bash, and that it never loads torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_run import small

from mmctl.cli import complete
from mmctl.runs import RunFolder


def offered(find: Any, incomplete: str, *words: str, **params: Any) -> list[str]:
    """What a shell would show: a completion filters by what is typed so far."""
    ctx = SimpleNamespace(params={"arguments": list(words), **params})
    return [item for item in find(ctx, incomplete) if item.startswith(incomplete)]


def test_keys_read_from_the_source_are_those_of_every_models_dataclass() -> None:
    from mmctl.models import MODELS, config_class

    for name in MODELS:
        found = {key for key in complete.keys(name) if key.startswith("model.")}
        assert found == {f"model.{f.name}" for f in fields(config_class(name))}, name
    assert {k for k in complete.keys(None) if k.startswith("model.")} == {
        f"model.{f.name}" for name in MODELS for f in fields(config_class(name))
    }


def test_every_value_offered_is_one_that_loads() -> None:
    from mmctl.config import flat, load

    known = flat(load("smoke"))
    for key, values in complete.keys("mosaic-v2").items():
        if not key.startswith("data.mixture.") and key != "model.name":
            assert key in known, key
        for value in values:
            if key.startswith(("model.", "training.")) and key not in ("model.short_term", "model.long_term"):
                beside = [] if key.partition(".")[2] in ("width", "ffn_width", "heads") else ["model.width=64"]
                if key == "training.select_stop":
                    beside += ["training.select=recall/accuracy", "training.select_target=0.9"]
                load("lab", [f"{key}={value}", *(s for s in beside if not s.startswith(key + "="))])


def test_presets_keys_and_values() -> None:
    assert offered(complete.preset_then_keys, "sm") == ["smoke"]
    assert offered(complete.preset_then_keys, "sm", "lab") == []  # a preset comes first or not at all
    assert offered(complete.preset_then_keys, "model.bandw", "smoke") == [
        f"model.bandwidth={value}" for value in ("adaptive", "constant", "constant-matched")
    ]
    assert offered(complete.preset_then_keys, "model.delay_m") == ["model.delay_min=", "model.delay_max="]
    assert offered(complete.preset_then_keys, "training.prec") == [
        f"training.precision={value}" for value in ("auto", "float32", "bf16")
    ]
    assert offered(complete.preset_then_keys, "model.pos", "model.name=transformer") == [
        "model.position=rope",
        "model.position=none",
    ]
    assert offered(complete.preset_then_keys, "model.pos", "model.name=mosaic-v2") == []
    assert "model.name=transformer" in offered(complete.preset_then_keys, "model.name=tr")
    assert offered(complete.evaluation_keys, "evaluation.ex") == ["evaluation.examples=128"]
    assert offered(complete.ablations_then_keys, "band") == ["bandwidth"]
    assert offered(complete.ablations_then_keys, "band", "bandwidth") == []


def test_where_the_shell_cuts_words_at_the_equals_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered(complete.preset_then_keys, "co", "smoke", "model.bandwidth", "=") == ["constant", "constant-matched"]
    monkeypatch.setenv("COMP_WORDS", "mmctl train model.bandwidth =")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert offered(complete.preset_then_keys, "", "model.bandwidth") == ["adaptive", "constant", "constant-matched"]


def test_runs_and_sweeps(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "r", small())
    (tmp_path / "r" / "sweeps" / "smoke-12345678").mkdir(parents=True)
    (tmp_path / "r" / "sweeps" / "smoke-12345678" / "manifest.json").write_text("{}")
    whole = run.label.partition("/")[0]
    assert offered(complete.run_names, "mos", runs=str(tmp_path / "r")) == [whole, run.label]
    assert offered(complete.sweeps_and_runs, "", runs=str(tmp_path / "r")) == ["smoke-12345678", whole, run.label]
    assert offered(complete.run_names, "", runs="~nobody-of-that-name/x") == []  # and no traceback into a prompt


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_in_bash_without_torch(tmp_path: Path) -> None:
    (tmp_path / "mmctl").write_text(
        f"#!{sys.executable}\nimport atexit, sys\n"
        "atexit.register(lambda: {'torch', 'mlflow', 'pandas'} & set(sys.modules) and open('heavy', 'w'))\n"
        "from mmctl.cli import main\nmain()\n"
    )
    (tmp_path / "mmctl").chmod(0o755)
    script = """
        eval "$(mmctl --show-completion bash)"
        try() { COMP_CWORD=$1; shift; COMP_WORDS=("$@"); _mmctl_completion mmctl; echo "${COMPREPLY[*]}"; }
        try 1 mmctl ev
        try 5 mmctl train smoke model.bandwidth = constant-
        try 2 mmctl plot atten
        try 4 mmctl runs list --state fin
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.split("\n")[:-1] == ["eval", "constant-matched", "attention-distribution", "finished"], (
        done.stderr
    )
    assert done.stderr == ""
    assert not (tmp_path / "heavy").exists()
