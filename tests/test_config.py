"""The loader: layers, strictness, types, identity."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.config import flat, from_dict, identity, load, parse_overrides, presets, separate, to_dict
from mmctl.errors import UsageError


def test_every_preset_loads_with_every_model() -> None:
    from mmctl.models import MODELS

    for preset in presets():
        for model in MODELS:
            assert load(preset, [f"model.name={model}"]).model.name == model


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("model.bandwith=constant", "model.bandwidth"),
        ("training.stepz=3", "training.steps"),
        ("model.bandwidth=fixedd", "fixedd"),
        ("model.name=mosaic-v3", "mosaic-v2"),
        ("model.heads=3", "4"),
        ("data.length=8", "model.delay_min"),
        ("data.mixture.recal=1", "recall"),
        ("training.steps=many", "training.steps"),
        ("training.steps=0", "training.steps"),
        ("steps=3", "training.steps"),
        ("training.steps", "key=value"),
        ("data.tasks.recall.nonsense=1", "data.tasks.recall"),
        ("model.delay_max=4096", "model.window"),
        ("data.mixture={}", "data.mixture"),
        ("data.mixture={facts:1}", "facts: 1"),
        ("data.mixture=facts", "data.mixture"),
        ("data.mixture=[facts]", "data.mixture"),
        ("data.mixture={facts: x}", "data.mixture.facts=x"),
        ("data.mixture={facts: true}", "data.mixture.facts"),
        ("training=5", "training.steps"),
        ("model=", "model.name"),
        ("model=mosaic-v2", "model.name"),
        ("data.tasks=[1]", "data.tasks"),
        ("model.persistent_slots=4", "mosaic-v1"),
        ("name=${oc.env:HOME}", "is not read"),
        ("name=${nothing}", "is not read"),
        ("data.text=${oc.env:HOME}", "is not read"),
        ("data.mixture={facts: ${seed}}", "is not read"),
        ("seed=-1", "at least 0"),
        (f"seed={2**63}", "at most"),
        ("training.learning_rate=inf", "training.learning_rate"),
        ("training.learning_rate=1e400", "training.learning_rate"),
        ("training.learning_rate=nan", "training.learning_rate"),
        ("training.weight_decay=inf", "training.weight_decay"),
        ("training.clip=nan", "training.clip"),
        ("training.clip=inf", "training.clip"),
        ("training.final_fraction=7", "training.final_fraction"),
        ("training.threads=100000", "at most"),
        ("training.accumulation=99", "data.batch=16"),
        ("operation.device=cuda:²", "cuda:N"),
        ("operation.device=tpu", "cuda:N"),
        ("data.length=32", "model.delay_max=32"),
        ("model.delay=128", "data.length=128"),
    ],
)
def test_wrong_input_is_one_line_naming_the_nearest(override: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        load("smoke", [override])
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_values_with_commas_between_may_be_lists() -> None:
    assert separate("1e-3, 3e-3") == ["1e-3", "3e-3"]
    assert separate("[1,4],[8]") == ["[1,4]", "[8]"]
    assert separate("{facts: 1, text: 2},{text: 1}") == ["{facts: 1, text: 2}", "{text: 1}"]
    assert separate("a,,b") == ["a", "", "b"]


def test_fixed_m_need_only_be_shorter_than_the_sequence_itself() -> None:
    words = ["data.length=24", "model.window=32", "model.delay_min=8", "model.delay_max=32"]
    assert load("smoke", [*words, "model.long_term_mask=fixed"]).data.length == 24
    with pytest.raises(UsageError, match=r"model\.delay_max=32"):
        load("smoke", words)


@pytest.mark.parametrize("preset", ["../presets/smoke", "./smoke", "smoke.yaml", "", "/smoke"])
def test_a_preset_is_a_name_and_not_a_path(preset: str) -> None:
    with pytest.raises(UsageError, match="no such preset"):
        load(preset)


def test_wrong_preset_names_the_nearest() -> None:
    with pytest.raises(UsageError, match='did you mean "micro"'):
        load("mikro")


def test_a_key_given_twice_is_an_error_not_the_last_one() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_overrides(["training.steps=1", "training.steps=2"])
    with pytest.raises(UsageError, match="beside"):
        parse_overrides(["model.window=1", "model=2"])


def test_keys_of_another_model_are_refused_when_typed_but_passed_over_in_a_preset() -> None:
    load("smoke", ["model.name=transformer"])
    with pytest.raises(UsageError, match="bandwidth"):
        load("smoke", ["model.name=transformer", "model.bandwidth=constant"])
    with pytest.raises(UsageError, match="bandwidth"):
        load("smoke", layers=[{"model": {"name": "transformer", "bandwidth": "constant"}}])


def test_text_that_looks_like_a_boolean_stays_text() -> None:
    assert load("smoke", ["name=no"]).name == "no"
    with pytest.raises(UsageError, match='"no"'):
        load("smoke", ["model.bandwidth=no"])


def test_a_mapping_replaces_and_a_dotted_key_adds() -> None:
    assert load("smoke", ["data.mixture={recall: 1}"]).data.mixture == {"recall": 1.0}
    mixture = load("smoke", ["data.mixture.recall=3"]).data.mixture
    assert mixture["recall"] == 3
    assert len(mixture) > 1


def test_round_trip_through_plain_dict() -> None:
    config = load("lab", ["data.mixture={icl: 2}", "model.delay=9", "training.precision=float32"])
    assert from_dict(to_dict(config)) == config


def test_identity_ignores_what_cannot_change_a_result_and_nothing_else() -> None:
    base = load("smoke")
    reference = identity(base)
    for override in (
        "seed=3",
        "name=other",
        "operation.log_every=1",
        "operation.keep=9",
        "evaluation.examples=7",
        "training.evaluate_every=5",
    ):
        assert identity(load("smoke", [override])) == reference, override
    changes = ["training.steps=3", "training.threads=2", "model.bandwidth=constant", "data.tasks.recall.seed=1"]
    changes = [c for c in changes if c.partition("=")[0] in flat(base)]
    assert len(changes) >= 3
    ids = [identity(load("smoke", [c])) for c in changes]
    assert len({reference, *ids}) == len(ids) + 1


def test_identity_coerces_types_and_reads_a_corpus_by_content(tmp_path) -> None:
    assert identity(load("smoke", ["training.learning_rate=1"])) == identity(
        load("smoke", ["training.learning_rate=1.0"])
    )
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for i in range(40):
            (tmp_path / folder / f"{i}.txt").write_text(f"one and the same text {i} " * 200)
    a, b = (identity(load("smoke", [f"data.text={tmp_path / f}"])) for f in ("a", "b"))
    assert a == b
    (tmp_path / "b" / "3.txt").write_text("another text " * 200)
    from mmctl import data

    clear = getattr(data.fingerprint, "cache_clear", None)
    if clear:
        clear()
    assert identity(load("smoke", [f"data.text={tmp_path / 'b'}"])) != a


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(flat(load("smoke")))), st.text(max_size=12))
def test_any_value_for_any_key_is_accepted_or_refused_in_one_line(key: str, value: str) -> None:
    try:
        config = load("smoke", [f"{key}={value}"])
    except UsageError as error:
        assert "\n" not in str(error)
        assert len(str(error)) > 5
    else:
        assert dataclasses.is_dataclass(config)
