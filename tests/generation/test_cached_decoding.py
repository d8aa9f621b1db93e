"""Decoding from a cache gives what a whole forward pass gives, whatever the pieces, documents, padding and settings."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from decoding_models import AXES, random_tokens, small_model
from torch import Tensor

from mmctl.bench.measure import peak_allocated
from mmctl.data.tokenizers import Bytes
from mmctl.errors import MmctlError
from mmctl.generation import Sampling, common_beginning, generate, left_padded, read_beginning
from mmctl.kernels import key_scan
from mmctl.kernels.folding import Scratch
from mmctl.models import MODELS
from mmctl.models.base import Model
from mmctl.models.cache import RING_SLACK, scan_step

LENGTH = 130  # past h = 24, m = 8 and a ring's buffer
PIECES = {
    "one by one": [1] * LENGTH,
    "prompt, then one by one": [60] + [1] * 70,
    "a few at a time": [3] * 43 + [1],
    "uneven": [1, 36, 2, 70, 1, 20],
}


def in_pieces(model: Model, tokens: Tensor, sizes: list[int], documents: Tensor | None = None) -> Tensor:
    cache = model.init_cache(len(tokens))
    parts = tokens.split(sizes, dim=1)
    ids = [None] * len(sizes) if documents is None else documents.split(sizes, dim=1)
    return torch.cat([model.step(part, cache, documents=some) for part, some in zip(parts, ids, strict=True)], dim=1)


def some_documents() -> Tensor:
    """A boundary inside a piece, two next to each other, and one where a piece begins."""
    documents = torch.zeros(2, LENGTH, dtype=torch.int32)
    documents[0, 37:], documents[0, 38:], documents[0, 100:] = 1, 2, 7
    documents[1, 60:] = 3
    return documents


def test_every_registered_model_is_tested_here() -> None:
    own = {name for name, where in MODELS.items() if isinstance(where, str)}
    assert own == {changes.get("name", "mosaic-v2") for changes in AXES.values()}


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("axis", AXES)
def test_cached_logits_are_those_of_a_whole_pass(axis: str, pieces: str) -> None:
    model = small_model(axis)
    tokens = random_tokens(2, LENGTH)
    with torch.no_grad():
        whole, divided = model(tokens), model(tokens, documents=some_documents())
    assert (whole - divided).abs().max() > 1e-3  # the documents matter
    torch.testing.assert_close(in_pieces(model, tokens, PIECES[pieces]), whole, rtol=0, atol=1e-10)
    again = in_pieces(model, tokens, PIECES[pieces], some_documents())
    torch.testing.assert_close(again, divided, rtol=0, atol=1e-10)


@pytest.mark.parametrize("axis", ["mosaic-v2", "masks", "long-only"])
def test_m_and_removal_are_those_in_force_when_the_cache_was_made(axis: str) -> None:
    model = small_model(axis)
    tokens = random_tokens(2, LENGTH)
    for changes in [{"delay": 31}] + [{"remove_long_term": True}] * (axis != "long-only"):
        with torch.no_grad(), model.evaluation_changes(**changes):
            whole, cache = model(tokens), model.init_cache(2)
        parts = [model.step(part, cache) for part in tokens.split(13, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-10)
        assert (whole - model(tokens)).abs().max() > 1e-3


@pytest.mark.parametrize("axis", AXES)
def test_left_padding_touches_nothing(axis: str) -> None:
    """Prompts of different lengths in one batch, continued token by token: each as if it were alone."""
    model = small_model(axis)
    rows = random_tokens(3, 70).tolist()
    lengths = [40, 1, 23]
    tokens, documents = left_padded([row[:n] for row, n in zip(rows, lengths, strict=True)], "cpu")
    cache = model.init_cache(3)
    got = [model.prefill(tokens, cache, documents=documents, chunk=16)]
    for i in range(30):
        got.append(model.step(torch.tensor([[row[n + i]] for row, n in zip(rows, lengths, strict=True)]), cache)[:, -1])
    together = torch.stack(got, dim=1)
    for row, n, found in zip(rows, lengths, together, strict=True):
        with torch.no_grad():
            alone = model(torch.tensor([row[: n + 30]]))[0, n - 1 :]
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("axis", AXES)
def test_greedy_tokens_in_float32_are_those_of_recomputation(axis: str) -> None:
    model = small_model(axis, torch.float32)
    prompts = [random_tokens(1, n, seed=n)[0].tolist() for n in (5, 40)]
    made = generate(model, Bytes(), prompts, max_tokens=30)
    with torch.inference_mode():
        for prompt, continuation in zip(prompts, made, strict=True):
            tokens = torch.tensor([prompt])
            for _ in range(30):
                tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], dim=1)
            assert continuation.tokens == tokens[0, len(prompt) :].tolist()
    assert len({token for continuation in made for token in continuation.tokens}) > 4  # a constant would prove little


@pytest.mark.parametrize("axis", AXES)
def test_what_prompts_share_is_read_once_and_changes_nothing(axis: str) -> None:
    model = small_model(axis, torch.float32)
    head = random_tokens(1, 90)[0].tolist()
    prompts = [head + random_tokens(1, n, seed=n)[0].tolist() for n in (4, 6, 1, 7, 7)]
    shared = common_beginning(prompts)
    assert shared == head
    beginning = read_beginning(model, shared)
    plain = generate(model, Bytes(), prompts, max_tokens=5, batch=5)
    for batch in (2, 5):
        found = generate(model, Bytes(), prompts, max_tokens=5, batch=batch, beginning=beginning)
        assert [c.tokens for c in found] == [c.tokens for c in plain]
        for a, b in zip(found, plain, strict=True):
            assert a.log_probabilities == pytest.approx(b.log_probabilities, abs=1e-5)


def test_the_common_beginning_leaves_each_prompt_a_token() -> None:
    assert common_beginning([[1, 2, 3], [1, 2, 3, 4]]) == [1, 2]
    assert common_beginning([[1, 2, 9], [1, 5, 9], [1, 2, 3]]) == [1]
    assert common_beginning([[1, 2]]) == [1]
    assert common_beginning([[1], [1, 2]]) == common_beginning([]) == []
    model = small_model("mosaic-v2")
    with pytest.raises(ValueError, match="prompt 1 does not go on"):
        generate(model, Bytes(), [[1, 2, 3], [1, 2]], beginning=read_beginning(model, [1, 2]))


def test_a_prompt_ends_when_its_text_will_do() -> None:
    model = small_model("mosaic-v2", torch.float32)
    prompts = [random_tokens(1, n, seed=n)[0].tolist() for n in (5, 9)]
    whole = generate(model, Bytes(), prompts, max_tokens=20)
    found = generate(model, Bytes(), prompts, max_tokens=20, enough=lambda text: len(text) >= 3)
    for a, b in zip(found, whole, strict=True):
        assert a.tokens == b.tokens[: len(a.tokens)]
        assert len(a.text) >= 3
        assert (a.finish, b.finish) == ("stop", "length")
        assert len(a.tokens) < 20


def test_prefill_in_chunks_and_the_last_logits() -> None:
    model = small_model("mosaic-v2")
    tokens = random_tokens(2, LENGTH)
    with torch.no_grad():
        last = model(tokens)[:, -1]
    for chunk in (LENGTH + 1, 50, RING_SLACK + 1, 7):
        torch.testing.assert_close(model.prefill(tokens, model.init_cache(2), chunk=chunk), last, rtol=0, atol=1e-10)


@pytest.mark.parametrize("axis", AXES)
def test_rows_of_a_cache_can_be_chosen_and_repeated(axis: str) -> None:
    model = small_model(axis)
    tokens = random_tokens(3, 50)
    cache = model.init_cache(3)
    model.prefill(tokens[:, :40], cache)
    cache.select(torch.tensor([2, 0, 2]))
    with torch.no_grad():
        whole = model(tokens[[2, 0, 2]])[:, 40:]
    torch.testing.assert_close(model.step(tokens[[2, 0, 2], 40:], cache), whole, rtol=0, atol=1e-10)


def test_memory_held_is_long_term_pairs_and_a_ring() -> None:
    """Per token: keys and values of the long-term memory; all else stays as it is. Without long-term memory nothing
    grows."""
    for axis, each in (
        ("mosaic-v2", 2 * 2 * 32 * 8),
        ("short-only", 0),
        ("transformer", 2 * 2 * 32 * 8),
        ("mamba2", 0),
    ):
        model, cache = small_model(axis), small_model(axis).init_cache(1)
        held = []
        for _ in range(4):
            model.prefill(random_tokens(1, 100), cache)
            held.append(cache.bytes())
        assert [b - a for a, b in itertools.pairwise(held)] == [100 * each] * 3
        before = copy.deepcopy(cache)
        model.step(random_tokens(1, 1), cache)
        assert cache.bytes() - before.bytes() == each
        assert cache.length == before.length + 1


@pytest.mark.parametrize("axis", ["mosaic-v2", "mosaic-v1", "transformer", "masks"])
def test_prefill_needs_memory_in_proportion_to_its_length(axis: str) -> None:
    """Beside the pairs themselves: a matrix of T x T numbers would quadruple where the length doubles."""
    model = small_model(axis, torch.float32)
    beside = []
    for length in (1024, 2048):
        tokens, cache = random_tokens(1, length), model.init_cache(1, capacity=length)
        Scratch.clear()  # buffers that an earlier call left would not be counted
        peak = peak_allocated(
            lambda tokens=tokens, cache=cache: model.prefill(tokens, cache, chunk=256), torch.device("cpu")
        )
        beside.append(peak - cache.bytes())
    assert 0 < beside[1] < 2.2 * beside[0]


@pytest.mark.parametrize("pieces", [[1] * 40, [9, 11, 20]])
def test_gates_of_any_size_lose_nothing_at_a_step_or_a_document(pieces: list[int]) -> None:
    """The key recurrence in log space: documents whose gates differ by exp(2000), in float32."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 40, 8, generator=generator)
    gate = 30 * torch.randn(2, 3, 40, generator=generator)
    decay = -3 * torch.rand(2, 3, 40, generator=generator)
    documents = torch.zeros(2, 40, dtype=torch.int32)
    documents[0, 9:], documents[1, 20:] = 1, 1
    gate -= 2000 * documents[:, None]
    whole = key_scan(x, gate, decay, documents=documents, path="reference")
    state, keys, place = None, [], 0
    for count in pieces:
        some = slice(place, place + count)
        before = documents[:, place - 1 : place] if place else None
        context = {"documents": documents[:, some], "before": before}
        piece, state = scan_step(x[:, :, some], gate[:, :, some], decay[:, :, some], state, context)
        keys.append(piece)
        place += count
    torch.testing.assert_close(torch.cat(keys, dim=2), whole, rtol=0, atol=2e-5)


