"""Nothing a name, a link or a note in a folder says makes mmctl write, delete or send anything outside `runs/`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from attacks import new_run, small
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.errors import MmctlError, UsageError
from mmctl.runs import RunFolder, contents, files, names, parents
from mmctl.runs.lock import Lock
from mmctl.runs.mirror import sync
from mmctl.sweeps import matrix

NAMES = [
    "../../x",
    "/etc/passwd",
    "a/../../../b",
    "..",
    ".",
    "~root",
    "-rf",
    ".hidden",
    "a\0b",
    "\x1b[2J",
    "line\nbreak",
    "\u202egpj.exe",
    "CON",
    "NUL.txt",
    "sweeps",
    "replaced",
    "mlflow.db",
    "lock",
    "x" * 5000,
    "é" * 300,
    " ",
    "*?[a]",
    "a\\..\\b",
    "%2e%2e%2f",
    "name-12345678",
]


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_any_name_lies_in_the_root_and_is_found(tmp_path: Path, root: Path, name: str) -> None:
    config = small()
    config.name = name
    run = RunFolder.create(root, config, [f"name={name}"])
    assert run.path.parent.parent == root
    assert run.path.parent.name.isprintable()
    assert len(run.path.parent.name) <= 100
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert [found.path for found in RunFolder.all(root)] == [run.path]
    assert RunFolder.open(run.path).config().name == name  # the name itself is kept, as text


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_every_text_becomes_one_visible_folder_name(name: str) -> None:
    safe = names.safe_name(name)
    assert 0 < len(safe) <= names.LONGEST
    assert safe not in (".", "..")
    assert not safe.startswith((".", "-"))
    assert safe.isascii()
    assert safe.isprintable()
    assert not set(safe) & set('/\\:*?"<>| \0')


@pytest.mark.parametrize("stem", ["../x", "a/b", "/x", "..", "", "a\nb", "\x1b[0m"])
def test_an_evaluation_cannot_be_written_elsewhere(root: Path, stem: str) -> None:
    run = new_run(root)
    with pytest.raises(ValueError, match="no name for an evaluation"):
        run.write_evaluation(stem, {})


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "-x", "a\nb", "x" * 61, "\x1b[0m", ""])
def test_an_ablation_with_such_a_name_is_refused(tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"name: {json.dumps(name)}\nquestion: why\n")
    with pytest.raises(UsageError) as caught:
        matrix.load(mine)
    assert str(caught.value).isprintable()


def test_a_run_behind_a_link_out_of_the_root_is_none_of_ours(tmp_path: Path, root: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    other = new_run(elsewhere)
    root.mkdir()
    (root / other.path.parent.name).symlink_to(other.path.parent)
    before = tree(elsewhere)
    assert list(RunFolder.all(root)) == []
    with pytest.raises(MmctlError, match="a link out of"):
        new_run(root)
    assert tree(elsewhere) == before
    inside = tmp_path / "inside"
    run = new_run(inside)
    (inside / f"alias-{run.identity}").symlink_to(run.path.parent)
    assert len(list(RunFolder.all(inside))) == 2  # a link that stays inside hides nothing
    (tmp_path / "by-link").symlink_to(inside)
    assert len(list(RunFolder.all(tmp_path / "by-link"))) == 2  # the root itself may be a link


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "log.txt", "lock", "status.json", "eval/x.json", "checkpoints/step_1"]
)
def test_nothing_is_written_through_a_link_in_a_runs_folder(tmp_path: Path, root: Path, name: str) -> None:
    run = new_run(root)
    target = tmp_path / "precious"
    target.write_text("precious\n")
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(target)
    with pytest.raises(MmctlError, match="symbolic link"), run.lock():
        pass
    assert target.read_text() == "precious\n"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious\n")
    (tmp_path / "lock").symlink_to(target)
    with pytest.raises(MmctlError):
        Lock(tmp_path / "lock").acquire()
    assert target.read_text() == "precious\n"


def test_replacing_a_file_replaces_a_link_and_not_its_target(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious\n")
    (tmp_path / "status.json").symlink_to(target)
    files.write_json(tmp_path / "status.json", {"state": "planned"})
    assert target.read_text() == "precious\n"


@pytest.mark.parametrize("best", [{"step": "../../.."}, {"step": -1}, {"step": None}, ["x"], {"step": 10**30}])
def test_a_note_of_the_best_checkpoint_deletes_nothing_else(root: Path, best: Any) -> None:
    import torch

    run = new_run(root)
    payload = {"tensors": {"model": {"w": torch.ones(2)}}, "state": {"step": 1}}
    run.save_checkpoint(1, payload)
    (run.checkpoints / "best.json").write_text(json.dumps(best))
    before = tree(root)
    run.save_checkpoint(2, payload, keep=2)
    assert before <= tree(root)


def test_what_a_folder_notes_cannot_make_sync_send_other_files(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's folder may come from somebody else: its mlflow.json must not name a private key for sending."""
    secret = tmp_path / "id_rsa"
    secret.write_text("key")
    run = new_run(root)
    (run.path / "link").symlink_to(secret)
    for noted in (
        str(secret),
        "../id_rsa",
        f"{run.label}/link",
        f"{run.label}/../../../id_rsa",
        "/proc/self/environ",
        "",
    ):
        assert contents.file_to_send(root, noted) is None, noted
    assert contents.file_to_send(root, f"{run.label}/config.yaml") == run.path / "config.yaml"
    assert contents.kept_path(root, run.path / "config.yaml") == f"{run.label}/config.yaml"
    with pytest.raises(ValueError, match="id_rsa"):
        contents.kept_path(root, secret)
    with pytest.raises(ValueError, match="not under"):
        contents.kept_path(root, root / ".." / "id_rsa")


@pytest.mark.parametrize(
    "record",
    [
        {"tags": {"a": {"b": 1}}},
        {"artifacts": {"x": 3}},
        {"sent": {"x": "y"}},
        {"parent_run_id": ["x"]},
        {"tags": [], "sent": []},
        [],
        "x",
        None,
    ],
)
def test_hostile_notes_of_the_mirror_are_made_anew(root: Path, record: Any) -> None:
    from mmctl.runs.notes import remember

    run = new_run(root)
    (run.path / "mlflow.json").write_text(json.dumps(record))
    assert remember(run, "parent", {"arm": "a"}) == {"parent_run_id": "parent", "tags": {"arm": "a"}}


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b'{"parents": {"x": 1}}', b'{"parents": {"x": {"state": "no"}}}'])
def test_hostile_notes_of_a_sweep_are_no_parents(root: Path, damage: bytes) -> None:
    folder = root / "sweeps" / "x"
    folder.mkdir(parents=True)
    (folder / "mlflow.json").write_bytes(damage)
    assert list(parents.parents(root)) == []
    assert sync(root).parents == []


def test_a_working_folder_is_never_written_to(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run = new_run(root)
    with run.lock():
        run.set_state("running")
        run.append_metrics(1, {"loss": 1.0})
    assert os.listdir(tmp_path / "here") == []
