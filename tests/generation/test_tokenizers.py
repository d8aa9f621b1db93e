"""Tokenizers: what goes in comes out, letters stream whole, bytes add up, and BPE is a function of the training
split."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.config import identity, load
from mmctl.data import build_task, fingerprint, subword
from mmctl.data.config import DataConfig
from mmctl.data.task import IGNORE
from mmctl.data.tokenizers import FILE, Bytes, Tokenizer, load_tokenizer
from mmctl.errors import UsageError

WORDS = ["memory", "mosaic", "größer", "naïve", "記憶", "🧩🧠", "retrieval", "the", "a b", "\n", "x" * 9]


def folder_of(path: Path, number: int = 40, seed: int = 0) -> Path:
    path.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    for i in range(number):
        (path / f"{i}.txt").write_text(" ".join(rng.choice(WORDS, 300)), encoding="utf-8")
    return path


def data(path: Path, tokenizer: str = "bpe", vocabulary: int = 400, length: int = 32) -> DataConfig:
    return DataConfig(length=length, text=str(path), mixture={"text": 1.0}, vocabulary=vocabulary, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="module")
def bpe(corpus: Path) -> Tokenizer:
    return load_tokenizer(data(corpus))


@pytest.fixture(scope="module")
def word_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that drops white space and knows few words, unlike BPE of bytes."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"<unk>": 0, "memory": 1, "mosaic": 2, "größer": 5}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("words")
    made.save(str(folder / FILE))
    return folder


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20), st.text(max_size=40))
def test_text_comes_back_and_streams_in_whole_letters_after_any_prompt(bpe: Tokenizer, prompt: str, text: str) -> None:
    for tokenizer in (Bytes(), bpe):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        stream = tokenizer.stream(tokenizer.encode(prompt))
        pieces = [stream.push(token) for token in tokens]
        assert "".join(pieces) + stream.flush() == text
        assert "\ufffd" in text or "\ufffd" not in "".join(pieces)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 399), max_size=30))
def test_any_tokens_stream_to_the_text_they_decode_to(bpe: Tokenizer, tokens: list[int]) -> None:
    """Broken letters included: nothing is lost or said twice, and at most a letter is held back."""
    for tokenizer in (Bytes(), bpe):
        stream = tokenizer.stream()
        assert "".join([*map(stream.push, tokens), stream.flush()]) == tokenizer.decode(tokens)


def test_decoding_byte_level_tokens_is_the_librarys_own(bpe: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        tokens = rng.integers(0, bpe.size, 12).tolist()
        assert bpe.decode(tokens) == bpe.inner.decode(tokens, skip_special_tokens=False)


def test_words_joined_by_their_decoder_stream_with_their_spaces(word_level: Path) -> None:
    tokenizer = subword.load(str(word_level))
    tokens = tokenizer.encode("memory mosaic größer memory")
    for cut in range(4):
        stream = tokenizer.stream(tokens[:cut])
        text = "".join([*map(stream.push, tokens[cut:]), stream.flush()])
        assert tokenizer.decode(tokens[:cut]) + text == "memory mosaic größer memory"


def test_letters_are_given_out_as_soon_as_they_are_whole() -> None:
    stream = Bytes().stream()
    assert [stream.push(b) for b in "aé🧩".encode()] == ["a", "", "é", "", "", "", "🧩"]
    assert stream.push(0xC3) == ""
    assert stream.push(300) == "\ufffd<300>"
    assert stream.flush() == ""


def test_bytes_that_are_no_utf8_survive_as_bytes_only(bpe: Tokenizer) -> None:
    text = b"caf\xe9 x".decode("utf-8", "surrogateescape")
    assert bytes(Bytes().encode(text)) == b"caf\xe9 x"
    with pytest.raises(UsageError, match=r"not UTF-8 \(byte 0xe9 at letter 3\)"):
        bpe.encode(text)


def test_every_byte_of_a_document_is_counted_once(bpe: Tokenizer, word_level: Path) -> None:
    documents = ["größer 記憶  🧩 memory\n\n mosaic ", "   ", "x", "memory größer"]
    contents = [d.encode() for d in documents]
    for tokenizer in (Bytes(), bpe, subword.load(str(word_level))):
        for (tokens, sizes), content in zip(tokenizer.documents(contents), contents, strict=True):
            assert len(tokens) == len(sizes)
            assert sizes.sum() == (len(content) if len(tokens) else 0)
            assert (sizes >= 0).all()
    (_, sizes), *_ = bpe.documents(["größer memory".encode()])
    assert sizes.tolist() == [len(bpe.decode([t]).encode()) for t in bpe.encode("größer memory")]
    words = subword.load(str(word_level))
    assert words.size == 6  # numbers below this, though only four are taken
    found = words.documents([b"  memory x ", "größer mosaic".encode()])
    assert [sizes.tolist() for _, sizes in found] == [[8, 3], [8, 7]]


def test_bpe_is_a_function_of_the_training_split(corpus: Path, tmp_path: Path, bpe: Tokenizer) -> None:
    code = (
        "import sys\nfrom mmctl.data.config import DataConfig\nfrom mmctl.data.tokenizers import load_tokenizer\n"
        "print(load_tokenizer(DataConfig(text=sys.argv[1], mixture={'text': 1.0}, vocabulary=400, tokenizer='bpe')).sha256)"
    )
    for path in (corpus, folder_of(tmp_path / "copy")):
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == bpe.sha256
    task = build_task("text", data(tmp_path / "copy"))
    held, train = task.corpus.held_out.names[0], task.corpus.train.names[0]
    before = fingerprint(data(tmp_path / "copy"))["text"]
    (tmp_path / "copy" / held).write_text("quite another text " * 50)
    after = fingerprint(data(tmp_path / "copy"))["text"]
    assert (before["tokenizer"], before["sha256"]) == (bpe.sha256, fingerprint(data(corpus))["text"]["sha256"])
    assert after["tokenizer"] == bpe.sha256  # held-out text teaches the tokenizer nothing
    assert after["sha256"] != before["sha256"]
    (tmp_path / "copy" / train).write_text("quite another text " * 50)
    assert fingerprint(data(tmp_path / "copy"))["text"]["tokenizer"] != bpe.sha256


def test_bpe_learns_to_write_less_and_keeps_to_its_size(corpus: Path, bpe: Tokenizer) -> None:
    text = "memory mosaic größer 記憶 retrieval"
    assert bpe.size <= 400
    assert len(bpe.encode(text)) < len(text.encode()) / 3
    assert load_tokenizer(data(corpus, vocabulary=300)).size == 300


def test_windows_hold_tokens_and_the_bytes_of_each_target(corpus: Path, bpe: Tokenizer) -> None:
    task = build_task("text", data(corpus))
    batch = task.sample(np.random.default_rng(0), 8, 32, "held-out")
    assert batch.tokens.max() >= 256  # merged ones
    assert batch.tokens.max() < bpe.size
    row = int(np.flatnonzero(batch.labelled.all(axis=1))[0])
    follows = [*batch.tokens[row, 1:].tolist(), int(batch.targets[row, -1])]
    assert batch.targets[row].tolist() == follows
    assert bpe.decode(batch.tokens[row].tolist()).strip("\ufffd") in (corpus_text(task))
    own = [[len(bpe.bytes_of(token)) for token in row] for row in np.where(batch.labelled, batch.targets, 0).tolist()]
    assert (batch.extras["bytes"] == own)[batch.labelled].mean() > 0.98  # halves of letters are counted with the first
    losses = np.random.default_rng(1).random(batch.tokens.shape)
    scores = task.scores(batch, losses, losses > 0.5)
    kept = batch.targets != IGNORE
    nats, size = losses[kept].sum(), batch.extras["bytes"][kept].sum()
    assert size > 1.5 * kept.sum()
    assert scores["bits-per-byte"].value == pytest.approx(nats / size / math.log(2))
    assert scores["loss"].value == pytest.approx(nats / kept.sum())
    assert task.notes(32)["held-out tokens"] == len(task.tokens("held-out").stream)


def corpus_text(task: object) -> str:
    return task.corpus.held_out.stream.tobytes().decode()  # type: ignore[attr-defined]


def test_no_token_spans_two_documents(corpus: Path) -> None:
    task = build_task("text", data(corpus))
    part, tokens = task.corpus.train, task.tokens("train")
    sizes = np.add.reduceat(tokens.sizes, tokens.starts)
    assert sizes.tolist() == np.diff([*part.starts, len(part.stream)]).tolist()


def test_identity_takes_the_tokenizers_content_not_its_name(corpus: Path, tmp_path: Path, bpe: Tokenizer) -> None:
    def of(*words: str) -> str:
        return identity(load("smoke", ["data.mixture={text: 1}", f"data.text={corpus}", *words]))

    own = of("data.tokenizer=bpe", "data.vocabulary=400")
    bpe.save(tmp_path)
    assert json.loads((tmp_path / FILE).read_text())["model"]["type"] == "BPE"
    for name in (tmp_path, tmp_path / FILE):
        assert of(f"data.tokenizer={name}", "data.vocabulary=400") == own
    assert of("data.vocabulary=400") != own
    assert of("data.vocabulary=400", "data.tokenizer=bytes") == of("data.vocabulary=400")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("byte", 'did you mean "bytes"'),
        ("BPE", 'did you mean "bpe"'),
        ("/nowhere/tokenizer.json", "no such file or folder"),
        ("./nowhere", "no such file or folder"),
        ("HOLLOW", "the folder holds no tokenizer.json"),
        ("BROKEN", "not a tokenizer.json"),
        ("mmctl-tests/of-no-such-name", "not to be had from the Hugging Face hub"),
        ("WORDS", "data.vocabulary=5: expected at least 6"),
        ("bpe", "data.vocabulary=5: expected more than 256"),
    ],
)
def test_a_tokenizer_that_cannot_be_had_is_one_clear_line(
    corpus: Path, tmp_path: Path, word_level: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # a test asks no server
    (tmp_path / "broken.json").write_text("{}")
    path = {"HOLLOW": tmp_path, "BROKEN": tmp_path / "broken.json", "WORDS": word_level}.get(name, name)
    with pytest.raises(UsageError) as error:
        fingerprint(data(corpus, str(path), vocabulary=5))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(("data.tokenizer=", "data.vocabulary="))


def test_a_tokenizer_without_text_to_read_is_refused() -> None:
    with pytest.raises(UsageError, match="the mixture reads no text"):
        load("smoke", ["data.tokenizer=bpe", "data.mixture={recall: 1}"])
