"""Nothing that is read is executed: no pickle, no eval, no YAML tag, no resolver, from whatever file it comes."""

from __future__ import annotations

import ast
import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from attacks import Acts, new_run, small

from mmctl import plain
from mmctl.config import load
from mmctl.data.corpus import load_corpus
from mmctl.errors import MmctlError, UsageError
from mmctl.models import load_official_v1
from mmctl.runs import codec
from mmctl.sweeps import matrix

SOURCES = Path(__file__).parents[2]
MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"eval", "exec", "__import__"}
METHODS = {
    ("os", "system"),
    ("os", "popen"),
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
    ("yaml", "full_load"),
    ("OmegaConf", "resolve"),
    ("OmegaConf", "register_new_resolver"),
    ("OmegaConf", "register_resolver"),
    ("jit", "load"),
    ("hub", "load"),
}
NEEDED = {  # what a call must say
    ("torch", "load"): ("weights_only", True),
    ("np", "load"): ("allow_pickle", False),
    ("numpy", "load"): ("allow_pickle", False),
    ("tar", "extractall"): ("filter", "data"),
    ("tar", "extract"): ("filter", "data"),
}


def sources() -> list[Path]:
    found = [p for top in ("mmctl", "kernels", "plots", "ablations") for p in (SOURCES / top).rglob("*.py")]
    assert len(found) > 50
    return found