def test_wrong_calls_name_what_is_wrong() -> None:
    model = small_model("mosaic-v2")
    cache = model.init_cache(2)
    with pytest.raises(ValueError, match=r"tokens: expected \(2"):
        model.step(random_tokens(3, 4), cache)
    with pytest.raises(ValueError, match="documents: expected"):
        model.step(random_tokens(2, 4), cache, documents=torch.zeros(2, 5, dtype=torch.int32))
    model.step(random_tokens(2, 4), cache)
    with pytest.raises(ValueError, match="documents: the tokens before"):
        model.step(random_tokens(2, 1), cache, documents=torch.zeros(2, 1, dtype=torch.int32))
    model.blocks.append(torch.nn.Identity())
    with pytest.raises(MmctlError, match='model "mosaic-v2" cannot decode'):
        model.init_cache(1)


def test_what_follows_a_prompt_does_not_depend_on_the_batch() -> None:
    model = small_model("mosaic-v2", torch.float32)
    prompts = [random_tokens(1, n, seed=n)[0].tolist() for n in (9, 30, 4, 17, 17)]
    for sampling in (Sampling(), Sampling(temperature=1.0, top_p=0.9, seed=3)):
        one = generate(model, Bytes(), prompts, max_tokens=30, sampling=sampling, batch=1)
        many = generate(model, Bytes(), prompts, max_tokens=30, sampling=sampling, batch=5)
        assert [c.tokens for c in one] == [c.tokens for c in many]
        for a, b in zip(one, many, strict=True):
            assert a.log_probabilities == pytest.approx(b.log_probabilities, abs=1e-5)
