"""The validation loss: sequences that nothing else uses, and the mean that training minimises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes import Lookup, quick_config

from mmctl.data import build_task
from mmctl.data.mixture import Mixture
from mmctl.evaluation import scored_at_end, wanted_suites
from mmctl.evaluation.scoring import evaluate, examples
from mmctl.evaluation.validation import LOSS, sequences, split_of, validate


def test_validation_sequences_are_nobody_elses_and_the_same_for_all_who_ask() -> None:
    config = quick_config()
    length = config.data.length
    for name in ("recall", "icl"):
        task = build_task(name, config.data)
        assert split_of(task) == "held-out"
        own = {row.tobytes() for batch in sequences(task, 0, length, 40) for row in batch.tokens}
        assert len(own) == 40
        scored = {row.tobytes() for batch in examples(task, length, 0, 64) for row in batch.tokens}
        mixture = Mixture(config.data, 0)
        for split in ("train", "held-out"):
            scored |= {row.tobytes() for step in range(5) for row in mixture.batch(step, split).tokens}  # type: ignore[arg-type]
        assert not own & scored
        few, many = (np.concatenate([b.tokens for b in sequences(task, 3, length, n)]) for n in (5, 40))
        assert np.array_equal(few, many[:5])


def test_of_a_corpus_only_the_training_part_is_read(tmp_path: Path) -> None:
    text = " ".join(str(n) for n in np.random.default_rng(0).integers(0, 10**6, 2000))  # no passage twice
    (tmp_path / "numbers.txt").write_text(text)
    config = quick_config("data.mixture={text: 1}", f"data.text={tmp_path}")
    task = build_task("text", config.data)
    assert split_of(task) == "train"
    corpus = task.corpus  # type: ignore[attr-defined]
    train, held_out = (bytes(part.stream.astype(np.uint8)) for part in (corpus.train, corpus.held_out))
    for batch in sequences(task, 0, config.data.length, 8):
        for row in batch.tokens:
            assert bytes(row.astype(np.uint8)) in train
            assert bytes(row.astype(np.uint8)) not in held_out


def test_the_loss_is_the_mean_over_tasks_weighed_as_in_training() -> None:
    even = quick_config("data.mixture={recall: 1, icl: 3}")
    found = evaluate(Lookup(), even, "validation")
    each = {name: found["scores"][f"validation/{name}-loss@1x"]["value"] for name in ("recall", "icl")}
    assert each["recall"] != each["icl"]
    assert found["scores"][LOSS]["value"] == pytest.approx(sum(each.values()) / 2)
    weighed = quick_config("data.mixture={recall: 1, icl: 3}", "data.loss_weights={recall: 3}")
    again = validate(Lookup(), weighed)["scores"][LOSS]["value"]
    assert again == pytest.approx((3 * each["recall"] + each["icl"]) / 4)
    assert found["parts"] == {"recall": "held-out", "icl": "held-out"}


def test_it_is_measured_where_it_is_asked_for_and_never_a_suite() -> None:
    assert scored_at_end(quick_config()) == wanted_suites(quick_config())
    asked = quick_config("evaluation.validation=true")
    assert scored_at_end(asked) == [*wanted_suites(asked), "validation"]
    assert wanted_suites(asked) == wanted_suites(quick_config())