def faults(tree: ast.AST) -> Iterator[str]:
    """Everything in a module that could run what it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and (bad := {a.name.split(".")[0] for a in node.names} & MODULES):
            yield f"line {node.lineno}: imports {bad}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield f"line {node.lineno}: imports {node.module}"
        if not isinstance(node, ast.Call):
            continue
        said = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
        if isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield f"line {node.lineno}: calls {node.func.id}"
        if said.get("shell") or said.get("resolve") or said.get("trust_remote_code"):
            yield f"line {node.lineno}: shell, resolve or trust_remote_code"
        if isinstance(node.func, ast.Attribute):
            owner = node.func.value
            called = (getattr(owner, "id", getattr(owner, "attr", "")), node.func.attr)
            if called in METHODS:
                yield f"line {node.lineno}: calls {'.'.join(called)}"
            if called in NEEDED and said.get(NEEDED[called][0], "missing") != NEEDED[called][1]:
                yield f"line {node.lineno}: {'.'.join(called)} without {NEEDED[called]}"


def test_no_module_can_run_what_it_reads() -> None:
    found = {str(p.relative_to(SOURCES)): list(faults(ast.parse(p.read_text(encoding="utf-8")))) for p in sources()}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "eval(x)",
        "torch.load(x)",
        "torch.load(x, weights_only=False)",
        "np.load(x, allow_pickle=True)",
        "yaml.load(x)",
        "subprocess.run(x, shell=True)",
        "OmegaConf.to_container(x, resolve=True)",
        "tar.extractall(x)",
        "torch.hub.load(x)",
    ],
)
def test_the_search_finds_each_of_them(line: str) -> None:
    assert list(faults(ast.parse(line)))


@pytest.mark.parametrize("form", ["pickle", "torch", "torch zip with weights"])
def test_a_pickle_in_the_place_of_weights_is_refused_unread(tmp_path: Path, root: Path, form: str) -> None:
    mark = tmp_path / "it-acted"
    buffer = io.BytesIO()
    if form == "pickle":
        buffer.write(pickle.dumps(Acts(mark)))
    else:
        payload = Acts(mark) if form == "torch" else {"w": torch.zeros(2), "x": Acts(mark)}
        torch.save(payload, buffer)
    official = tmp_path / "official.safetensors"
    official.write_bytes(buffer.getvalue())
    with pytest.raises(MmctlError) as caught:
        load_official_v1(official)
    assert "\n" not in str(caught.value)

    run = new_run(root)
    place = run.save_checkpoint(3, {"tensors": {"model": {"w": torch.ones(2)}}, "state": {"step": 3}})
    content = buffer.getvalue()
    (place / "model.safetensors").write_bytes(content)
    manifest = json.loads((place / "manifest.json").read_text())
    import zlib

    manifest["files"]["model.safetensors"] = {"bytes": len(content), "crc32": zlib.crc32(content)}
    (place / "manifest.json").write_text(json.dumps(manifest))  # as one who wants it read would
    with pytest.raises(MmctlError, match="is damaged") as caught:
        run.load_checkpoint()
    assert "\n" not in str(caught.value)
    assert not mark.exists()


TAGGED = [
    "!!python/object/apply:os.mkdir [it-acted]",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/object/new:pathlib.Path [x]",
    "!!binary aGk=",
    "!custom 1",
]


@pytest.mark.parametrize("value", TAGGED)
def test_a_yaml_tag_makes_nothing_from_any_file_or_argument(
    tmp_path: Path, root: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="tag"):
        load("smoke", [f"training.steps={value}"])
    run = new_run(root)
    with open(run.path / "config.yaml", "a") as file:
        file.write(f"more: {value}\n")
    with pytest.raises(MmctlError, match="tag"):
        run.config()
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"name: mine\nquestion: {value}\n")
    with pytest.raises(UsageError, match="tag"):
        matrix.load(mine)
    assert not (tmp_path / "it-acted").exists()


RESOLVERS = ["${oc.env:SECRET_WORD}", "${oc.decode:1}", "a${seed}b", "${data.batch}", "${oc.create:{a: 1}}"]


@pytest.mark.parametrize("value", RESOLVERS)
def test_a_resolver_is_refused_wherever_it_stands(
    tmp_path: Path, root: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_WORD", "correct-horse")
    for override in (
        f"name={value}",
        f"data.text={value}",
        f"training.steps={value}",
        f"data.mixture={{recall: '{value}'}}",
        f"evaluation.suites=['{value}']",
    ):
        with pytest.raises(UsageError) as caught:
            small(override)
        assert "correct-horse" not in str(caught.value)
    run = new_run(root)
    text = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(text.replace("name: mosaic-v2", f"name: '{value}'"))
    assert "correct-horse" not in json.dumps(run.config_dict())
    with pytest.raises(MmctlError) as caught_run:
        run.config()
    assert "correct-horse" not in str(caught_run.value)
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"name: mine\nquestion: '{value}'\nbaseline: {{set: {{model.name: mosaic-v2}}}}\n")
    with pytest.raises(UsageError) as caught_matrix:
        matrix.load(mine)
    assert "correct-horse" not in str(caught_matrix.value)


def test_plain_yaml_stays_what_it_is() -> None:
    assert plain.load("a: 1e-3\nb: &x [1, no]\nc: *x") == {"a": 0.001, "b": [1, False], "c": [1, False]}


def test_numpy_objects_are_refused_as_data_and_as_state(tmp_path: Path) -> None:
    mark = tmp_path / "it-acted"
    array = np.empty(1, dtype=object)
    array[0] = Acts(mark)
    np.save(tmp_path / "text.npy", array, allow_pickle=True)
    with pytest.raises(UsageError) as caught:
        load_corpus(str(tmp_path / "text.npy"), 0.1)
    assert "\n" not in str(caught.value)
    with pytest.raises(MmctlError, match="OBJECT"):
        codec.decode({"$array": ["O", [1], "AAAAAAAAAAA="]})
    assert not mark.exists()


@pytest.mark.parametrize(
    "value",
    [
        {"$object": ["os", "system"]},
        {"$tensor": ["load", [1], "AAAA"]},
        {"$tensor": ["float32", [3], "AAAA"]},
        {"$tensor": ["__class__", [1], "AAAA"]},
        {"$array": ["<f4", [2], "AAAA"]},
        {"$array": ["<f4", -1]},
        {"$dict": [[["a"], 1]]},
        {"$dict": 3},
        {"$tuple": 5},
        {"$bytes": "???"},
        {"$float": "__import__('os')"},
        {"$ref": "missing"},
    ],
)
def test_a_hostile_state_is_one_line(value: object) -> None:
    with pytest.raises(MmctlError, match="damaged value") as caught:
        codec.decode({"state": [value]}, {})
    assert "\n" not in str(caught.value)
