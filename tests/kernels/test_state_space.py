"""The recurrence of Mamba-2: chunks against the definition, documents, carried state, sliding window."""

from __future__ import annotations

import pytest
import torch
from closeness import TOLERANCE, assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mmctl.kernels import dispatch, register_flop_formulas, triton_support
from mmctl.kernels.state_space import CHUNK, state_space_scan, state_space_scan_flops, state_space_scan_op


def inputs(length: int, *, batch: int = 2, heads: int = 4, groups: int = 2, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    return {
        "x": normal(batch, heads, length, 5),
        "log_decay": -normal(batch, heads, length).abs(),
        "b": normal(batch, groups, length, 3),
        "c": normal(batch, groups, length, 3),
    }


def some_documents(length: int, batch: int = 2, seed: int = 0) -> Tensor:
    steps = torch.rand(batch, length, generator=torch.Generator().manual_seed(seed)) < 0.1
    return steps.cumsum(1).to(torch.int32)


def by_pairs(x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, reach: int | None = None) -> Tensor:
    """y_t = sum over i of (c_t . b_i) alpha_{i:t} x_i, pair by pair: independent of both paths."""
    total, share = log_decay.cumsum(-1), x.shape[1] // b.shape[1]
    y = torch.zeros_like(x)
    for t in range(x.shape[2]):
        for i in range(0 if reach is None else max(0, t - reach + 1), t + 1):
            score = (c[:, :, t] * b[:, :, i]).sum(-1).repeat_interleave(share, 1)
            y[:, :, t] += (score * (total[:, :, t] - total[:, :, i]).exp()).unsqueeze(-1) * x[:, :, i]
    return y


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 3 * CHUNK + 2), documents=st.booleans(), seed=st.integers(0, 99))
def test_chunks_equal_the_recurrence(length: int, documents: bool, seed: int) -> None:
    case = inputs(length, seed=seed)
    ids = some_documents(length, seed=seed) if documents else None
    y, end = state_space_scan(**case, documents=ids)
    expected, expected_end = state_space_scan(**case, documents=ids, path="reference")
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(end, expected_end, rtol=1e-10, atol=1e-10)


def test_the_recurrence_is_a_sum_over_pairs() -> None:
    case = inputs(40)
    torch.testing.assert_close(state_space_scan(**case)[0], by_pairs(**case), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cut", [1, 63, 64, 65, 150])
def test_a_carried_state_continues_as_if_never_stopped(cut: int) -> None:
    case, ids = inputs(200), some_documents(200)
    whole, end = state_space_scan(**case, documents=ids)
    first, state = state_space_scan(**{k: v[:, :, :cut] for k, v in case.items()}, documents=ids[:, :cut])
    state = (
        state * (ids[:, cut] == ids[:, cut - 1])[:, None, None, None]
    )  # as its docstring asks: of the first document
    second, after = state_space_scan(**{k: v[:, :, cut:] for k, v in case.items()}, documents=ids[:, cut:], state=state)
    torch.testing.assert_close(torch.cat([first, second], 2), whole, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(after, end, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("reach", [1, 7, 64, 100, 500])
def test_the_window_state_is_that_of_the_last_positions(reach: int) -> None:
    """h_t - alpha_{t-r+1:t} h_{t-r} equals running the recurrence over the last r tokens alone."""
    case = inputs(150)
    y, _ = state_space_scan(**case, window=reach)
    torch.testing.assert_close(y, by_pairs(**case, reach=reach), rtol=1e-10, atol=1e-10)


def test_the_window_stays_inside_its_document() -> None:
    case, ids = inputs(150), some_documents(150)
    y, _ = state_space_scan(**case, documents=ids, window=10)
    for row in range(2):
        for document in ids[row].unique():
            at = (ids[row] == document).nonzero().flatten()
            part = {k: v[row : row + 1, :, at] for k, v in case.items()}
            torch.testing.assert_close(y[row : row + 1, :, at], by_pairs(**part, reach=10), rtol=1e-10, atol=1e-10)


def test_gradients() -> None:
    case = {k: v.requires_grad_() for k, v in inputs(9, batch=1, heads=2, groups=1).items()}
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]])
    assert torch.autograd.gradcheck(
        lambda x, a, b, c: state_space_scan(x, a, b, c, documents=ids)[0], tuple(case.values())
    )


def results(path: str, case: dict[str, Tensor], ids: Tensor | None, state: Tensor | None) -> list[Tensor]:
    """y, end state, and the gradients of random projections of both."""
    leaves = [t.detach().requires_grad_() for t in (*case.values(), *(() if state is None else (state,)))]
    outputs = state_space_scan(*leaves[:4], documents=ids, state=None if state is None else leaves[4], path=path)
    g = torch.Generator().manual_seed(1)
    weights = [torch.randn(o.shape, generator=g, dtype=torch.float64).to(o.dtype) for o in outputs]
    return [*outputs, *torch.autograd.grad(outputs, leaves, weights)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("groups", "length"), [(1, 1), (2, 64), (4, 150)])
