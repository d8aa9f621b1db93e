"""`mmctl generate` and `mmctl bench generate` as they are typed, on a run trained for a moment on BPE."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from mmctl.cli import bench, generate
from mmctl.config import load
from mmctl.data.tokenizers import FILE, Bytes, run_tokenizer
from mmctl.errors import UsageError
from mmctl.runs import RunFolder
from mmctl.training.run import execute, load_trained

SMALL = [
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "model.ffn_width=16",
    "model.window=8",
    "model.delay_min=2",
    "model.delay_max=8",
    "data.length=16",
    "data.batch=4",
    "training.steps=6",
    "training.warmup=2",
    "training.precision=float32",
    "operation.mlflow=false",
    "evaluation.suites=[persistent]",
    "evaluation.lengths=[1]",
    "evaluation.examples=4",
    "evaluation.minimum_examples=2",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of BPE on a text, one of recall."""
    root = tmp_path_factory.mktemp("generate")
    text = root / "text.txt"
    text.write_text("".join(f"the mosaic of größer memories, number {i}: 記憶 {i * i}\n" for i in range(400)))
    words = [f"data.text={text}", "data.mixture={text: 1}", "data.tokenizer=bpe", "data.vocabulary=300", "name=words"]
    for run in (words, ["data.mixture={recall: 1}", "evaluation.suites=[new-knowledge]", "name=symbols"]):
        own = [w for w in SMALL if w.partition("=")[0] not in {r.partition("=")[0] for r in run}]
        assert execute(load("smoke", [*own, *run]), root / "runs").state == "finished"
    text.unlink()  # a run needs its corpus no more
    return root / "runs"


def run(root: Path, *words: str, stdin: bytes = b"") -> tuple[str, str]:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(generate.generate)
    result = CliRunner().invoke(app, [*words, "--runs", str(root)], input=stdin)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_a_run_keeps_its_tokenizer_and_its_scores_count_bytes(root: Path) -> None:
    folder = RunFolder.find(root, "words")
    tokenizer = run_tokenizer(folder)
    assert json.loads((folder.path / FILE).read_text())["model"]["type"] == "BPE"
    assert folder.provenance()["corpora"]["text"]["tokenizer"] == tokenizer.sha256
    assert folder.config_dict()["data"]["tokenizer"] == "bpe"
    assert folder.config().data.tokenizer == str(folder.path / FILE)
    scores = folder.evaluation("persistent")["scores"]  # type: ignore[index]
    bits, loss = scores["text/bits-per-byte@1x"], scores["text/loss@1x"]
    assert sum(bits["count"]) > 1.2 * sum(loss["count"])  # bytes, and tokens
    assert isinstance(run_tokenizer(RunFolder.find(root, "symbols")), Bytes)


def test_text_and_json_are_the_same_continuation(root: Path) -> None:
    words = ("words", "the mosaic", "--max-tokens", "20", "--temperature", "0.9", "--top-k", "50", "--seed", "3")
    text, _ = run(root, *words)
    made = json.loads(run(root, *words, "--json")[0])
    assert text == made["text"] + "\n"
    tokenizer = run_tokenizer(RunFolder.find(root, "words"))
    assert tokenizer.decode(made["tokens"]) == made["text"]
    assert (len(made["tokens"]), len(made["log_probabilities"]), made["finish"]) == (20, 20, "length")
    assert made["prompt_tokens"] == len(tokenizer.encode("the mosaic"))
    assert all(p < 0 for p in made["log_probabilities"])
    assert run(root, *words[:-1], "4")[0] != text


def test_greedy_text_is_what_the_model_finds_most_likely(root: Path) -> None:
    made = json.loads(run(root, "words", "-", "-n", "5", "--json", stdin="the größer".encode())[0])
    assert made["prompt"] == "the größer"
    folder = RunFolder.find(root, "words")
    model, _, _ = load_trained(folder)
    tokens = run_tokenizer(folder).encode("the größer")
    for token in made["tokens"]:
        assert token == int(model(torch.tensor([tokens]))[0, -1].argmax())
        tokens.append(token)
    stop = made["text"][2:4]
    cut = json.loads(run(root, "words", "the größer", "-n", "5", "--stop", stop, "--json")[0])
    assert (cut["text"], cut["finish"]) == (made["text"][: made["text"].find(stop)], "stop")
    removed = json.loads(run(root, "words", "the größer", "-n", "5", "--remove-long-term", "--json")[0])
    assert removed["log_probabilities"] != made["log_probabilities"]


def test_text_is_shown_piece_by_piece(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Screen(io.StringIO):
        def flush(self) -> None:
            shown.append(self.getvalue())

    monkeypatch.setattr("sys.stdout", Screen())
    generate.generate("symbols", "abc", max_tokens=6, temperature=1.0, runs=root)
    assert len(set(shown)) > 2
    assert all(b.startswith(a) for a, b in itertools.pairwise(shown))


def test_a_run_without_text_says_so_and_makes_no_symbols(root: Path) -> None:
    out, err = run(root, "symbols", "ab", "-n", "40", "--temperature", "2", "--json")
    assert "was trained on no text: recall" in err
    assert max(json.loads(out)["tokens"]) < 256  # the model knows 512


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("words", ""), "TEXT is empty"),
        (("words", "-"), "TEXT is empty"),
        (("words", "x", "--top-p", "0"), "--top-p 0.0"),
        (("words", "x", "--max-tokens", "-3"), "--max-tokens -3"),
        (("wordz", "x"), 'did you mean "words"'),
        (("words", "x", "--device", "tpu"), "expected auto, cpu"),
        (("words", "caf\udce9"), "not UTF-8"),
    ],
)
def test_wrong_input_is_one_clear_line(root: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(root, *words)


def test_bench_generate_reports_ratios_first() -> None:
    words = [
        "generate",
        "--size",
        "smoke",
        "--prompt",
        "20,40",
        "--tokens",
        "3",
        "--rounds",
        "2",
        "--batch",
        "2",
        "--json",
    ]
    result = CliRunner().invoke(bench.app, words)
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    assert [row["prompt"] for row in rows] == [20, 40]
    for row in rows:
        assert list(row)[:3] == ["prompt", "time_ratio", "memory_ratio"]
        ours, theirs = (SimpleNamespace(**row["models"][name]) for name in ("mosaic-v2", "transformer"))
        assert row["time_ratio"] == pytest.approx(theirs.tokens_per_second / ours.tokens_per_second)
        assert row["speedup"]["mosaic-v2"] == pytest.approx(ours.tokens_per_second / ours.recomputed_tokens_per_second)
        config = load("smoke").model
        # Keys and values of one memory (of the attention), float32, in every layer; the ring is fixed.
        assert ours.bytes_per_token == theirs.bytes_per_token == 2 * 4 * config.width * config.layers
        assert ours.fixed_bytes > 2 * 4 * config.width * config.layers * config.window
        assert theirs.fixed_bytes == 0


def test_bench_generate_refuses_nonsense() -> None:
    with pytest.raises(UsageError, match="--prompt"):
        bench.app(["generate", "--prompt", "12;3"], standalone_mode=False)
