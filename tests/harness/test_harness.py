"""lm-evaluation-harness on a model: offline tasks, scores against hand-made sums, batches that change nothing,
errors."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmctl import models
from mmctl.config import load
from mmctl.data.tokenizers import Bytes
from mmctl.errors import UsageError

pytest.importorskip("lm_eval", reason="lm-eval is not installed (pip install 'mmctl[lm-eval]')")

from mmctl.harness.adapter import MmctlLM
from mmctl.harness.measuring import GROUPS, _all_tasks, measure

TASK = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}} is"
doc_to_choice: ["red", "blue"]
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
---
"""
GENERATE = """
task: tiny_copy
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}} is"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 5}}
metric_list: [{{metric: exact_match}}]
"""


@pytest.fixture(scope="module")
def model() -> Any:
    return models.build(load("smoke", ["training.precision=float32"])).eval()


def ask(*args: Any) -> Any:
    return SimpleNamespace(args=args)


@torch.no_grad()
def by_hand(model: Any, context: str, continuation: str) -> tuple[float, bool]:
    tokens = list((context + continuation).encode())
    logits = model(torch.tensor([tokens]))[0].double().log_softmax(-1)
    total, greedy = 0.0, True
    for at in range(len(context.encode()), len(tokens)):
        total += float(logits[at - 1, tokens[at]])
        greedy &= int(logits[at - 1].argmax()) == tokens[at]
    return total, greedy


def test_log_likelihoods_are_sums_over_the_continuation(model: Any) -> None:
    cases = [("The sky is", " blue"), ("The sky is ", "blue"), ("a" * 300, "b"), ("é", "è")]
    found = MmctlLM(model=model, tokenizer=Bytes()).loglikelihood([ask(*c) for c in cases], disable_tqdm=True)
    for (context, continuation), (value, greedy) in zip(cases, found, strict=True):
        stripped = context.rstrip()  # the harness scores a trailing space with the continuation
        expected = by_hand(model, stripped, context[len(stripped) :] + continuation)
        assert value == pytest.approx(expected[0], abs=1e-4)
        assert greedy == expected[1]
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-6)


def test_rolling_reads_a_text_in_one_piece(model: Any) -> None:
    lm = MmctlLM(model=model, tokenizer=Bytes())
    text = "One two three. " * 40
    assert lm.loglikelihood_rolling([ask(text), ask("")])[0] == pytest.approx(by_hand(model, "\n", text)[0], abs=1e-2)
    assert lm.loglikelihood_rolling([ask("")]) == [0.0]


def test_batches_change_no_score(model: Any) -> None:
    cases = [ask("x" * n, "y" * (1 + n % 3)) for n in (1, 5, 40, 7, 300, 2)]
    together = MmctlLM(model=model, tokenizer=Bytes(), batch_size=16).loglikelihood(cases, disable_tqdm=True)
    for case, (value, greedy) in zip(cases, together, strict=True):
        alone = MmctlLM(model=model, tokenizer=Bytes(), batch_size=1).loglikelihood([case], disable_tqdm=True)[0]
        assert value == pytest.approx(alone[0], abs=1e-6 * max(1, abs(alone[0])))
        assert greedy == alone[1]


def test_generation_stops_before_the_stop_string_and_keeps_order(model: Any) -> None:
    lm = MmctlLM(model=model, tokenizer=Bytes())
    free = lm.generate_until([ask("Hello", {"until": [], "max_gen_toks": 12})])[0]
    assert free
    stop = free[len(free) // 2]
    requests = [
        ask("Hello", {"until": [stop], "max_gen_toks": 12}),
        ask("Other text", {"until": [], "max_gen_toks": 3}),
        ask("Hello", {"until": [], "max_gen_toks": 12}),
    ]
    made = lm.generate_until(requests)
    assert made[0] == free[: free.index(stop)]
    assert made[2] == free
    assert len(made[1].encode()) <= 3 * 4
    sampled = lm.generate_until(
        [ask("Hello", {"until": [], "max_gen_toks": 12, "do_sample": True, "temperature": 5.0})]
    )
    assert sampled != [free]


def test_local_tasks_are_measured_offline(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    rows = [{"question": f"Thing {i}", "answer": ("red", "blue")[i % 2]} for i in range(8)]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    for name, text in (("choice", TASK.replace("---\n", "")), ("copy", GENERATE)):
        (tmp_path / f"{name}.yaml").write_text(text.format(data=data))
    found = measure(model, Bytes(), ["tiny_choice", "tiny_copy"], include=tmp_path)
    right = 0
    for row in rows:
        prompt = f"{row['question']} is"
        options = {answer: by_hand(model, prompt, f" {answer}")[0] for answer in ("red", "blue")}
        right += max(options, key=lambda a: options[a]) == row["answer"]
    score = found["scores"]["tiny_choice/acc@0shots"]
    assert score["value"] == pytest.approx(right / 8)
    assert score["n"] == 8
    assert "tiny_copy/exact_match@0shots" in found["scores"]
    json.dumps(found, allow_nan=False)
    assert all(math.isfinite(s["value"]) for s in found["scores"].values())


def test_what_is_not_there_is_said_in_a_line(model: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--tasks hellaswagg: no such task.*hellaswag"):
        measure(model, Bytes(), ["hellaswagg"])
    with pytest.raises(UsageError, match="expected a folder of task files"):
        measure(model, Bytes(), ["hellaswag"], include=tmp_path / "none")
    with pytest.raises(UsageError, match="run=RUN"):
        MmctlLM()


def test_the_papers_groups_are_tasks_of_the_harness() -> None:
    there = set(_all_tasks().all_tasks)
    assert [name for group in GROUPS.values() for name in group if name not in there] == []


def test_the_harness_own_command_line_knows_the_model() -> None:
    code = "from mmctl.harness import register; register(); from lm_eval.api.registry import get_model; print(get_model('mmctl'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MmctlLM" in done.stdout, done.stderr
