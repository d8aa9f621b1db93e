"""`mmctl data inspect`: what it shows is what is trained on, and reads as its task says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from inprocess import mmctl

from mmctl.cli.data import rendered
from mmctl.config import load
from mmctl.data import build_task
from mmctl.data.inspection import inspect
from mmctl.data.mixture import Mixture

MIXTURE = "data.mixture={recall: 1, icl: 1, facts: 2}"


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_examples_are_the_first_sequences_of_training(split: str) -> None:
    config = load("smoke", [MIXTURE])
    found = inspect(config, split)  # type: ignore[arg-type]
    batch = Mixture(config.data, config.seed).batch(0, split)  # type: ignore[arg-type]
    for number, name in enumerate(batch.names):
        first = int(np.flatnonzero(batch.task == number)[0])
        example = found["tasks"][name]["example"]
        if name != "facts":  # its rows depend on how many are drawn at once
            assert len(example["tokens"]) == config.data.length
        assert sum(t is not None for t in example["targets"]) == int((batch.targets[first] >= 0).sum())
    assert found["tasks"]["facts"]["proportion"] == 0.5
    assert found["tasks"]["facts"]["sequences_per_step"] == 8
    assert found["tokens"] == config.training.steps * config.data.batch * config.data.length


def test_words_say_what_tokens_are() -> None:
    """Every label reads as what its task asks for: the value of that key, the object of that fact, a label."""
    found = inspect(load("smoke", [MIXTURE]))["tasks"]
    recall = found["recall"]["example"]
    pairs = dict(zip(recall["words"][0:16:2], recall["words"][1:16:2], strict=True))
    asked = [(w, t) for w, t in zip(recall["words"], recall["target_words"], strict=True) if t is not None]
    assert len(asked) == 8
    assert all(pairs[key] == value for key, value in asked)
    assert all(k[0] == "k" and v[0] == "v" for k, v in pairs.items())
    for task, before, after in (("facts", "b", "c"), ("icl", ":", "y")):
        example = found[task]["example"]
        labelled = [(w, t) for w, t in zip(example["words"], example["target_words"], strict=True) if t is not None]
        assert labelled
        assert all(w[0] == before and t[0] == after for w, t in labelled)


def test_every_token_has_a_word_of_its_own() -> None:
    config = load("smoke", [MIXTURE])
    for name in config.data.tasks_in_mixture():
        task = build_task(name, config.data)
        example = inspect(config)["tasks"][name]["example"]
        words = {token: task.word(token) for token in example["tokens"]}
        assert len(set(words.values())) == len(words)


def test_text_reads_as_text_with_its_corpus_and_ends_of_documents_marked(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(f"document {number}\n" * (number + 1))
    words = ["data.mixture={text: 1}", f"data.text={tmp_path}"]
    found = inspect(load("smoke", words))["tasks"]["text"]
    parts = found["corpus"]
    assert parts["train"]["documents"] + parts["held-out"]["documents"] == 30
    total = sum(p.stat().st_size for p in tmp_path.glob("*.txt"))
    assert parts["train"]["bytes"] + parts["held-out"]["bytes"] == total
    assert (
        parts["train"]["quartiles_bytes"][0]
        <= parts["train"]["quartiles_bytes"][2]
        <= parts["train"]["quartiles_bytes"][4]
    )
    example = found["example"]
    text = rendered(example, 128)
    assert "document" in text
    ends = sum(t is None for t in example["targets"])
    assert ends == max(example["documents"] or [0]) or ends == max(example["documents"]) + 1
    assert text.count("|") == ends
    assert "\n" not in text


def test_the_command_prints_and_json_is_pure() -> None:
    done = mmctl("data", "inspect", "smoke", MIXTURE, "--tokens", "24")
    assert done.code == 0
    assert "recall, one train sequence (its first 24 tokens):" in done.out
    assert "  reads:  k" in done.out
    found = json.loads(mmctl("data", "inspect", "smoke", MIXTURE, "--held-out", "--json").out)
    assert (found["split"], list(found["tasks"])) == ("held-out", ["facts", "recall", "icl"])
    assert len(found["tasks"]["recall"]["example"]["tokens"]) == 128


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["smok"], 'did you mean "smoke"'),
        (["smoke", "data.text=/no/such/folder", "data.mixture={text: 1}"], '"/no/such/folder": no such file or folder'),
        (["smoke", "data.mixture.recal=1"], 'did you mean "recall"'),
        (["smoke", "lab"], '"lab": expected key=value (a preset, if any, comes first)'),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], told: str) -> None:
    done = mmctl("data", "inspect", *words, "--json")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert told in done.err
