"""`mmctl bench kernels`: what is compared is right, what is wrong gets no time, and what it writes."""

from __future__ import annotations

import csv
import json
import sys
import time
import types

import pytest
import torch
from typer.testing import CliRunner

from mmctl.bench import kernel_cases, kernel_checks, kernel_states, kernel_timing, kernels, peers
from mmctl.bench.peers import Contender, Flex, Reading
from mmctl.cli.bench import app
from mmctl.errors import MmctlError, UsageError
from mmctl.kernels import key_scan, memory_attention
from mmctl.kernels.state_space import state_space_scan


def run(*words: object):
    result = CliRunner().invoke(app, ["kernels", *(str(w) for w in words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Arguments of a benchmark that takes a second."""
    monkeypatch.setattr(kernels, "TOGETHER", {"cpu": 200})
    monkeypatch.setattr(kernel_cases, "WINDOW", 16)
    monkeypatch.setattr(
        "mmctl.bench.kernel_timing.ceilings", lambda device, dtype: {"matmul_tflops": 2.0, "copy_gbytes": 8.0}
    )
    return ["--tokens", 100, "--heads", 2, "--widths", 16, "--rounds", 3, "--out", tmp_path, "--device", "cpu"]


def test_ratios_rates_and_memory_of_every_contender(small, tmp_path):
    result = json.loads(run(*small, "--cases", "long,short,key-scan,value-extract,state-space", "--json").stdout)
    rows = result["rows"]
    assert list(rows[0])[:6] == ["case", "tokens", "width", "phase", "contender", "speedup"]
    timed = {(r["case"], r["phase"], r["contender"]): r for r in rows if r["status"] == "measured"}
    for case, contenders in (("long", ("ours", "SDPA flash", "naive masked")), ("short", ("ours", "naive masked"))):
        for phase in ("forward", "backward", "both"):
            ours = timed[case, phase, "ours"]
            for name in contenders:
                row = timed[case, phase, name]
                assert row["peak_bytes"] > 0
                assert row["error"] <= row["tolerance"]
                assert row["first_quartile"] <= row["milliseconds"] <= row["third_quartile"]
                if name != "ours":
                    assert row["speedup"] == pytest.approx(row["milliseconds"] / ours["milliseconds"])
                assert row["of_matmul"] == pytest.approx(row["tflops"] / 2.0)
    # 36 rows read 1 + ... + 36 pairs, in 2 sequences of 2 heads; scores and reads, 16 wide.
    both = timed["long", "both", "ours"]
    assert both["tflops"] == pytest.approx(3.5 * 4 * 2 * 2 * 666 * 16 / (both["milliseconds"] / 1e3) / 1e12)
    scan = timed["key-scan", "forward", "ours"]
    moved = 2 * 4 * (8 * 2 * 100 * 16) + 8 * (8 * 2 * 100)
    assert scan["gbytes"] == pytest.approx(moved / (scan["milliseconds"] / 1e3) / 1e9)
    assert scan["of_copy"] == pytest.approx(scan["gbytes"] / 8.0)
    said = {r["contender"]: r["status"] for r in rows if r["case"] == "short" and r["phase"] == "all"}
    assert said["SDPA flash"] == "unavailable: scaled_dot_product_attention takes no window"
    assert "no CPU backward" in said["FlexAttention"]
    with (tmp_path / "kernel-speed.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(rows)
    assert all(row["torch"] == torch.__version__ and row["device"].startswith("CPU") and row["date"] for row in table)
    assert {p.name for p in tmp_path.iterdir()} >= {f"kernel-speed-figure.{kind}" for kind in ("png", "pdf", "csv")}


def off_by_one(keys, values, bandwidth, **span):
    return memory_attention(keys, values, bandwidth, **{name: reach + 1 for name, reach in span.items()})


def wrong_gradient(keys, values, bandwidth, **span):
    return memory_attention(keys, values, tuple(b * 0.5 + b.detach() * 0.5 for b in bandwidth), **span)


def not_finite(keys, values, bandwidth, **span):
    return memory_attention(keys, values, bandwidth, **span) / 0.0


@pytest.mark.parametrize(
    ("wrong", "named"), [(off_by_one, "is off by"), (wrong_gradient, "dbeta|dalpha"), (not_finite, "finite")]
)
@pytest.mark.parametrize("case", ["long", "short"])
def test_a_kernel_that_is_wrong_gets_no_time_and_is_named(case, wrong, named, small, tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "memory_attention", wrong)
    with pytest.raises(MmctlError, match=rf"{case}, T = 100, D = 16: refused: .*({named})"):
        run(*small, "--cases", case)
    with (tmp_path / "kernel-speed.csv").open() as file:
        rows = {row["contender"]: row for row in csv.DictReader(file) if row["phase"] == "both"}
    assert rows["ours"]["status"].startswith("refused")
    assert rows["ours"]["milliseconds"] == rows["ours"]["tflops"] == ""
    # The others are timed all the same; there is nothing to divide by.
    assert rows["naive masked"]["milliseconds"]
    assert rows["naive masked"]["speedup"] == ""


def test_a_peer_that_reads_something_else_is_refused(small, monkeypatch):
    real = peers.naive

    def careless(problem: Reading) -> Contender:
        made = real(problem)
        forward = made.forward
        made.forward = lambda: forward() * 1.5
        return made

    monkeypatch.setitem(peers.PEERS, "naive masked", careless)
    rows = json.loads(run(*small, "--cases", "long", "--json").stdout)["rows"]
    assert all(r["milliseconds"] is None and "refused" in r["status"] for r in rows if r["contender"] == "naive masked")
    assert all(r["status"] == "measured" for r in rows if r["contender"] == "ours")


def test_a_case_that_fails_costs_the_others_nothing(small, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no kernel image\nmore")

    monkeypatch.setattr(kernel_cases, "value_extractor", broken)
    with pytest.raises(MmctlError, match=r"value-extract, T = 100, D = 16: failed: RuntimeError: no kernel image$"):
        run(*small, "--cases", "value-extract,key-scan")


def test_what_the_budget_does_not_reach_is_listed(small, monkeypatch):
    real = kernels._measure

    def slow(*arguments):
        time.sleep(1.1)
        return real(*arguments)

    monkeypatch.setattr(kernels, "_measure", slow)
    found = json.loads(run(*small, "--tokens", "100,150", "--cases", "key-scan", "--budget", 1, "--json").stdout)
    rows = [row for row in found["rows"] if row["phase"] in ("forward", "all")]
    assert [row["tokens"] for row in rows] == [100, 150]
    assert rows[0]["status"] == "measured"
    assert rows[1]["status"].startswith("not reached: ")


def test_the_first_width_comes_before_the_longest_sequences():
    plan = list(kernels._plan(["long", "step"], [512, 4096, 65_536], [128, 64], [4096]))
    shorter = [("long", 512), ("long", 4096), ("step", 4096)]
    expected = [(case, length, width) for width in (128, 64) for case, length in shorter]
    assert plan == [*expected, ("long", 65_536, 128), ("long", 65_536, 64)]


def test_layer_and_step_are_compared_and_timed_beside_the_transformer(small):
    rows = json.loads(run(*small, "--cases", "layer,step", "--json").stdout)["rows"]
    ours = {row["phase"]: row for row in rows if row["contender"] == "ours"}
    assert set(ours) == {"forward", "backward", "both", "step"}
    for row in ours.values():
        assert row["status"] == "measured"
        assert 0 < row["error"] < row["tolerance"]
    beside = [row for row in rows if row["contender"] == "transformer"]
    assert {row["phase"] for row in beside} == set(ours)
    assert all(row["speedup"] > 0 and row["error"] is None for row in beside)


@pytest.mark.parametrize("span", [{"window": 9}, {"delay": 9}], ids=str)
@pytest.mark.parametrize("every", [False, True])
def test_the_reference_of_one_head_is_that_of_the_whole(span, every, monkeypatch):
    """Chosen rows, or all: outputs and gradients of one head, the upstream gradient 0 elsewhere."""
    monkeypatch.setattr(kernel_checks, "MOST_PAIRS", {"cpu": 1 << 20 if every else 1})
    monkeypatch.setattr(kernel_checks, "BLOCK", {"cpu": 32})
    torch.manual_seed(0)
    keys = torch.nn.functional.normalize(torch.randn(2, 2, 150, 8, dtype=torch.float64), dim=-1).requires_grad_()
    values = torch.randn(2, 2, 150, 8, dtype=torch.float64, requires_grad=True)
    bandwidth = [torch.rand(2, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    blocks = kernel_checks.blocks_of_rows(150, 9, "cpu")
    rows = [t for start, end in blocks for t in range(start, end)]
    assert (len(set(rows)) == len(rows) == 150) == every
    assert {0, 9, 149} <= set(rows)
    out = memory_attention(keys, values, tuple(bandwidth), path="reference", **span)
    grad = kernel_checks.only(torch.randn_like(out), 1, 0, blocks)
    grads = torch.autograd.grad(out, [keys, values, *bandwidth], grad, retain_graph=True)
    heads = [b[0] for b in bandwidth]
    found, terms = kernel_checks.read_reference(keys[1, 0], values[1, 0], heads, grad[1, 0], blocks, **span)
    assert torch.allclose(found["out"][rows], out[1, 0, rows])
    for name, expected in zip(("dkeys", "dvalues"), grads, strict=False):
        assert torch.allclose(found[name], expected[1, 0], atol=1e-12)
    for name, expected in zip(("dbeta0", "dbeta1", "dalpha"), grads[2:], strict=True):
        assert torch.allclose(found[name], expected[0])
    if not every:  # what dbeta0 sums: the terms of single reads
        parts = [kernel_checks.only(grad, 1, 0, [(t, t + 1)]) for t in rows]
        single = [torch.autograd.grad(out, bandwidth[0], part, retain_graph=True)[0][0] for part in parts]
        assert terms["dbeta0"] == pytest.approx(float(torch.stack(single).norm()))


def test_the_recurrence_is_the_scan():
    torch.manual_seed(0)
    x = torch.randn(1, 1, 60, 5, dtype=torch.float64, requires_grad=True)
    gate = torch.randn(1, 1, 60, dtype=torch.float64, requires_grad=True)
    decay = (-torch.rand(1, 1, 60, dtype=torch.float64)).requires_grad_()
    keys = key_scan(x, gate, decay, path="reference")
    grad = torch.randn_like(keys)
    expected = dict(
        zip(("dx", "dlog_gate", "dlog_decay"), torch.autograd.grad(keys, [x, gate, decay], grad), strict=True)
    )
    found = kernel_checks.scan_reference(x[0, 0], gate[0, 0], decay[0, 0], grad[0, 0])
    for name, tensor in ({"keys": keys} | expected).items():
        assert torch.allclose(found[name], tensor[0, 0]), name


def test_the_state_space_peers_compute_the_same(monkeypatch):
    """The published kernels' function stands in here by its formula: they multiply by the step themselves."""

    def formula(x, dt, rate, b, c, chunk):
        x, dt, b, c = (t.transpose(1, 2) for t in (x, dt, b, c))
        return state_space_scan(x * dt.unsqueeze(-1), dt * rate.view(1, -1, 1), b, c)[0].transpose(1, 2)

    module = types.ModuleType("mamba_ssm.ops.triton.ssd_combined")
    module.mamba_chunk_scan_combined = formula
    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(kernel_states, "STATE", 8)
    size = kernel_cases.Size(70, 16, 4, 2, torch.float32, torch.device("cpu"))
    group = kernel_states.recurrence("state-space", size, 0)
    verdicts = kernel_timing.compared(group)
    assert set(verdicts) == {"ours", "mamba_ssm"}
    assert all(v.passed and v.error < 1e-5 for v in verdicts.values())
    assert set(group.unavailable) == {"native", "native, compiled"}
    module.mamba_chunk_scan_combined = lambda *args: 1.1 * formula(*args)
    group = kernel_states.recurrence("state-space", size, 0)
    assert kernel_timing.compared(group)["mamba_ssm"].reason.startswith("refused: ")


def test_pairs_are_counted_as_they_are_seen():
    for length in (1, 8, 9, 30):
        for reach in (1, 8, 40):
            t, i = torch.arange(length)[:, None], torch.arange(length)[None, :]
            assert kernel_cases.visible_pairs(length, window=reach) == int(((i < t) & (i >= t - reach)).sum())
            assert kernel_cases.visible_pairs(length, delay=reach) == int((i <= t - reach).sum())


@pytest.mark.parametrize("span", [{"window": 9}, {"delay": 9}], ids=str)
def test_the_flex_peer_reads_the_same_pairs(span, monkeypatch):
    """Its masks and the bandwidth in its query, uncompiled and forward only: it has no CPU backward."""
    from torch.nn.attention import flex_attention

    monkeypatch.setattr(Flex, "attention", staticmethod(flex_attention.flex_attention))
    monkeypatch.setattr(Flex, "build", staticmethod(flex_attention.create_block_mask))
    torch.manual_seed(0)
    keys = torch.nn.functional.normalize(torch.randn(1, 2, 130, 16), dim=-1)
    values, bandwidth = (
        torch.randn(1, 2, 130, 16),
        (torch.full((2,), 2.0), torch.full((2,), 3.0), torch.full((2,), 0.4)),
    )
    mask = Flex.mask(130, torch.device("cpu"), span.get("window"), span.get("delay"))
    with torch.no_grad():
        found = peers.flex_read(keys, values, bandwidth, mask=mask, **span)
    expected = memory_attention(keys, values, bandwidth, path="reference", **span)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cases", "long,shrot"), '--cases "shrot".*did you mean "short"'),
        (("--tokens", "12;13"), "--tokens"),
        (("--widths", "0"), "--widths"),
        (("--precision", "bf17"), 'did you mean "bf16"'),
        (("--device", "tpu"), "--device"),
        (("--device", "cuda:7"), "--device"),
    ],
)
def test_wrong_input_is_one_clear_line(words, message, small, tmp_path):
    with pytest.raises(UsageError, match=message):
        run(*small, *words)
    assert not list(tmp_path.iterdir())
