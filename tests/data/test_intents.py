"""intents: episodes of real queries with labels dealt anew, training and test intents apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mmctl.data.config import DataConfig
from mmctl.data.intents import Intents, IntentsConfig
from mmctl.errors import UsageError
from mmctl.sweeps import matrix, profiles
from mmctl.sweeps.plan import Plan, make_plan


def corpus(folder: Path, name: str, intents: int) -> str:
    folder = folder / name
    folder.mkdir()
    rows = [f"query {i} about {name}{k},{name}{k}" for k in range(intents) for i in range(6)]
    for split in ("train", "test"):
        (folder / f"{split}.csv").write_text("text,category\n" + "\n".join(rows) + "\n")
    return f"banking77={folder}"


def task(**keys: object) -> Intents:
    return Intents(IntentsConfig(**keys), DataConfig(vocabulary=512))  # type: ignore[arg-type]


def episodes(made: Intents, split: str, count: int = 20, length: int = 400) -> list[list[tuple[str, int, int]]]:
    """(query, label, shots) of each example, read back from the tokens."""
    batch = made.sample(np.random.default_rng(0), count, length, split)  # type: ignore[arg-type]
    found = []
    for tokens, targets, shots in zip(batch.tokens, batch.targets, batch.extras["shots"], strict=True):
        rows, start = [], 0
        for at in np.flatnonzero(targets >= 0):
            assert tokens[at] == made.separator
            if at + 1 < length and tokens[at + 1]:
                assert tokens[at + 1] == targets[at]
            rows.append((bytes(tokens[start:at].astype(np.uint8)).decode(), int(targets[at]), int(shots[at])))
            start = at + 2
        found.append(rows)
    return found


def test_labels_are_consistent_within_a_sequence_and_new_in_each(tmp_path: Path) -> None:
    made = task(train=corpus(tmp_path, "a", 20), classes=3)
    labels = set()
    for rows in episodes(made, "train"):
        table: dict[str, int] = {}
        counts: dict[str, int] = {}
        for query, label, shots in rows:
            intent = query.split()[-1]
            assert table.setdefault(intent, label) == label
            assert shots == counts.get(intent, 0)
            counts[intent] = shots + 1
        assert len(set(table.values())) == len(table) <= 3
        labels.add(tuple(sorted(table.items())))
    assert len(labels) == 20


def test_training_and_test_intents_do_not_meet(tmp_path: Path) -> None:
    alone = task(train=corpus(tmp_path, "a", 30))
    seen = {q.split()[-1] for rows in episodes(alone, "train", 60) for q, *_ in rows}
    held = {q.split()[-1] for rows in episodes(alone, "held-out", 60) for q, *_ in rows}
    assert seen
    assert held
    assert not seen & held
    other = task(train=alone.config.train, test=corpus(tmp_path, "b", 5))
    assert {q.split()[-1][0] for rows in episodes(other, "held-out") for q, *_ in rows} == {"b"}
    assert {q.split()[-1][0] for rows in episodes(other, "train") for q, *_ in rows} == {"a"}


def test_content_is_the_fingerprint_not_the_path(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    one, same = task(train=corpus(tmp_path / "x", "a", 30)), task(train=corpus(tmp_path / "y", "a", 30))
    other = task(train=corpus(tmp_path / "y", "b", 30))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.tasks\.intents\.train=null: expected NAME=PATH"):
        task().fingerprint()
    assert "train=null: expected NAME=PATH" in (task().unavailable(400, "held-out") or "")
    there = corpus(tmp_path, "c", 20)
    for key, keys in (("train", {"train": f"clinc150={tmp_path / 'none'}"}),
                      ("test", {"train": there, "test": f"banking77={tmp_path / 'none'}"}),
                      ("test", {"train": there, "test": "bankng77=x"})):  # fmt: skip
        for reading in (task(**keys).fingerprint, lambda keys=keys: episodes(task(**keys), "held-out")):
            with pytest.raises(UsageError, match=rf"^data\.tasks\.intents\.{key}: ") as error:
                reading()
            assert "no such folder or file; expected" in str(error.value) or '"banking77"' in str(error.value)
    few = task(train=corpus(tmp_path, "a", 5), test=corpus(tmp_path, "b", 2))
    for reading in (few.fingerprint, lambda: episodes(few, "held-out")):  # the first is what a run starts with
        with pytest.raises(UsageError, match="there are 2 intents"):
            reading()
    assert "there are 2 intents" in (few.unavailable(400, "held-out") or "")
    with pytest.raises(UsageError, match=r"intents\.labels=300"):
        task(labels=300)
    with pytest.raises(UsageError, match="at least 100 tokens"):
        task().check_length(80)


def test_the_recipe_makes_one_run_an_arm_and_seed_and_says_what_is_missing(tmp_path: Path) -> None:
    def planned(*words: str) -> Plan:
        return make_plan(matrix.find(["intents"]), profiles.chosen(None, ["intents"]), words)

    train, test = (f"data.tasks.intents.{key}=" for key in ("train", "test"))
    made = planned(train + corpus(tmp_path, "a", 20), test + corpus(tmp_path, "b", 5))
    assert [run.config.model.name for run in made.runs()] == ["mosaic-v2", "transformer"] * 3
    for run in made.runs():
        assert run.config.data.tasks_in_mixture() == ["icl", "intents"]
        assert run.config.data.tasks.intents.classes == 2
    for words, said in (
        ((), r"train=null: expected NAME=PATH of files of yours, such as .*"),
        (
            (train + "clinc150=/nowhere",),
            "train: /nowhere: no such folder or file; expected data_full.json of clinc150",
        ),
        (
            (train + corpus(tmp_path, "c", 20), test + f"banking77={tmp_path}"),
            r"test: .*expected train\.csv of banking77",
        ),
    ):
        with pytest.raises(UsageError, match=rf"data\.tasks\.intents\.{said}") as error:
            planned(*words)
        assert "\n" not in str(error.value)
        assert str(error.value).startswith("intents/mosaic: ")
