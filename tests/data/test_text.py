"""text: which bytes are read, how they are divided, and what a window holds."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.data import build_task, corpus, fingerprint
from mmctl.data.config import DataConfig
from mmctl.data.corpus import divide, load_corpus
from mmctl.data.task import IGNORE
from mmctl.errors import UsageError


def text_data(path: object = None, length: int = 64) -> DataConfig:
    return DataConfig(length=length, text=None if path is None else str(path), mixture={"text": 1.0})


def folder_of(path: Path, number: int = 60, size: int = 300) -> Path:
    path.mkdir(exist_ok=True)
    for i in range(number):
        (path / f"{i}.txt").write_text(f"document {i}: " + f"{i} " * size)
    return path


def test_the_standard_library_is_there_divided_by_file_and_about_13_MB() -> None:
    found = load_corpus(None, 0.1)
    assert 8e6 < found.size < 20e6
    assert 0.05 < len(found.held_out.names) / (len(found.train.names) + len(found.held_out.names)) < 0.15
    assert not set(found.train.names) & set(found.held_out.names)
    names = found.train.names + found.held_out.names
    assert {"argparse.py", "dataclasses.py", "pydoc_data/topics.py"} <= set(names)
    assert not [n for n in names if "site-packages" in n or n.startswith("test/")]
    # The parts hold the files' own bytes, one after the other.
    first = found.train.names.index("argparse.py")
    content = Path(corpus.sysconfig.get_path("stdlib"), "argparse.py").read_bytes()
    start = found.train.starts[first]
    assert found.train.stream[start : start + len(content)].tobytes() == content
    assert found.train.starts[first + 1] == start + len(content)


def test_no_text_is_in_both_parts() -> None:
    found = load_corpus(None, 0.1)

    def documents(part: corpus.Part) -> set[bytes]:
        ends = [*part.starts[1:], len(part.stream)]
        return {part.stream[a:b].tobytes() for a, b in zip(part.starts, ends, strict=True)}

    assert not documents(found.train) & documents(found.held_out)


def test_a_document_stays_in_its_part_when_others_come_and_go() -> None:
    documents = [(f"folder/{i}.py", f"text {i}".encode()) for i in range(400)]
    train, held = divide(documents, 0.1)
    fewer_train, fewer_held = divide(documents[::3], 0.1)
    assert set(fewer_train) <= set(train)
    assert set(fewer_held) <= set(held)
    assert 20 <= len(held) <= 65  # 40 expected, sd 6
    # Frozen: moving a file to the other part would leak held-out text into resumed or compared runs.
    assert [n for n, _ in held][:4] == ["folder/2.py", "folder/31.py", "folder/32.py", "folder/41.py"]
    assert set(held) <= set(divide(documents, 0.2)[1])  # a larger part only adds


def test_copies_of_one_document_never_leak_into_the_other_part() -> None:
    copies = [(f"{i}.txt", b"the same text") for i in range(200)] + [
        (f"x{i}", f"other {i}".encode()) for i in range(50)
    ]
    train, held = divide(copies, 0.5)
    assert len(train) + len(held) == 51
    assert not {c for _, c in train} & {c for _, c in held}


def test_few_documents_give_up_their_ends() -> None:
    train, held = divide([("a", bytes(range(100))), ("b", b"x" * 50)], 0.1)
    assert train == [("a", bytes(range(90))), ("b", b"x" * 45)]
    assert held == [("a", bytes(range(90, 100))), ("b", b"x" * 5)]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=4, max_size=40),
    st.integers(2, 30),
    st.integers(0, 2**32),
)
def test_windows_are_the_stream_and_never_predict_across_documents(sizes, length, seed) -> None:
    rng = np.random.default_rng(0)
    parts = [corpus._join([(str(i), rng.bytes(s)) for i, s in enumerate(sizes)]) for _ in range(2)]
    task = build_task("text", text_data(length=length))
    task._corpus = corpus.Corpus("made up", *parts, version="")
    if sum(sizes) <= length:
        with pytest.raises(UsageError, match=r"made up: \d+ bytes of train text, \d+ needed"):
            task.sample(np.random.default_rng(seed), 2, length, "train")
        return
    batch = task.sample(np.random.default_rng(seed), 4, length, "train")
    stream = parts[0].stream.tobytes()
    owner = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.random.default_rng(seed).integers(0, len(stream) - length, (4, 1))[:, 0]
    for row, start in enumerate(starts):
        assert bytes(batch.tokens[row].tolist()) == stream[start : start + length]
        ids = np.zeros(length, int) if batch.documents is None else batch.documents[row]
        assert (ids == owner[start : start + length] - owner[start]).all()
        for t in range(length):
            crosses = owner[start + t] != owner[start + t + 1]
            assert batch.targets[row, t] == (IGNORE if crosses else stream[start + t + 1])


def test_every_window_can_be_drawn_and_none_beyond_the_end() -> None:
    task = build_task("text", text_data(length=4))
    part = corpus._join([("a", bytes(range(7)))])
    task._corpus = corpus.Corpus("made up", part, part, version="")
    first = task.sample(np.random.default_rng(0), 500, 4, "train").tokens[:, 0]
    assert sorted(set(first.tolist())) == [0, 1, 2]  # windows of 5 bytes of 7


def test_the_same_text_as_file_gzip_and_jsonl(tmp_path: Path) -> None:
    lines = [f"document {i} says {i * i}\n" * 20 for i in range(40)]
    plain = tmp_path / "all.txt"
    plain.write_text("".join(lines))
    (tmp_path / "all.txt.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert load_corpus(str(plain), 0.1).sha256 == load_corpus(f"{plain}.gz", 0.1).sha256
    jsonl = tmp_path / "all.jsonl"
    jsonl.write_text("\n".join(json.dumps({"text": line, "meta": 1}) for line in lines) + "\n\n")
    (tmp_path / "all.jsonl.gz").write_bytes(gzip.compress(jsonl.read_bytes()))
    found = load_corpus(str(jsonl), 0.1)
    assert found.sha256 == load_corpus(f"{jsonl}.gz", 0.1).sha256
    assert len(found.train.starts) + len(found.held_out.starts) == 40
    together = found.train.stream.tobytes() + found.held_out.stream.tobytes()
    assert all(line.encode() in together for line in lines)


def test_the_fingerprint_is_of_content_and_notices_a_change(tmp_path: Path) -> None:
    a, b = folder_of(tmp_path / "a"), folder_of(tmp_path / "b")
    assert fingerprint(text_data(a)) == fingerprint(text_data(b))
    before = fingerprint(text_data(b))
    (b / "3.txt").write_text("something else " * 100)
    assert fingerprint(text_data(b)) != before
    assert fingerprint(DataConfig(mixture={"recall": 1.0, "text": 0.0}, text="/nowhere")) == {}


def refused(path: object, length: int = 64) -> str:
    with pytest.raises(UsageError) as error:
        fingerprint(text_data(path, length))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_text_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    def write(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    assert "no such file or folder" in refused(tmp_path / "nowhere")
    assert "\\x00" in refused("a\0b") or "null" in refused("a\0b")
    assert "cannot be looked up" in refused("~nobody-of-that-name/corpus.txt")
    assert "is empty" in refused(write("empty.txt", b""))
    assert "is empty" in refused(write("blank.txt", b" \n\n"))
    assert "binary" in refused(write("x.bin", b"\x7fELF\0\0\1" * 99))
    assert "not UTF-8 text (byte 0xe9 at 3)" in refused(write("latin.txt", "caf\xe9 ".encode("latin-1") * 99))
    assert "cannot be read" in refused(write("bad.gz", b"no gzip at all"))
    assert "cannot be read" in refused(write("cut.gz", gzip.compress(b"text " * 999)[:-20]))
    assert 'bad.jsonl" line 2' in refused(write("bad.jsonl", b'{"text": "a"}\n{"txt": "b"}\n'))
    assert 'worse.jsonl" line 1' in refused(write("worse.jsonl", b"[1, 2]\n"))
    assert "data.length=64" in refused(write("short.txt", b"just a few words"))
    assert "data.length=4096" in refused(write("fine.txt", b"some words " * 300), 4096)
    (tmp_path / "hollow").mkdir()
    assert "holds no files" in refused(tmp_path / "hollow")
    folder = folder_of(tmp_path / "mixed")
    (folder / "z.png").write_bytes(b"\x89PNG\0")
    assert "z.png" in refused(folder)
    os.mkfifo(tmp_path / "pipe")
    assert "neither a regular file nor a folder" in refused(tmp_path / "pipe")


def test_unreadable_text_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("text " * 99)

    def denied(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)  # a mode of 0 would not stop root
    assert "secret.txt" in refused(path)
    assert "permission denied" in refused(path)


def test_hidden_files_of_a_folder_are_no_text(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a")
    before = fingerprint(text_data(folder))
    (folder / ".git").mkdir()
    (folder / ".git" / "index").write_bytes(b"\0\0")
    (folder / ".DS_Store").write_bytes(b"\0")
    assert fingerprint(text_data(folder)) == before


def test_loss_scores_agree_with_each_other() -> None:
    task = build_task("text", text_data())
    batch = task.sample(np.random.default_rng(0), 6, 64, "held-out")
    losses = np.random.default_rng(1).random(batch.tokens.shape)
    scores = task.scores(batch, losses, losses > 0.5)
    assert scores["loss"].value == pytest.approx(losses[batch.labelled].mean())
    assert scores["bits-per-byte"].value == pytest.approx(scores["loss"].value / np.log(2))
    quarters = [scores[f"loss-quarter{i}"] for i in (1, 2, 3, 4)]
    assert sum(q.count.sum() for q in quarters) == scores["loss"].count.sum()
    assert sum(q.total.sum() for q in quarters) == pytest.approx(scores["loss"].total.sum())
    assert quarters[1].value == pytest.approx(losses[:, 16:32][batch.labelled[:, 16:32]].mean())


def test_a_corpus_is_found_from_any_folder_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative data.text was kept as typed, and evaluating from another folder failed."""
    from mmctl.config import load, to_dict

    (tmp_path / "txt").mkdir()
    (tmp_path / "txt" / "a.txt").write_text("words " * 3000)
    monkeypatch.chdir(tmp_path)
    kept = to_dict(load("smoke", ["data.text=txt"]))["data"]["text"]
    assert kept == str(tmp_path / "txt")


def test_what_python_compiled_is_no_text(tmp_path: Path) -> None:
    from mmctl.data.corpus import list_files

    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_bytes(b"\0")
    (tmp_path / "a.py").write_text("x = 1")
    assert [name for name, _ in list_files(str(tmp_path))] == ["a.py"]