@pytest.mark.parametrize("documented", [False, True])
def test_every_gradient_is_that_of_the_recurrence(
    documented: bool, groups: int, length: int, dtype: torch.dtype
) -> None:
    """With a state carried in, and every input in `dtype` but the decays, which float64 or float32 keeps exact."""
    case = {k: v.to(dtype) for k, v in inputs(length, groups=groups).items()}
    case["log_decay"] = case["log_decay"].to(torch.float64 if dtype == torch.float64 else torch.float32)
    ids = some_documents(length) if documented else None
    state = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    for before in (None, state):
        pairs = zip(results("native", case, ids, before), results("reference", case, ids, before), strict=True)
        for name, (a, e) in zip(("y", "end", "dx", "dlog_decay", "db", "dc", "dstate"), pairs, strict=False):
            assert a.dtype == e.dtype
            assert_close(name, a, e, TOLERANCE[dtype], floor=1e-14 if dtype == torch.float64 else 1e-6)


def test_autocast_changes_nothing() -> None:
    case = {k: v.float() for k, v in inputs(70).items()}
    plain = results("native", case, None, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = results("native", case, None, None)
    assert all(torch.equal(a, e) for a, e in zip(under, plain, strict=True))


@pytest.mark.parametrize(("length", "groups"), [(10, 2), (100, 1)])
def test_flop_counts_follow_the_formula(length: int, groups: int) -> None:
    """Of the native path as torch counts it, and of the operator's formulas."""
    register_flop_formulas()
    case = {k: v.requires_grad_() for k, v in inputs(length, groups=groups).items()}
    shape = (4, groups, length, 5, 3)
    with FlopCounterMode(display=False) as counter:
        y, end = state_space_scan(**case)
    assert counter.get_total_flops() == 2 * state_space_scan_flops(*shape)
    with FlopCounterMode(display=False) as counter:
        (y.sum() + end.sum()).backward()
    assert counter.get_total_flops() == 2 * state_space_scan_flops(*shape, backward=True)
    with FlopCounterMode(display=False) as counter:
        y, end, _ = state_space_scan_op(*(v.detach().to("meta").requires_grad_() for v in case.values()), None, None)
        (y.sum() + end.sum()).backward()
    assert counter.get_total_flops() == 2 * (state_space_scan_flops(*shape) + 2 * state_space_scan_flops(*shape))


def test_a_width_the_kernels_do_not_take_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "assumed_capability", 90)
    monkeypatch.setattr(dispatch, "_said", set())
    call = ("state_space_scan", torch.device("cuda"), torch.float32, 4)
    assert dispatch.decide_path("auto", *call, 64, 128) == "triton"
    with pytest.warns(UserWarning, match=r"state_space_scan takes its native path, not Triton: .* up to 128, got 256"):
        assert dispatch.decide_path("auto", *call, 64, 256) == "native"
    assert dispatch.decide_path("auto", *call, 64, 256) == "native"
    with pytest.raises(ValueError, match=r"^path: .*state_space_scan.* up to 128, got 256; use 'auto' or 'native'"):
        dispatch.decide_path("triton", *call, 64, 256)


def test_strong_decay_over_a_long_sequence_stays_finite_with_its_gradients() -> None:
    """A ratio of exponentials of cumulated decays would overflow here."""
    case = {k: v.float() for k, v in inputs(2000, batch=1).items()}
    case["log_decay"] = case["log_decay"] * 40
    case = {k: v.requires_grad_() for k, v in case.items()}
    y, _ = state_space_scan(**case)
    y.sum().backward()
    assert y.isfinite().all()
    assert all(v.grad is not None and v.grad.isfinite().all() for v in case.values())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("x", {"x": torch.zeros(2, 4, 8)}),
        ("log_decay", {"log_decay": torch.zeros(2, 4, 9)}),
        ("b", {"b": torch.zeros(2, 3, 10, 3), "c": torch.zeros(2, 3, 10, 3)}),
        ("c", {"c": torch.zeros(2, 2, 10, 4)}),
        ("documents", {"documents": torch.zeros(2, 9).int()}),
        ("documents", {"documents": torch.zeros(2, 10)}),
        ("x", {"x": torch.zeros(2, 4, 10, 5, dtype=torch.int64)}),
        ("b", {"b": torch.zeros(2, 2, 10, 3)}),
        ("c", {"c": torch.zeros(2, 2, 10, 3)}),
        ("state", {"state": torch.zeros(2, 4, 3, 5)}),
        ("path", {"path": "triton"}),
        ("state", {"state": torch.zeros(2, 4, 5, 3)}),
        ("window", {"window": 0}),
        ("path", {"path": "cuda"}),
    ],
)
def test_a_wrong_argument_is_named(name: str, change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^{name}:"):
        state_space_scan(**{**inputs(10), **change})  # type: ignore[arg-type]
