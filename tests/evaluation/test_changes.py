"""The registry of evaluation-time changes: settings, names, records, and that a model is afterwards what it was."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmctl import models
from mmctl.config import load
from mmctl.errors import UsageError
from mmctl.evaluation import evaluate, file_stem
from mmctl.evaluation.changes import CHANGES, Change, Changes, change_class, changed, make, said
from mmctl.plain import typed


@dataclass(frozen=True)
class Louder(Change):
    """Logits times `gain`."""

    gain: float = 2.0
    layers: tuple[int, ...] | None = None
    label: str = "plain"

    def check(self, config: Any) -> None:
        if self.gain <= 0:
            raise UsageError(f"louder.gain={self.gain}: expected more than 0")

    @contextlib.contextmanager
    def applied(self, model: Any, config: Any) -> Iterator[Any]:
        hook = model.register_forward_hook(lambda module, args, out: self.gain * out)
        try:
            yield lambda: {"seen": {"gain": self.gain}}
        finally:
            hook.remove()


@pytest.fixture(autouse=True)
def louder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHANGES, "louder", f"{__name__}:Louder")


@given(gain=st.floats(0.1, 9), removed=st.booleans(), delay=st.one_of(st.none(), st.integers(1, 99)))
def test_a_record_gives_the_changes_back(gain: float, removed: bool, delay: int | None) -> None:
    CHANGES["louder"] = f"{__name__}:Louder"
    asked = Changes(removed, delay, (Louder(gain, (0, 2)),))
    record = json.loads(json.dumps(asked.record()))
    assert Changes.of(record) == asked
    assert changed(record)
    assert asked
    assert hash(Changes.of(record)) == hash(asked)


def test_words_make_the_change_again_as_the_command_line_reads_them() -> None:
    change = Louder(0.5, (1,), "two words")
    given = dict(word.removeprefix("louder.").split("=", 1) for word in change.words())
    assert given == {"gain": "0.5", "layers": "[1]", "label": "two words"}
    assert make("louder", given) == change
    assert make("louder", {"layers": "null"}) == Louder() == make("louder", {"layers": typed(None)})
    assert Louder().words() == ["louder.gain=2.0"]  # the defaults, too, are asked for by a word


def test_what_is_not_changed_keeps_names_and_records_of_before() -> None:
    assert file_stem("in-context", Changes()) == "in-context"
    assert Changes().record() == {"remove_long_term": False, "delay": None}
    assert not changed(Changes().record())
    assert not changed({})
    assert not changed(None)
    assert file_stem("in-context", Changes(True, 4)) == "in-context+remove-long-term+m=4"


def test_a_file_name_tells_settings_apart_and_is_one() -> None:
    names = [Changes(others=(c,)).mark() for c in (Louder(), Louder(3.0), Louder(label="a/b"), Louder(label="x" * 99))]
    assert names[:2] == ["+louder", "+louder.gain=3.0"]
    assert len(set(names)) == 4
    assert all("/" not in name and len(name) < 60 for name in names)


def test_words_for_the_eye() -> None:
    assert said(Changes(True, 8, (Louder(3.0),)).record()) == ["long-term memory removed", "m = 8", "louder.gain=3.0"]
    assert said({"remove_long_term": False, "delay": None, "gone": {"x": 1}}) == ["gone {'x': 1}"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"gian": 2}, '"louder.gian": no such setting; did you mean "gain"'),
        ({"gain": "loud"}, "louder.gain=loud: "),
        ({"layers": "[1"}, r"louder.layers=\[1: "),
        (3, "louder=3: expected a mapping of its settings, such as louder.gain=..."),
    ],
)
def test_wrong_settings_are_one_line_naming_them(settings: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told) as error:
        make("louder", settings)
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match='"loudr": no such evaluation-time change; did you mean "louder"'):
        make("loudr", {})


def test_a_changed_evaluation_notes_it_and_leaves_the_model_as_it_was() -> None:
    config = load("smoke", ["data.mixture={recall: 1}", "model.layers=1", "evaluation.lengths=[1]",
                            "evaluation.examples=4", "evaluation.minimum_examples=4"])  # fmt: skip
    model = models.build(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plain = evaluate(model, config, "new-knowledge")
    louder = evaluate(model, config, "new-knowledge", changes=Changes(others=(Louder(9.0),)))
    assert louder["change_notes"] == {"louder": {"seen": {"gain": 9.0}}}
    assert "change_notes" not in plain
    assert louder["changes"]["louder"] == {"gain": 9.0, "layers": None, "label": "plain"}
    assert louder["scores"]["recall/loss@1x"]["value"] > plain["scores"]["recall/loss@1x"]["value"]
    again = evaluate(model, config, "new-knowledge")
    assert again["scores"] == plain["scores"]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "louder"])
def test_every_shipped_change_is_made_of_plain_settings(name: str) -> None:
    cls = change_class(name)
    change = cls()
    assert change.name == name
    assert make(name, change.record()) == change
    assert hash(change) == hash(make(name, change.record()))
    json.dumps(change.record())


def test_pace_is_asked_before_training_whether_it_fits() -> None:
    config = load("smoke", [])
    Changes.of({"pace": {"experts": 16}}).check(config)
    with pytest.raises(UsageError, match=r"pace.experts=7: expected a divisor of 192"):
        Changes.of({"pace": {"experts": 7}}).check(config)


def test_what_a_bank_costs_is_added_to_its_arm() -> None:
    config = load("smoke", [])
    assert Changes.of({"pace": {"slots": 10}}).added_flops(config) == 2 * 6 * 10 * 192  # two layers of 192 hidden units
    assert Changes.of({"pace": {"bank": False}}).added_flops(config) == Changes(True, 3).added_flops(config) == 0


def test_pace_counts_every_token_once_a_layer() -> None:
    config = load("smoke", ["data.mixture={recall: 1}", "evaluation.lengths=[1]", "evaluation.examples=4",
                            "evaluation.minimum_examples=4"])  # fmt: skip
    notes = evaluate(models.build(config), config, "new-knowledge", changes=Changes.of({"pace": {"bank": True}}))
    for layer in ("layer0", "layer1"):
        found = notes["change_notes"]["pace"][layer]
        assert found["tokens"] == 4 * 128
        assert found["flops_per_token"] == 6 * 100 * 192
        assert found["high"] + found["middle"] + found["low"] == pytest.approx(1)
        assert 0 <= found["slot_diversity"] <= 2
