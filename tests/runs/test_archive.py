"""Archives: what is exported comes back bit for bit, nothing is ever overwritten, and a hostile archive does no
harm."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_run import scores, small

from mmctl.errors import MmctlError, UsageError
from mmctl.runs import RunFolder, archive, importing, unpacking

RESULT = {"train_loss": 0.5, "steps": 20, "tokens": 640, "seconds": 1.0, "device": "cpu", "versions": {"torch": "2"}}


def finished(root: Path, *overrides: str, **result: Any) -> RunFolder:
    from mmctl.config import identity

    config = small(*overrides)
    run = RunFolder.create(root, config, list(overrides))
    with run.lock():
        run.set_state("running")
        run.append_metrics(20, {"loss": 0.5})
        for step in (5, 10, 20):
            run.save_checkpoint(step, {"tensors": {}, "state": {}}, keep=3, best=step == 5)
        run.write_evaluation("new-knowledge", scores({"recall/accuracy@1x": 0.75}))
        run.write_result({**RESULT, "identity": identity(config), "seed": config.seed, **result})
        run.set_state("finished")
    return run


@pytest.fixture
def here(tmp_path: Path) -> Path:
    root = tmp_path / "here"
    finished(root)
    finished(root, "seed=1", "name=one")
    RunFolder.create(root, small("seed=2"))
    return root


def exported(root: Path, name: str = "a.tar.gz", **options: Any) -> Path:
    path = root.parent / name
    archive.export(path, RunFolder.all(root), **options)
    return path


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_runs_come_back_bit_for_bit_and_are_found_as_finished(here: Path, tmp_path: Path) -> None:
    done = archive.export(tmp_path / "a.tar.gz", RunFolder.all(here))
    assert sorted(label.split("-")[0] for label in done.runs) == ["mosaic", "one"]
    assert [r for r in done.left_out.values()] == ["is planned"]
    there = tmp_path / "there"
    merged = importing.merge(tmp_path / "a.tar.gz", there)
    assert merged.runs == done.runs
    before = {k: v for k, v in content(here).items() if "seed2" not in k and ".create.lock" not in k}
    left = {k for k in before if k.endswith("/lock") or "/step_10/" in k}  # neither the last nor the best
    assert {k: v for k, v in content(there).items() if ".create.lock" not in k} == {
        k: v for k, v in before.items() if k not in left
    }
    run = RunFolder.locate(there, small("seed=1"))
    assert run is not None
    assert run.finished
    assert run.checkpoint_steps() == [5, 20]
    assert run.load_checkpoint()["step"] == 20
    again = importing.merge(tmp_path / "a.tar.gz", there)
    assert (again.runs, sorted(again.already)) == ([], sorted(done.runs))


def test_a_sweep_is_its_runs_its_manifest_and_its_figures(here: Path, tmp_path: Path) -> None:
    run = next(RunFolder.all(here))
    sweep = here / "sweeps" / "smoke-12345678"
    (sweep / "figures").mkdir(parents=True)
    (sweep / "workers").mkdir()
    cells = [{"identity": run.identity, "seeds": [0, 2, 7]}]
    (sweep / "manifest.json").write_text(json.dumps({"schema": 1, "cells": cells}))
    (sweep / "figures" / "loss.png").write_bytes(b"png")
    (sweep / "workers" / "worker-0.log").write_text("of this machine")
    runs, sweeps = archive.chosen(here, ["smoke-12345678"])
    assert [r.seed for r in runs] == [0, 2]
    archive.export(tmp_path / "s.tgz", runs, sweeps)
    there = tmp_path / "there"
    done = importing.merge(tmp_path / "s.tgz", there)
    assert (len(done.runs), done.sweeps) == (1, ["smoke-12345678"])
    assert sorted(content(there / "sweeps")) == ["smoke-12345678/figures/loss.png", "smoke-12345678/manifest.json"]
    (there / "sweeps" / "smoke-12345678" / "manifest.json").write_text("mine")
    assert importing.merge(tmp_path / "s.tgz", there).notes == [
        "sweep smoke-12345678 is here already and was left as it is"
    ]
    assert (there / "sweeps" / "smoke-12345678" / "manifest.json").read_text() == "mine"
    with pytest.raises(UsageError, match=r'did you mean "smoke-12345678", a sweep\?'):
        archive.chosen(here, ["smoke-12345687"])


def test_checkpoints_can_stay_behind_on_either_side(here: Path, tmp_path: Path) -> None:
    small_one = exported(here, "b.tar.gz", with_checkpoints=False)
    assert small_one.stat().st_size < exported(here).stat().st_size
    importing.merge(small_one, tmp_path / "b")
    importing.merge(tmp_path / "a.tar.gz", tmp_path / "c", with_checkpoints=False)
    for root in (tmp_path / "b", tmp_path / "c"):
        assert [(run.finished, run.checkpoint_steps()) for run in RunFolder.all(root)] == [(True, [])] * 2


def test_another_result_is_reported_and_nothing_changes(here: Path, tmp_path: Path) -> None:
    path = exported(here)
    there = tmp_path / "there"
    same = finished(there, "name=mine", seconds=9.0, device="cuda", versions={"torch": "3"})
    importing.merge(path, there)
    assert RunFolder.locate(there, small()).path == same.path  # type: ignore[union-attr]
    for other, told in (({"train_loss": 0.25}, "train_loss is 0.5 in the archive and 0.25 here"),):
        fourth = tmp_path / "fourth"
        mine = finished(fourth, "name=mine", **other)
        before = content(fourth)
        done = importing.merge(path, fourth)
        assert list(done.conflicts.values()) == [f"{told} ({mine.label})"]
        assert done.runs == []
        assert content(fourth) == before
    fifth = tmp_path / "fifth"
    mine = finished(fifth)
    mine.write_evaluation("new-knowledge", scores({"recall/accuracy@1x": 0.5}))
    done = importing.merge(path, fifth)
    assert "eval/new-knowledge.json has other scores" in next(iter(done.conflicts.values()))
    assert len(list(RunFolder.all(fifth))) == 1


def test_an_unfinished_run_is_set_aside_and_a_running_one_is_in_the_way(here: Path, tmp_path: Path) -> None:
    path = exported(here)
    there = tmp_path / "there"
    begun = RunFolder.create(there, small("name=begun"))
    begun.append_metrics(3, {"loss": 2.0})
    begun.set_state("failed", "no luck")
    with begun.lock():
        begun.set_state("running")
        done = importing.merge(path, there)
        assert list(done.conflicts.values()) == [f"{begun.label} is running here"]
        begun.set_state("failed", "no luck")
    done = importing.merge(path, there)
    assert list(done.set_aside) == [begun.label]
    assert (Path(done.set_aside[begun.label]) / "metrics.jsonl").read_text()
    assert len(done.runs) == 2
    assert RunFolder.locate(there, small()).finished  # type: ignore[union-attr]


def test_a_kill_between_two_runs_leaves_whole_runs_and_the_next_import_goes_on(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, there = exported(here), tmp_path / "there"
    real, seen = os.rename, []

    def rename(source: Any, target: Any) -> None:
        if "seed" in str(target):
            seen.append(target)
            if len(seen) == 2:
                raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        importing.merge(path, there)
    assert [run.finished for run in RunFolder.all(there)] == [True]
    assert not list(there.glob(".*.tmp"))
    monkeypatch.undo()
    done = importing.merge(path, there)
    assert (len(done.runs), len(done.already)) == (1, 1)


def test_nothing_is_imported_through_a_link_that_leads_out(here: Path, tmp_path: Path) -> None:
    path, there, outside = exported(here), tmp_path / "there", tmp_path / "outside"
    there.mkdir()
    outside.mkdir()
    (there / next(RunFolder.all(here)).path.parent.name).symlink_to(outside)
    with pytest.raises(MmctlError, match="leads out of"):
        importing.merge(path, there)
    assert list(outside.iterdir()) == []


def test_only_a_new_file_of_the_right_name_is_written(here: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken.tar.gz"
    taken.write_text("mine")
    with pytest.raises(UsageError, match="exists already; nothing is overwritten"):
        archive.export(taken, RunFolder.all(here))
    with pytest.raises(UsageError, match=r"expected a name ending in \.tar\.gz or \.tgz"):
        archive.export(tmp_path / "a.zip", RunFolder.all(here))
    with pytest.raises(MmctlError, match="none of these runs is finished"):
        archive.export(tmp_path / "b.tar.gz", [RunFolder.open(here / next(here.glob("mosaic*")) / "seed2")])
    with pytest.raises(MmctlError, match="cannot write"):
        archive.export(tmp_path / "no" / "b.tar.gz", RunFolder.all(here))
    (next(RunFolder.all(here)).path / "link").symlink_to("/etc/passwd")
    with pytest.raises(MmctlError, match="a link or a special file"):
        archive.export(tmp_path / "b.tar.gz", RunFolder.all(here))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here", "taken.tar.gz"]
    assert taken.read_text() == "mine"


# Archives that no export writes


def members(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as tar:
        return [(m, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]


def rewritten(path: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]], dict[str, Any]], None]) -> Path:
    """The archive after `change(members, manifest)`; sizes follow their content."""
    found = members(path)
    manifest = json.loads(found[0][1])
    change(found, manifest)
    text = json.dumps(manifest).encode()
    out = path.with_name("changed.tar.gz")
    with tarfile.open(out, "w:gz") as tar:
        first = tarfile.TarInfo("manifest.json")
        first.size = len(text)
        tar.addfile(first, io.BytesIO(text))
        for member, data in found[1:]:
            if member.type == tarfile.REGTYPE:
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out


def entry(
    name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member, data


def declare(manifest: dict[str, Any], label: str, relative: str, data: bytes) -> None:
    files = manifest["runs"].setdefault(label, {})
    files[relative] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def refused(path: Path, root: Path, told: str) -> None:
    """It is refused in one line, nothing is in the root, and nothing beside it."""
    outside = sorted(p.name for p in root.parent.iterdir() if p != root)
    with pytest.raises(MmctlError, match=told) as caught:
        importing.merge(path, root)
    assert "\n" not in str(caught.value)
    assert [p for p in root.rglob("*") if p.is_file()] == []
    assert not (root / "sweeps").exists()
    assert sorted(p.name for p in root.parent.iterdir() if p != root) == outside


@pytest.mark.parametrize(
    "name",
    [
        "../../escaped",
        "/tmp/mmctl-escaped",
        "runs/../../escaped",
        "a/./b",
        "",
        ".hidden",
        "a\\..\\b",
        "x" * 400,
        "a//b",
    ],
)
def test_paths_that_lead_out_are_refused_where_they_are_declared(here: Path, tmp_path: Path, name: str) -> None:
    def change(found: Any, manifest: Any) -> None:
        label = next(iter(manifest["runs"]))
        declare(manifest, label, name, b"x")
        found.append(entry(f"runs/{label}/{name}"))

    refused(rewritten(exported(here), change), tmp_path / "there", "is no path inside it")


@pytest.mark.parametrize(
    "label", ["../x-12345678/seed0", "x-12345678/seed0/y", "x/seed0", "/x-12345678/seed0", "..", "x"]
)
def test_labels_that_are_no_runs_are_refused(here: Path, tmp_path: Path, label: str) -> None:
    def change(found: Any, manifest: Any) -> None:
        declare(manifest, label, "result.json", b"{}")

    refused(rewritten(exported(here), change), tmp_path / "there", "is no name of a run")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_and_devices_are_refused_even_under_a_declared_name(here: Path, tmp_path: Path, kind: bytes) -> None:
    def change(found: Any, manifest: Any) -> None:
        label = next(iter(manifest["runs"]))
        declare(manifest, label, "log.txt", b"")
        found.insert(1, entry(f"runs/{label}/log.txt", b"", kind, "/etc/passwd"))

    refused(rewritten(exported(here), change), tmp_path / "there", "is a link or a special file")


def test_what_is_not_declared_or_comes_twice_is_refused(here: Path, tmp_path: Path) -> None:
    path = exported(here)
    refused(
        rewritten(path, lambda f, m: f.append(entry("runs/x-12345678/seed0/extra"))), tmp_path / "a", "not among the"
    )
    refused(rewritten(path, lambda f, m: f.append(f[1])), tmp_path / "b", "not among the files it declares")
    refused(rewritten(path, lambda f, m: f.pop()), tmp_path / "c", "truncated: 1 declared files are missing")
    refused(
        rewritten(path, lambda f, m: f.__setitem__(2, (f[2][0], f[2][1] + b" "))), tmp_path / "d", "bytes instead of"
    )
    flipped = rewritten(path, lambda f, m: f.__setitem__(2, (f[2][0], bytes([f[2][1][0] ^ 1]) + f[2][1][1:])))
    refused(flipped, tmp_path / "e", "SHA-256 is not the declared one")
    refused(
        rewritten(path, lambda f, m: m.update(format=2)), tmp_path / "f", "an archive of format 2, this mmctl reads 1"
    )


def test_bombs_are_refused_before_and_while_they_expand(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def large(found: Any, manifest: Any) -> None:
        label = next(iter(manifest["runs"]))
        manifest["runs"][label]["log.txt"] = {"bytes": 2**40, "sha256": "0" * 64}

    refused(rewritten(exported(here), large), tmp_path / "a", "which no export of runs does")

    def hidden(found: Any, manifest: Any) -> None:
        label = next(iter(manifest["runs"]))
        found.append(entry(f"runs/{label}/log.txt", bytes(64 * 2**20)))

    refused(rewritten(tmp_path / "a.tar.gz", hidden), tmp_path / "b", "not among the files|holds more than it declares")
    monkeypatch.setattr(unpacking, "LARGEST_MANIFEST", 1 << 16)
    bomb = tmp_path / "bomb.tar.gz"
    with gzip.open(bomb, "wb") as file:
        header = tarfile.TarInfo("pax")
        header.type, header.size = tarfile.XHDTYPE, 2**30
        file.write(header.tobuf() + bytes(2**22))
    refused(bomb, tmp_path / "c", "holds more than it declares")


def test_a_refused_archive_leaves_no_folder_behind(here: Path, tmp_path: Path) -> None:
    bad, root = tmp_path / "bad.tar.gz", tmp_path / "new" / "runs"
    bad.write_bytes(b"no archive")
    with pytest.raises(MmctlError):
        importing.merge(bad, root)
    assert not root.exists()


def test_every_truncation_is_refused_and_no_byte_can_be_changed(here: Path, tmp_path: Path) -> None:
    whole = exported(here).read_bytes()
    rng = random.Random(0)
    path = tmp_path / "damaged.tar.gz"
    for number, cut in enumerate([0, 1, 10, len(whole) // 2, *(rng.randrange(len(whole) - 600) for _ in range(8))]):
        path.write_bytes(whole[:cut])
        refused(path, tmp_path / f"t{number}", "truncated or damaged|no archive of runs")
    for number in range(15):
        changed = bytearray(whole)
        changed[rng.randrange(10, len(whole) - 8)] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        root = tmp_path / f"f{number}"
        try:
            importing.merge(path, root)
        except MmctlError:
            assert [p for p in root.rglob("*") if p.is_file()] == []
        else:  # a bit that means nothing (padding, a time): then all of it is what was exported
            assert {k: v for k, v in content(root).items() if "metrics" in k} == {
                k: v for k, v in content(here).items() if "metrics" in k
            }
    path.write_text("not an archive")
    refused(path, tmp_path / "n", "truncated or damaged")
    with pytest.raises(MmctlError, match="no such file"):
        importing.merge(tmp_path / "nowhere.tar.gz", tmp_path / "n")


def test_a_result_under_another_runs_name_is_refused(here: Path, tmp_path: Path) -> None:
    """The identity is what `ablate` skips by: it must be that of the configuration inside."""

    def renamed(found: list[tuple[tarfile.TarInfo, bytes]], manifest: dict[str, Any]) -> None:
        label = next(iter(manifest["runs"]))
        other = "mosaic-v2-00000000/seed0"
        manifest["runs"] = {other: manifest["runs"][label]}
        found[:] = [pair for pair in found if pair[0].name.startswith(("manifest", f"runs/{label}/"))]
        for member, _ in found[1:]:
            member.name = member.name.replace(label, other)

    path = exported(here)
    refused(rewritten(path, renamed), tmp_path / "a", "the result of mosaic-v2-00000000/seed0 is that of another run")

    def settings(found: list[tuple[tarfile.TarInfo, bytes]], manifest: dict[str, Any]) -> None:
        for number, (member, data) in enumerate(found):
            if member.name.endswith("config.yaml"):
                data = data.replace(b"steps: 20", b"steps: 21")
                found[number] = (member, data)
                _, label, seed, relative = member.name.split("/", 3)
                declare(manifest, f"{label}/{seed}", relative, data)

    refused(rewritten(path, settings), tmp_path / "b", "changed since|is not the run its configuration describes")

    def unfinished(found: list[tuple[tarfile.TarInfo, bytes]], manifest: dict[str, Any]) -> None:
        label = next(iter(manifest["runs"]))
        del manifest["runs"][label]["result.json"]
        found[:] = [pair for pair in found if pair[0].name != f"runs/{label}/result.json"]

    refused(rewritten(path, unfinished), tmp_path / "c", "is no finished run")


def test_a_sweep_skips_what_was_imported(tmp_path: Path) -> None:
    from mmctl.evaluation.suites import settings_dict
    from mmctl.sweeps import matrix, plan, profiles
    from mmctl.sweeps.todo import Options, todo

    (tmp_path / "mine.yaml").write_text(
        "name: mine\nquestion: Which?\nseeds: [0, 1]\nbaseline: {set: {model.name: mosaic-v2}}\n"
        "arms:\n  - {name: adaptive}\n  - {name: constant, set: {model.bandwidth: constant}}\n"
    )
    overrides = ["data.mixture={recall: 1}", "data.length=64", "evaluation.suites=[new-knowledge]"]
    made = plan.make_plan(matrix.find([str(tmp_path / "mine.yaml")]), profiles.profile("smoke"), overrides)
    assert len(made.runs()) == 4
    here, there = tmp_path / "here", tmp_path / "there"
    for wanted in made.runs():
        run = RunFolder.create(here, wanted.config)
        own = scores({"recall/accuracy@1x": 0.5}) | {"settings": settings_dict(wanted.config)}
        run.write_evaluation("new-knowledge", own)
        run.write_result({**RESULT, "identity": run.identity, "seed": run.seed})
    assert {t.state for t in todo(made, there, Options())} == {"waiting"}
    importing.merge(exported(here), there)
    assert {t.state for t in todo(made, there, Options())} == {"finished"}


def test_the_corpus_a_run_was_trained_on_need_not_be_here(tmp_path: Path) -> None:
    """Its fingerprint, recorded with the run, is what the identity is checked with."""
    from mmctl.config import identity, load
    from mmctl.data import fingerprint

    text = tmp_path / "corpus.txt"
    text.write_text("".join(f"line {n} of the corpus\n" for n in range(2000)))
    config = load("smoke", ["data.mixture={text: 1}", f"data.text={text}", "data.length=64"])
    here, there = tmp_path / "here", tmp_path / "there"
    run = RunFolder.create(here, config)
    run.add_provenance(corpora=fingerprint(config.data))
    run.write_result({**RESULT, "identity": identity(config), "seed": 0})
    path = exported(here)
    text.unlink()
    assert importing.merge(path, there).runs == [run.label]

    def other(found: list[tuple[tarfile.TarInfo, bytes]], manifest: dict[str, Any]) -> None:
        for number, (member, data) in enumerate(found):
            if member.name.endswith("provenance.json"):
                content = json.loads(data)
                content["corpora"]["text"]["sha256"] = "0" * 64
                found[number] = (member, json.dumps(content).encode())
                declare(manifest, run.label, "provenance.json", found[number][1])

    refused(rewritten(path, other), tmp_path / "other", "changed since|is not the run its configuration describes")
