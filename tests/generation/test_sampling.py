"""Sampling, stop strings and log-likelihoods: distributions, seeds, pieces and batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoding_models import AXES, random_tokens, small_model
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.data.tokenizers import Bytes
from mmctl.errors import MmctlError, UsageError
from mmctl.generation import Sampling, generate, left_padded, log_likelihoods
from mmctl.generation.sampling import choose, log_probability
from mmctl.generation.stopping import Stopper
from mmctl.models.base import Model

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2]))


def drawn(sampling: Sampling, logits: np.ndarray = LOGITS, number: int = 4000) -> np.ndarray:
    rng = sampling.generator(0)
    return np.bincount([choose(logits, sampling, rng) for _ in range(number)], minlength=len(logits)) / number


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0), [0.1, 0.4, 0.05, 0.25, 0.2]),
        (Sampling(0.5), [0.01, 0.16, 0.0025, 0.0625, 0.04]),  # squares
        (Sampling(1.0, top_k=2), [0, 0.4, 0, 0.25, 0]),
        (Sampling(1.0, top_p=0.65), [0, 0.4, 0, 0.25, 0]),  # reached exactly by the first two
        (Sampling(1.0, top_p=0.66), [0, 0.4, 0, 0.25, 0.2]),
        (Sampling(1.0, top_k=3, top_p=0.8), [0, 0.4, 0, 0.25, 0.2]),  # 0.65 / 0.85 of the three is not yet 0.8
        (Sampling(1.0, top_k=3, top_p=0.7), [0, 0.4, 0, 0.25, 0]),
        (Sampling(1.0, top_p=1e-9), [0, 1, 0, 0, 0]),
        (Sampling(1e-6), [0, 1, 0, 0, 0]),
        (Sampling(0.0), [0, 1, 0, 0, 0]),
        (Sampling(1.0, top_k=99), [0.1, 0.4, 0.05, 0.25, 0.2]),
    ],
)
def test_draws_follow_the_distribution(sampling: Sampling, expected: list[float]) -> None:
    wanted = np.array(expected) / sum(expected)
    found = drawn(sampling)
    assert (found[wanted == 0] == 0).all()
    assert np.abs(found - wanted).max() < 0.03  # four standard deviations of 4,000 draws


def test_extreme_logits_do_not_overflow() -> None:
    logits = np.array([1e4, 0.0, -1e4])
    assert drawn(Sampling(1e-3), logits, 50)[0] == 1
    assert log_probability(logits, 2) == -2e4


def test_the_lowest_of_equal_tokens_is_taken_greedily() -> None:
    assert choose(np.zeros(5), Sampling(), np.random.default_rng(0)) == 0


def test_seeds_decide_and_no_global_generator_is_touched() -> None:
    model, prompt = small_model("mosaic-v2", torch.float32), [[1, 2, 3]]
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002 - read, not drawn from

    def tokens(seed: int) -> list[int]:
        return generate(model, Bytes(), prompt, max_tokens=20, sampling=Sampling(1.0, seed=seed))[0].tokens

    assert tokens(5) == tokens(5) != tokens(6)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


def test_recorded_log_probabilities_are_those_of_scoring() -> None:
    model, prompt = small_model("mosaic-v2", torch.float32), random_tokens(1, 12)[0].tolist()
    (made,) = generate(model, Bytes(), [prompt], max_tokens=25, sampling=Sampling(1.3, top_k=50), allowed=256)
    assert max(made.tokens) < 256
    (score,) = log_likelihoods(model, [(prompt, made.tokens)])
    assert sum(made.log_probabilities) == pytest.approx(score.log_likelihood, rel=1e-6)
    assert not score.greedy
    (greedy,) = generate(model, Bytes(), [prompt], max_tokens=10)
    assert log_likelihoods(model, [(prompt, greedy.tokens)])[0].greedy


@settings(max_examples=200, deadline=None)
@given(st.text("ab\n", max_size=30), st.lists(st.text("ab\n", max_size=4), max_size=3), st.lists(st.integers(1, 5)))
def test_stop_strings_cut_at_the_first_whatever_the_pieces(text: str, stop: list[str], sizes: list[int]) -> None:
    stopper, given_out, rest = Stopper(stop), "", text
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s and s in text]
    expected = text[: min(ends)[1]] if ends else text
    for size in [*sizes, len(text)]:
        given_out += stopper.push(rest[:size])
        rest = rest[size:]
        read = text[: len(text) - len(rest)]
        assert expected.startswith(given_out)  # never a letter too many
        held = len(read) - len(given_out)
        assert stopper.stopped or held < max([1, *map(len, stop)])  # nor one too late
    assert given_out + stopper.flush() == expected
    assert stopper.stopped == bool(ends)


class Script(torch.nn.Module):
    """Stands in for a model: says the same text whatever it reads."""

    vocabulary = 256

    def __init__(self, text: str) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1, 1)
        self.text, self.said = text.encode(), 0

    def init_cache(self, batch: int, capacity: int) -> None:
        return None

    def prefill(self, tokens: torch.Tensor, cache: None, documents: None) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor([self.text[self.said]]), 256) * 9.0

    def step(self, tokens: torch.Tensor, cache: None) -> torch.Tensor:
        assert int(tokens) == self.text[self.said]
        self.said += 1
        return self.prefill(tokens, cache, None).unsqueeze(1)


@pytest.mark.parametrize(
    ("stop", "limit", "text", "tokens", "finish"),
    [
        (["END"], 99, "größer E", 13, "stop"),
        (["ZZ", " E"], 99, "größer", 10, "stop"),
        ([], 8, "größer", 8, "length"),
        (["END"], 10, "größer E", 10, "length"),  # what might have become a stop string is given out
        ([], 3, "gr\ufffd", 3, "length"),
        (["g"], 99, "", 1, "stop"),
        ([], 0, "", 0, "length"),
    ],
)
def test_text_ends_before_a_stop_string_and_comes_in_order(
    stop: list[str], limit: int, text: str, tokens: int, finish: str
) -> None:
    pieces: list[str] = []
    (made,) = generate(
        Script("größer EEND..."),
        Bytes(),
        [[1]],
        max_tokens=limit,
        stop=stop,
        on_text=lambda n, piece: pieces.append(piece),
    )  # type: ignore[arg-type]
    assert (made.text, made.finish) == (text, finish)
    assert "".join(pieces) == text
    assert all(pieces)
    assert len(made.tokens) == len(made.log_probabilities)
    assert len(made.tokens) == tokens


@pytest.mark.parametrize("axis", AXES)
def test_scores_depend_neither_on_the_batch_nor_on_the_side_of_the_padding(axis: str) -> None:
    """float32 log-likelihoods to 1e-6 of their size."""
    model = small_model(axis, torch.float32)
    rng = np.random.default_rng(0)
    requests = [
        (
            rng.integers(0, 300, int(rng.integers(1, 90))).tolist(),
            rng.integers(0, 300, int(rng.integers(1, 12))).tolist(),
        )
        for _ in range(10)
    ]
    alone = [score.log_likelihood for score in log_likelihoods(model, requests, batch_tokens=1)]
    for most in (200, 100_000):
        together = log_likelihoods(model, requests, batch_tokens=most)
        assert [score.log_likelihood for score in together] == pytest.approx(alone, rel=1e-6)
    assert left_scores(model, requests) == pytest.approx(alone, rel=1e-6)
    with torch.inference_mode():
        context, continuation = requests[3]
        logits = model(torch.tensor([[*context, *continuation]]))[0].double().log_softmax(-1)
    expected = sum(float(logits[len(context) - 1 + i, token]) for i, token in enumerate(continuation))
    assert alone[3] == pytest.approx(expected, rel=1e-6)


@torch.inference_mode()
def left_scores(model: Model, requests: list[tuple[list[int], list[int]]]) -> list[float]:
    tokens, documents = left_padded([[*context, *continuation][:-1] for context, continuation in requests], "cpu")
    logits = model(tokens, documents=documents).double().log_softmax(-1)
    return [
        sum(float(row[i - len(continuation), token]) for i, token in enumerate(continuation))
        for row, (_, continuation) in zip(logits, requests, strict=True)
    ]


def test_wrong_settings_and_damaged_models_are_one_clear_line() -> None:
    model = small_model("mosaic-v2", torch.float32)
    for sampling, message in [
        (Sampling(-1.0), "--temperature -1.0"),
        (Sampling(float("nan")), "--temperature nan"),
        (Sampling(1.0, top_k=0), "--top-k 0"),
        (Sampling(1.0, top_p=0.0), "--top-p 0.0"),
        (Sampling(1.0, top_p=1.5), "--top-p 1.5"),
        (Sampling(1.0, seed=-1), "--seed -1"),
    ]:
        with pytest.raises(UsageError, match=message):
            generate(model, Bytes(), [[1]], sampling=sampling)
    with pytest.raises(UsageError, match="prompt 1 is empty"):
        generate(model, Bytes(), [[1], []])
    with pytest.raises(UsageError, match="--max-tokens -1"):
        generate(model, Bytes(), [[1]], max_tokens=-1)
    with pytest.raises(UsageError, match="request 0: an empty context"):
        log_likelihoods(model, [([], [1])])
    with torch.no_grad():
        model.classifier.weight.fill_(float("nan"))
    with pytest.raises(MmctlError, match="not finite"):
        generate(model, Bytes(), [[1]])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [1e-30, 1e-320, 5e-324])
def test_the_lowest_temperatures_take_the_most_likely_token_without_a_warning(temperature: float) -> None:
    logits = np.array([0.5, 3.0, -1e30, 2.9])
    assert choose(logits, Sampling(temperature=temperature), np.random.default_rng(0)) == 1
