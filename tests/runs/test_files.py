"""Files: what was written comes back, and what was half-written does not."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.errors import MmctlError
from mmctl.runs import files

floats = st.floats(allow_nan=True, allow_infinity=True, width=64)
rows = st.lists(st.dictionaries(st.text(max_size=20), floats | st.integers(-(2**60), 2**60), max_size=6), max_size=8)


def same(a: object, b: object) -> bool:
    both_nan = isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    return both_nan or (a == b and type(a) is type(b))


@settings(max_examples=150, deadline=None)
@given(rows)
def test_jsonl_gives_back_every_float_and_every_key(
    tmp_path_factory: pytest.TempPathFactory, written: list[dict]
) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "metrics.jsonl"
    for row in written:
        files.append_line(path, row)
    read = [{k: files.number(v) for k, v in row.items()} for row in files.read_lines(path)]
    assert len(read) == len(written)
    for got, wanted in zip(read, written, strict=True):
        assert got.keys() == wanted.keys()
        assert all(same(got[k], v) for k, v in wanted.items())
    if path.exists():
        for line in path.read_text().splitlines():
            json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200))
def test_a_torn_last_line_is_left_out_and_cut_by_the_next_append(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "metrics.jsonl"
    for step in range(5):
        files.append_line(path, {"step": step, "loss": 0.5})
    content = path.read_bytes()
    path.write_bytes(content[: max(0, len(content) - cut)])
    whole = [row["step"] for row in files.read_lines(path)]
    assert whole == list(range(path.read_bytes().count(b"\n")))
    files.append_line(path, {"step": 99})
    assert [row["step"] for row in files.read_lines(path)] == [*whole, 99]


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\xff\n{"step": 3}\n')
    with pytest.raises(MmctlError, match=r"metrics\.jsonl: line 2 is damaged"):
        files.read_lines(path)
    assert [row["step"] for row in files.read_lines(path, skip_damaged=True)] == [1, 3]


def test_a_failed_write_keeps_the_old_content_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    files.write_json(path, {"state": "old"})

    def full(descriptor: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(files.WriteError, match=r"cannot write .*status\.json: No space left on device"):
        files.write_json(path, {"state": "new"})
    assert files.read_json(path) == {"state": "old"}
    assert os.listdir(tmp_path) == ["status.json"]


def test_an_append_cut_short_by_a_full_disk_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    files.append_line(path, {"step": 1})
    real, calls = os.pwrite, []

    def half(descriptor: int, data: bytes, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:5], offset)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(files.WriteError):
        files.append_line(path, {"step": 2})
    assert len(calls) == 2
    assert path.read_bytes() == b'{"step": 1}\n'


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"\xff\xfe", b"[" * 100_000])
def test_unreadable_json_is_one_line_naming_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(MmctlError, match=r"result\.json: damaged") as caught:
        files.read_json(path)
    assert "\n" not in str(caught.value)


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    dead, mine, other = tmp_path / f".a.{child}-00.tmp", tmp_path / f".a.{os.getpid()}-00.tmp", tmp_path / ".a.1-00.tmp"
    for path in (dead, mine, other):
        path.write_text("x")
    assert files.remove_leftovers(tmp_path) == [dead]
    assert sorted(os.listdir(tmp_path)) == sorted([mine.name, other.name])
