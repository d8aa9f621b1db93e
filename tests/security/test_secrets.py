"""No secret of the environment, a command line or an address stands in anything that is written, shown or sent."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from attacks import new_run, small

from mmctl.errors import MmctlError
from mmctl.runs import RunFolder, parents, provenance, store
from mmctl.runs.redaction import redact, redact_arguments, redact_urls
from mmctl.sweeps.launchers import job

WORD = "Corr3ct-Horse"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"postgresql+psycopg2://me:{WORD}@host:5432/db", "postgresql+psycopg2://***@host:5432/db"),
        ("postgresql://me:p/w@rd@host:5432/db", "postgresql://***@host:5432/db"),
        ("https://x-access-token:ghp_abc@github.com/a/b.git", "https://***@github.com/a/b.git"),
        ("https://abcdef@github.com/a/b.git", "https://***@github.com/a/b.git"),
        (f"http://host:5000/?password={WORD}&x=1", "http://host:5000/?password=***&x=1"),
        (f"--api-key={WORD} --x=1", "--api-key=*** --x=1"),
        (f"token: '{WORD} and more', x", "token: ***, x"),
        (f'{{"secret": "{WORD}", "a": 1}}', '{"secret": ***, "a": 1}'),
        (f"Authorization: Bearer {WORD}{WORD}", "Authorization: Bearer ***"),
        (f"AWS_SECRET_ACCESS_KEY={WORD}", "AWS_SECRET_ACCESS_KEY=***"),
        (f"access_token={WORD}", "access_token=***"),
        ("ghp_" + "a1" * 18, "***"),
        ("hf_" + "aB" * 17, "***"),
        ("AKIA" + "ABCD" * 4, "***"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:5000/path@x",
        "sqlite:////tmp/a b/runs/mlflow.db",
        "data.tokens=64 training.steps=5",
        "tokens: 1,234 · 12,000 tokens/s",
        "user@host.org",
        "https://host:8080?x=1",
        "recall/accuracy@1x",
        "model.key_extractor=gated",
        "mmctl ablate bandwidth --profile smoke",
    ],
)
def test_what_is_none_stays_readable(text: str) -> None:
    assert redact(text) == text
    assert redact_urls(text) == text


def test_values_of_secret_variables_are_hidden_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-token-value")
    monkeypatch.setenv("MY_PASSWORD", "swordfish")
    monkeypatch.setenv("https_proxy", f"http://proxy-user:{WORD}@proxy:3128")
    monkeypatch.setenv("DB_PASSWORD_FILE", "/run/secrets/db")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    monkeypatch.setenv("PLAIN", "visible-value")
    text = redact(f"a-token-value, swordfish, {WORD}, /run/secrets/db, abc, visible-value")
    assert text == "***, ***, ***, /run/secrets/db, abc, visible-value"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://mlflow:mlflow@host/db")
    assert redact("mlflow-artifacts") == "mlflow-artifacts"  # a password that is a word hides no words


def test_a_command_line_hides_the_word_behind_an_option() -> None:
    words = ["mmctl", "--token", WORD, "train", "--password", WORD, "x", f"--secret={WORD}", "--name", "y"]
    hidden = redact_arguments(words)
    assert hidden == ["mmctl", "--token", "***", "train", "--password", "***", "x", "--secret=***", "--name", "y"]


def contents(folder: Path) -> str:
    return "\n".join(p.read_bytes().decode("utf-8", "replace") for p in folder.rglob("*") if p.is_file())


def test_a_runs_folder_holds_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", WORD)
    monkeypatch.setattr(sys, "argv", ["mmctl", "train", f"--token={WORD}", f"http://u:{WORD}@host"])
    monkeypatch.setattr(provenance, "_git", lambda: None)
    run = RunFolder.create(root, small(), ["training.steps=20", f"x={WORD}"])
    with run.lock():
        run.set_state("running")
        run.log(f"Traceback\n  connect(password='{WORD}') to http://me:{WORD}@host failed\n")
        run.set_state("failed", f"ConnectionError: http://me:{WORD}@host:1/x with {WORD}")
    assert WORD not in contents(root)
    assert "http://***@host:1/x" in run.status["reason"]


def test_uncommitted_changes_are_kept_without_the_secrets_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    diff = f"+password = '{WORD}'\n+token = tokens[0]\n+url = 'https://me:{WORD}@host/x'\n"
    answers = {"ls-files": "x", "rev-parse": "/tmp", "diff": diff}
    monkeypatch.setattr(provenance, "_run", lambda folder, *arguments: answers[arguments[0]])
    provenance._git.cache_clear()
    try:
        found = provenance._git()
    finally:
        provenance._git.cache_clear()
    assert found is not None
    assert WORD not in found["diff"]
    assert "token = tokens[0]" in found["diff"]  # code stays code


def test_a_workers_traceback_is_logged_without_them(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", WORD)
    run = new_run(root)

    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeError(f"the service refused {WORD} at http://me:{WORD}@host")

    monkeypatch.setattr(job, "_target", lambda name: fail)
    from mmctl.config import to_dict

    message = {"root": str(root), "config": to_dict(run.config()), "overrides": [], "command": [], "kind": "train"}
    outcome = job.perform({**message, "arguments": {}}, lambda p: None, {"train": "x:y"})
    assert outcome["state"] == "failed"
    log = capsys.readouterr().err  # which a worker's own descriptors carry to log.txt
    assert "RuntimeError: the service refused *** at http://***@host" in log
    assert WORD not in log.replace("{WORD}", "")
    assert WORD not in contents(root)


@pytest.mark.parametrize(
    "uri",
    [
        f"me:{WORD}@host:5000",
        f"file://me:{WORD}@host/x",
        f"http://me:{WORD}@127.0.0.1:9",
        f"mysql://me:{WORD}@127.0.0.1:9/x",
    ],
)
def test_an_address_with_a_password_is_never_shown(
    root: Path, monkeypatch: pytest.MonkeyPatch, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(store.StoreError) as caught:
        store.connect(root)
    assert WORD not in str(caught.value)
    parents.parent_run(root, "sweep", {"mmctl.command": f"mmctl ablate x=http://me:{WORD}@host"})
    assert WORD not in capsys.readouterr().err
    assert WORD not in contents(root)
    shown = store.Store(uri, SimpleNamespace(), "0").shown  # type: ignore[arg-type]
    assert WORD not in shown or "://" not in uri


def test_an_error_of_a_store_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MmctlError) as caught, store.explained("http://host"):
        raise ConnectionError(f"http://me:{WORD}@host/api: token={WORD}\nsecond line")
    assert WORD not in str(caught.value)
    assert "\n" not in str(caught.value)
