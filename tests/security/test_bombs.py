"""A small file that asks for endless memory, depth or time is refused in one line, soon and without reading it
whole."""

from __future__ import annotations

import gzip
import json
import resource
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks import new_run, small

from mmctl import plain
from mmctl.data import corpus
from mmctl.data.corpus import load_corpus
from mmctl.errors import MmctlError, UsageError
from mmctl.models import load_official_v1
from mmctl.runs import RunFolder, codec, files
from mmctl.runs.listing import row
from mmctl.sweeps import matrix

SOON = 10.0
"""Seconds; each of them takes well below one on a quiet machine."""
MOST = 300 * 1024
"""KiB by which the process may grow."""


@pytest.fixture(autouse=True)
def soon_and_small() -> Iterator[None]:
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - began < SOON
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST


def one_line(error: BaseException) -> bool:
    return str(error).isprintable() and 0 < len(str(error)) < 2000


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(20)
)
YAML = {
    "aliases": LAUGHS,
    "merged aliases": "a0: &a0 {x: 1}\n" + "".join(f"a{i + 1}: &a{i + 1} {{x: *a{i}, y: *a{i}}}\n" for i in range(60)),
    "itself": "a: &a [*a]\n",
    "depth of lists": "a: " + "[" * 100_000,
    "depth of mappings": "a: " + "{b: " * 20_000,
    "depth of blocks": "\n".join(" " * i + "a:" for i in range(2000)),
    "length": "a: '" + "x" * 3_000_000 + "'\n",
}


@pytest.mark.parametrize("text", YAML.values(), ids=YAML.keys())
def test_yaml_from_a_run_a_matrix_or_an_argument(tmp_path: Path, root: Path, text: str) -> None:
    run = new_run(root)
    with open(run.path / "config.yaml", "a") as file:
        file.write(text)
    with pytest.raises(MmctlError) as caught:
        run.config()
    assert one_line(caught.value)
    assert row(run)["name"] == "mosaic-v2"  # and a table of runs still shows it
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)
    with pytest.raises(UsageError) as caught_matrix:
        matrix.load(mine)
    assert one_line(caught_matrix.value)
    value = text.partition(": ")[2] if text.count("\n") <= 1 else text
    with pytest.raises(UsageError) as caught_value:
        small(f"data.mixture={value}")
    assert one_line(caught_value.value)


def test_an_alias_of_a_few_values_is_fine() -> None:
    assert plain.load("a: &a [1, 2]\nb: [*a, *a]") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


JSON = {
    "lists": "[" * 100_000,
    "closed lists": "[" * 5000 + "]" * 5000,
    "mappings": '{"a":' * 100_000,
    "number": "1" * 1_000_000,
    "bytes": "\0" * 1_000_000,
}
HELD = (
    "status.json",
    "provenance.json",
    "result.json",
    "mlflow.json",
    "metrics.jsonl",
    "eval/new-knowledge.json",
    "lock",
)


@pytest.mark.parametrize("text", JSON.values(), ids=JSON.keys())
def test_json_of_a_runs_folder(root: Path, text: str) -> None:
    run = new_run(root)
    for name in HELD:
        (run.path / name).write_text(text + "\n")
    found = row(RunFolder.open(run.path))
    assert found["name"] == "mosaic-v2"
    for read in (run.provenance, lambda: run.evaluation("new-knowledge"), run.metrics):
        with pytest.raises(MmctlError) as caught:
            read()
        assert one_line(caught.value)


def test_a_json_file_of_many_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with open(path, "wb") as file:
        file.truncate(8 << 30)  # sparse: it takes no room
    with pytest.raises(MmctlError, match="more than any file of its kind"):
        files.read_json(path)


HEADERS = {
    "2 GB that are not there": struct.pack("<Q", 2_000_000_000) + b"{",
    "more than 64 bits can say": b"\xff" * 16,
    "depth": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "a tensor of petabytes": (lambda h: struct.pack("<Q", len(h)) + h)(
        b'{"w":{"dtype":"F32","shape":[1000000000,1000000000],"data_offsets":[0,4]}}'
    )
    + b"\0" * 4,
    "a shape that overflows": (lambda h: struct.pack("<Q", len(h)) + h)(
        b'{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'
    ),
    "nothing": b"",
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS.keys())
def test_a_safetensors_header(tmp_path: Path, root: Path, content: bytes) -> None:
    official = tmp_path / "official.safetensors"
    official.write_bytes(content)
    with pytest.raises(MmctlError) as caught:
        load_official_v1(official)
    assert one_line(caught.value)
    replaced(root, "model.safetensors", content)


