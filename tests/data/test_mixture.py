"""Mixtures: allocation, the average the weights stand for, purity of a step, and validation."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.data import TASKS, task_class
from mmctl.data.config import DataConfig
from mmctl.data.mixture import Mixture, allocate, token_weights
from mmctl.errors import UsageError

GENERATED = {"recall": 1.0, "icl": 1.0, "facts": 1.0}


def test_whole_shares_are_exact_whatever_the_random_number() -> None:
    for step in range(200):
        rng = np.random.default_rng(step)
        assert allocate(16, np.full(4, 1 / 4), rng).tolist() == [4, 4, 4, 4]
        assert allocate(30, np.array([0.1, 0.2, 0.7]), rng).tolist() == [3, 6, 21]
        assert allocate(9, np.full(3, 1 / 3), rng).tolist() == [3, 3, 3]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.integers(1, 40), st.integers(0, 2**32))
def test_shares_round_to_a_neighbour_and_sum_to_the_batch(weights, batch, seed) -> None:
    share = np.array(weights) / sum(weights)
    counts = allocate(batch, share, np.random.default_rng(seed))
    assert counts.sum() == batch
    assert (np.abs(counts - batch * share) < 1 + 1e-6).all()


def test_shares_are_right_on_average() -> None:
    share = np.array([0.05, 0.35, 0.6])
    rng = np.random.default_rng(0)
    mean = np.mean([allocate(5, share, rng) for _ in range(20_000)], axis=0)
    assert mean == pytest.approx(5 * share, abs=0.02)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_weights_are_the_mean_over_tasks_of_the_mean_over_labels(data) -> None:
    tasks = data.draw(st.integers(1, 4))
    index = np.array(data.draw(st.lists(st.integers(0, tasks - 1), min_size=1, max_size=8)))
    loss_weights = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=tasks, max_size=tasks)))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    labelled, nll = rng.random((len(index), 7)) < 0.4, rng.random((len(index), 7))
    total, parts = 0.0, 0.0
    for task in range(tasks):
        own = nll[index == task][labelled[index == task]]
        if len(own):
            total += loss_weights[task] * own.mean()
            parts += loss_weights[task]
    weights = token_weights(labelled, index, loss_weights)
    assert weights.dtype == np.float32
    assert (weights[~labelled] == 0).all()
    assert (weights * nll).sum() == pytest.approx(total / parts if parts else 0.0, abs=1e-5)


def test_a_step_is_a_pure_function_of_seed_split_and_step() -> None:
    data = DataConfig()
    first, again = Mixture(data, 3), Mixture(data, 3)
    for step in (5, 0, 5):  # in any order, from any state
        a, b = first.batch(step), again.batch(step)
        for field in ("tokens", "targets", "task", "weights"):
            assert np.array_equal(getattr(a, field), getattr(b, field))
    reference = first.batch(5).tokens
    for other in (first.batch(6), first.batch(5, split="held-out"), Mixture(data, 4).batch(5)):
        assert not np.array_equal(other.tokens, reference)


def test_a_task_sees_the_same_sequences_whatever_it_is_mixed_with() -> None:
    alone = Mixture(DataConfig(batch=4, mixture={"icl": 1.0}), 0).batch(7)
    mixed = Mixture(DataConfig(batch=12, mixture=GENERATED), 0).batch(7)
    rows = mixed.task == mixed.names.index("icl")
    assert np.array_equal(mixed.tokens[rows], alone.tokens)


def test_global_random_state_is_neither_read_nor_touched() -> None:
    np.random.seed(0)  # noqa: NPY002
    before = Mixture(DataConfig(), 0).batch(1).tokens
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert np.array_equal(Mixture(DataConfig(), 0).batch(1).tokens, before)
    np.random.seed(0)  # noqa: NPY002
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_a_batch_has_the_shapes_the_model_expects() -> None:
    batch = Mixture(DataConfig(), 0).batch(1)
    assert batch.names == ["facts", "recall", "icl", "text"]
    assert np.bincount(batch.task).tolist() == [4, 4, 4, 4]
    assert batch.tokens.shape == batch.targets.shape == batch.weights.shape == (16, 256)
    assert batch.tokens.min() >= 0
    assert batch.tokens.max() < 512
    assert batch.weights.sum() == pytest.approx(1, abs=1e-5)
    for task in range(4):
        assert batch.weights[batch.task == task].sum() == pytest.approx(1 / 4, abs=1e-5)
    assert ((batch.weights > 0) == (batch.targets >= 0)).all()


def test_documents_appear_only_where_a_window_holds_a_boundary() -> None:
    mixture = Mixture(DataConfig(batch=8, mixture={"text": 1.0, "icl": 1.0}), 0)
    batches = [mixture.batch(step) for step in range(150)]
    with_documents = [b for b in batches if b.documents is not None]
    assert 0 < len(with_documents) < len(batches)
    for batch in with_documents:
        assert batch.documents is not None
        assert batch.documents.dtype == np.int32
        assert (np.diff(batch.documents, axis=1) >= 0).all()
        assert (batch.documents[batch.task == batch.names.index("icl")] == 0).all()


def test_a_step_of_the_lab_costs_a_small_part_of_a_training_step() -> None:
    mixture = Mixture(DataConfig(), 0)
    mixture.batch(0)
    seconds = []
    for step in range(30):
        started = time.perf_counter()
        mixture.batch(step)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.01  # 0.5 ms when measured alone; a training step takes about 100 ms


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"length": 0}, "data.length=0"),
        ({"batch": 0}, "data.batch=0"),
        ({"mixture": {}}, "data.mixture={}"),
        ({"mixture": {"recall": 0.0}}, "at least one task"),
        ({"mixture": {"recal": 1.0}}, 'data.mixture.recal: no such task; did you mean "recall"?'),
        ({"mixture": {"recall": -1.0}}, "data.mixture.recall=-1.0"),
        ({"mixture": {"recall": float("nan")}}, "data.mixture.recall=nan"),
        ({"loss_weights": {"text": float("inf")}}, "data.loss_weights.text=inf"),
        ({"loss_weights": {"tekst": 1.0}}, 'did you mean "text"'),
        ({"mixture": {"icl": 1.0}, "loss_weights": {"icl": 0.0}}, "no task of the mixture would be trained"),
        ({"vocabulary": 100}, "data.vocabulary"),
        ({"vocabulary": 255, "mixture": {"text": 1.0}}, "data.vocabulary=255: expected at least 256"),
        ({"length": 65}, "data.length=65"),
    ],
)
def test_wrong_values_are_one_line_naming_the_key(changes: dict, told: str) -> None:
    with pytest.raises(UsageError) as error:
        DataConfig(**changes).validate()
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_weight_of_zero_leaves_a_task_out() -> None:
    data = DataConfig(mixture={**GENERATED, "text": 0.0}, text="/does/not/exist", vocabulary=512)
    data.validate()
    assert Mixture(data, 0).names == ["facts", "recall", "icl"]


def test_every_registered_task_has_its_keys_and_its_dimension() -> None:
    data = DataConfig()
    for name in TASKS:
        cls = task_class(name)
        assert cls.name == name
        assert type(getattr(data.tasks, name)) is cls.Config
        assert cls.dimension in ("persistent", "new-knowledge", "in-context")
    with pytest.raises(UsageError, match="did you mean"):
        task_class("fact")


def test_data_needs_no_torch() -> None:
    code = "import sys, mmctl.data.config, mmctl.data.mixture; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
