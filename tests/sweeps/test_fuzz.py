"""Whatever stands in a matrix, a configuration, a status or a manifest: it is read, or refused in one line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmctl.config import flat, from_dict, load, to_dict
from mmctl.errors import MmctlError, UsageError
from mmctl.runs import RunFolder, status
from mmctl.sweeps import manifest, matrix, progress

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=12)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
QUICK = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

MATRIX: dict[str, Any] = {
    "name": "own",
    "question": "q",
    "baseline": {"set": {"model.name": "mosaic-v2"}},
    "arms": [
        {"name": "a", "label": "l", "set": {"model.window": 32}},
        {"name": "b", "set": {"model": {"window": 48}}, "evaluate": {"delay": 16, "remove_long_term": True}},
        {"name": "c", "match": {"parameters_of": "a", "key": "model.ffn_width"}, "compare_to": "a"},
    ],
    "seeds": [0, 1],
    "claims": [
        {
            "id": "c",
            "statement": "s",
            "metric": "train_loss",
            "treatment": "a",
            "control": "b",
            "expected": "less",
            "margin": 0.1,
            "published": {"source": "s", "metric": "m", "value": "v"},
        }
    ],
    "figures": ["loss"],
}
AXES: dict[str, Any] = {
    "name": "own",
    "question": "q",
    "baseline": {},
    "combine": "product",
    "axes": {"model.window": [32, 48], "evaluate.remove_long_term": [False, True]},
    "exclude": [{"when": {"model.window": 48}, "reason": "r"}],
}


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in nested mappings and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(found for key, item in items for found in paths(item, (*at, key)))]


def changed(whole: Any, at: tuple[Any, ...], new: Any, rename: str | None) -> Any:
    """`whole` with another value at `at`, or, with `rename`, the key there renamed."""
    if not at:
        return new
    made = copy.deepcopy(whole)
    holder = made
    for key in at[:-1]:
        holder = holder[key]
    if rename is not None and isinstance(holder, dict):
        holder[rename] = holder.pop(at[-1])
    else:
        holder[at[-1]] = new
    return made


def told(error: Exception) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) > 5


def test_the_matrices_that_are_changed_here_are_right_as_they_stand(tmp_path: Path) -> None:
    for whole in (MATRIX, AXES):
        (tmp_path / "own.yaml").write_text(json.dumps(whole))
        assert len(matrix.load(tmp_path / "own.yaml").arms) >= 2


@QUICK
@given(st.sampled_from([MATRIX, AXES]), st.data(), VALUES, st.none() | st.text(max_size=6))
def test_a_matrix_with_anything_anywhere(tmp_path: Path, whole: Any, data: Any, new: Any, rename: str | None) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps(changed(whole, data.draw(st.sampled_from(paths(whole))), new, rename)))
    try:
        assert matrix.load(path).arms
    except UsageError as error:
        told(error)
        assert str(path) in str(error)


@QUICK
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_a_matrix_that_is_no_yaml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        matrix.load(path)
    told(error.value)


@QUICK
@given(st.sampled_from([*sorted(flat(load("smoke"))), "model", "data.tasks", "x", "data.mixture.new", ""]), VALUES)
def test_a_layer_with_any_value_for_any_key(key: str, value: Any) -> None:
    try:
        config = load("smoke", layers=[{key: value}])
    except UsageError as error:
        told(error)
    else:
        assert from_dict(to_dict(config)) == config


SMALL = to_dict(load("smoke", ["data.mixture={recall: 1}"]))


@QUICK
@given(st.sampled_from(paths(SMALL)), VALUES, st.none() | st.text(max_size=6))
def test_a_stored_configuration_with_anything_anywhere(at: tuple[Any, ...], new: Any, rename: str | None) -> None:
    wrong = changed(SMALL, at, new, rename)
    try:
        if isinstance(wrong, dict):  # what the file's reader lets through
            from_dict(wrong)
    except UsageError as error:
        told(error)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return RunFolder.create(tmp_path_factory.mktemp("fuzz"), from_dict(SMALL))


RECORD = {
    "state": "running",
    "attempt": 1,
    "host": "h",
    "pid": 1,
    "start": 2.0,
    "boot": "b",
    "heartbeat": 3.0,
    "earlier": [],
}


@QUICK
@given(st.sampled_from(paths(RECORD)), VALUES, st.none() | st.text(max_size=6), st.none() | st.binary(max_size=20))
def test_a_status_with_anything_in_it(
    run: RunFolder, at: Any, new: Any, rename: str | None, torn: bytes | None
) -> None:
    """The run has a state, the table shows it, and the next attempt is counted and recorded."""
    path = run.path / "status.json"
    path.write_bytes(json.dumps(changed(RECORD, at, new, rename)).encode() if torn is None else torn)
    assert run.state() in status.STATES
    root = run.path.parents[1]
    seen = progress.look("s", [progress.Asked("c", run.identity, run.seed, 10)], root)
    assert seen["runs"][0]["state"] == run.state()
    assert json.loads(json.dumps(seen))["sweep"] == "s"
    assert progress.table(seen).row_count == 1
    run.set_state("running")
    assert isinstance(run.status["attempt"], int)
    assert run.state() == "running"


MANIFEST = {"schema": 1, "sweep": "s", "cells": [{"identity": "0123abcd", "name": "n", "seeds": [0, 1], "uses": []}]}


@QUICK
@given(st.sampled_from(paths(MANIFEST)), VALUES, st.none() | st.text(max_size=6), st.none() | st.binary(max_size=20))
def test_a_manifest_with_anything_in_it(
    tmp_path: Path, at: Any, new: Any, rename: str | None, torn: bytes | None
) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(json.dumps(changed(MANIFEST, at, new, rename)).encode() if torn is None else torn)
    try:
        asked = progress.of_manifest(manifest.read(tmp_path), path)
        assert progress.table(progress.look("s", asked, tmp_path)).row_count == len(asked)
    except MmctlError as error:
        told(error)
        assert "manifest" in str(error)