def test_a_safetensors_header_of_2_GB_that_is_there(tmp_path: Path) -> None:
    official = tmp_path / "official.safetensors"
    with open(official, "wb") as file:
        file.write(struct.pack("<Q", 2_000_000_000))
        file.truncate(2_000_000_100)
    with pytest.raises(MmctlError, match="not a readable safetensors file") as caught:
        load_official_v1(official)
    assert one_line(caught.value)


OFFICIAL = {
    "layers": {"n_layer": 10**9, "n_head": 1, "n_embd": 8, "pmem_size": 1, "pmem_count": 1, "vocab_size": 8},
    "width": {"n_layer": 1, "n_head": 1, "n_embd": 10**7, "pmem_size": 1, "pmem_count": 1, "vocab_size": 8},
    "vocabulary": {"n_layer": 1, "n_head": 1, "n_embd": 8, "pmem_size": 1, "pmem_count": 1, "vocab_size": 10**12},
    "slots": {"n_layer": 1, "n_head": 1, "n_embd": 8, "pmem_size": 10**12, "pmem_count": 1, "vocab_size": 8},
    "banks": {"n_layer": 1, "n_head": 1, "n_embd": 8, "pmem_size": 1, "pmem_count": 10**12, "vocab_size": 8},
    "words": {"n_layer": "1", "n_head": 1, "n_embd": 8, "pmem_size": 1, "pmem_count": 1, "vocab_size": 8},
    "negative": {"n_layer": -1, "n_head": 0, "n_embd": -8, "pmem_size": 1, "pmem_count": 1, "vocab_size": 8},
    "a list": [],
}


@pytest.mark.parametrize("config", OFFICIAL.values(), ids=OFFICIAL.keys())
def test_official_weights_whose_configuration_asks_for_more_than_the_file_holds(tmp_path: Path, config: object) -> None:
    import torch
    from safetensors.torch import save_file

    path = tmp_path / "official.safetensors"
    save_file({"lm_head.weight": torch.zeros(8, 8)}, path, metadata={"config": json.dumps(config)})
    with pytest.raises(MmctlError) as caught:
        load_official_v1(path)
    assert one_line(caught.value)


STATES = {
    "depth": b"[" * 100_000,
    "depth that parses": (
        b'{"format": 1, "step": 3, "groups": [], "ties": {}, "state": ' + b'{"$tuple": [' * 400 + b"]}" * 400 + b"}"
    ),
    "a tensor of terabytes": b'{"step": 3, "groups": [], "ties": {}, "state": {"x": {"$tensor": ["float32", [1000000000000], ""]}}}',
    "an array of terabytes": b'{"step": 3, "groups": [], "ties": {}, "state": {"x": {"$array": ["<f4", [1000000000000], ""]}}}',
    "a group elsewhere": b'{"step": 3, "groups": ["../../x"], "ties": {}, "state": {}}',
    "groups that are none": b'{"step": 3, "groups": 7, "ties": {}, "state": {}}',
    "not an object": b"3",
}


@pytest.mark.parametrize("content", STATES.values(), ids=STATES.keys())
def test_the_state_of_a_checkpoint(root: Path, content: bytes) -> None:
    replaced(root, "state.json", content)


def replaced(root: Path, name: str, content: bytes) -> None:
    """A checkpoint with another file in it, whose manifest fits: loading it is one line that calls it damaged."""
    import torch

    run = new_run(root)
    place = run.save_checkpoint(3, {"tensors": {"model": {"w": torch.ones(2)}}, "state": {"step": 3}})
    (place / name).write_bytes(content)
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(content), "crc32": zlib.crc32(content)}
    (place / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(MmctlError, match="damaged") as caught:
        run.load_checkpoint()
    assert one_line(caught.value)


def test_depth_is_no_traceback_in_the_codec() -> None:
    value: object = 1
    for _ in range(5000):
        value = {"$tuple": [value]}
    with pytest.raises(MmctlError, match="nested too deeply"):
        codec.decode(value)
    for _ in range(5000):
        value = [value]
    with pytest.raises(MmctlError, match="nested too deeply"):
        codec.decode(value)


def test_a_compressed_text_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(64):
            file.write(b"a" * (1 << 20))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(corpus, "LARGEST", 1 << 22)
    with pytest.raises(UsageError, match="larger than") as caught:
        load_corpus(str(path), 0.1)
    assert one_line(caught.value)


@pytest.mark.parametrize("line", ['{"text":' + "[" * 50_000, '{"text": {"a": 1}}', "[" * 50_000, "1" * 5000])
def test_lines_of_a_text_that_are_no_documents(tmp_path: Path, line: str) -> None:
    (tmp_path / "text.jsonl").write_text(line + "\n")
    with pytest.raises(UsageError, match="line 1") as caught:
        load_corpus(str(tmp_path / "text.jsonl"), 0.1)
    assert one_line(caught.value)
