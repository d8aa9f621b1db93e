"""passkey and docs-qa: prompts read back as text, answers found in them, whole answers scored, depths where they are
said."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mmctl.data.config import DataConfig
from mmctl.data.docs_qa import INSTRUCTION, DocsQA, DocsQAConfig
from mmctl.data.passkey import GRASS, Passkey, PasskeyConfig
from mmctl.data.task import Batch
from mmctl.errors import UsageError


def texts(batch: Batch) -> list[tuple[str, str]]:
    """(Everything up to the answer, the answer) of each row, from tokens and labels."""
    found = []
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        at = np.flatnonzero(targets >= 0)
        assert at.tolist() == list(range(at[0], at[0] + len(at)))
        assert np.array_equal(tokens[at[1:]], targets[at[:-1]])  # the answer itself is what is read on
        assert not tokens[at[-1] + 2 :].any()
        found.append(
            (bytes(tokens[: at[0] + 1].astype(np.uint8)).decode(), bytes(targets[at].astype(np.uint8)).decode())
        )
    return found


def passkey(variant: str) -> Passkey:
    return Passkey(PasskeyConfig(variant), DataConfig())


def docs(**keys: object) -> DocsQA:
    return DocsQA(DocsQAConfig(**keys), DataConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [450, 1024, 3000])
@pytest.mark.parametrize("variant", ["stuffed-mamba", "landmark"])
def test_the_pass_key_stands_where_it_is_said(variant: str, length: int) -> None:
    task = passkey(variant)
    task.check_length(length)
    batch = task.sample(np.random.default_rng(0), 40, length, "held-out")
    for (prompt, answer), depth in zip(texts(batch), batch.extras["depth"].max(axis=1), strict=True):
        match = re.search(r"[Tt]he pass ?key is (\d+)\. Remember it\. (\d+) is the pass ?key\.", prompt)
        assert match
        assert match[1] == match[2] == answer
        assert prompt.endswith("is ")
        assert len(prompt) + len(answer) <= length + 1
        assert len(prompt) + len(answer) > length - len(GRASS) - 1  # as long as it fits
        if length == 3000:
            assert abs(match.start() / len(prompt) - (depth + 0.5) / 5) < 0.2
    if variant == "stuffed-mamba":
        assert all(len(answer) == 5 for _, answer in texts(batch))


def test_stuffed_mamba_blocks_are_whole() -> None:
    prompt = texts(passkey("stuffed-mamba").sample(np.random.default_rng(1), 1, 1000, "train"))[0][0]
    lines = prompt.split("\n")
    assert lines[0].endswith("memorize it.")
    assert [line for line in lines[2:-2] if line != GRASS and "passkey is" not in line] == []


def test_too_short_for_a_pass_key_is_said_with_the_length_that_fits() -> None:
    task = passkey("landmark")
    with pytest.raises(UsageError, match=f"needs at least {task.shortest}"):
        task.check_length(task.shortest - 1)
    task.check_length(task.shortest)
    texts(task.sample(np.random.default_rng(0), 30, task.shortest, "train"))


@pytest.mark.parametrize("skeleton", ["short", "ruler"])
@pytest.mark.parametrize("sentences", [1, 2, 5])
def test_answers_stand_in_the_document_asked_about_and_nowhere_else(skeleton: str, sentences: int) -> None:
    task = docs(skeleton=skeleton, sentences=sentences)
    batch = task.sample(np.random.default_rng(0), 40, 1600, "held-out")
    n = task.documents(1600)
    for prompt, answer in texts(batch):
        documents = re.findall(r"Document (\d+):\n(.*)", prompt)
        assert [int(i) for i, _ in documents] == list(range(1, n + 1))
        names = [text.split()[0] for _, text in documents]
        assert len(set(names)) == n
        asked = re.search(r"Question: \w+ does (\w+) .*\?\n Answer:$", prompt)
        assert asked
        (text,) = (text for _, text in documents if text.startswith(asked[1] + " "))
        assert text.count(".") == sentences
        assert answer == f" {answer.strip()}\n"
        assert f" {answer.strip()}." in text
        assert prompt.count(INSTRUCTION) == (2 if skeleton == "ruler" else 0)


def test_positions_of_the_document_asked_about() -> None:
    def places(position: str) -> np.ndarray:
        task = docs(position=position)
        rows = []
        for prompt, _ in texts(task.sample(np.random.default_rng(0), 60, 900, "held-out")):
            name = re.search(r"Question: \w+ does (\w+) ", prompt)[1]  # type: ignore[index]
            rows.append([t.split()[0] for _, t in re.findall(r"Document (\d+):\n(.*)", prompt)].index(name))
        return np.array(rows)

    n = docs().documents(900)
    assert len(set(places("ruler"))) == 1
    assert np.array_equal(np.diff(places("sweep")) % n, np.ones(59))
    assert set(places("uniform")) == set(range(n))


def test_a_whole_answer_is_right_when_every_byte_is() -> None:
    task = docs()
    batch = task.sample(np.random.default_rng(0), 30, 600, "held-out")
    correct = batch.labelled.copy()
    first = batch.labelled.argmax(axis=1)
    correct[:10, :] = False  # ten rows all wrong
    correct[np.arange(10, 20), first[10:20]] = False  # ten with one byte wrong
    scores = task.scores(batch, np.ones(batch.tokens.shape), correct)
    assert scores["accuracy"].value == pytest.approx(1 / 3)
    assert scores["accuracy"].count.sum() == 30
    assert scores["loss"].value == 1
    assert sum(int(scores[f"accuracy-depth{d}"].count.sum()) for d in range(5)) == 30
    assert sum(int(scores[f"accuracy-depth{d}"].total.sum()) for d in range(5)) == 10


def test_wrong_keys_are_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r'passkey\.variant="landmarks".*landmark'):
        passkey("landmarks")
    with pytest.raises(UsageError, match=r'docs_qa\.position="swep".*sweep'):
        docs(position="swep")
    with pytest.raises(UsageError, match=r"sentences=6"):
        docs(sentences=6)
    with pytest.raises(UsageError, match="two documents needs at least"):
        docs().check_length(60)
