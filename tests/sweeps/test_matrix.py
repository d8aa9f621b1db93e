"""Matrices as data: what ships, what axes span, and one clear line for everything that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from mmctl.errors import UsageError
from mmctl.evaluation.changes import Changes
from mmctl.sweeps import matrix as matrices
from mmctl.sweeps.selection import select
from mmctl.sweeps.units import unit_of

GOOD = """
name: mine
question: Does it?
baseline: {set: {model.name: mosaic-v2}}
arms:
  - {name: a, set: {model.bandwidth: adaptive}}
  - {name: b, label: the other, set: {model.bandwidth: constant}}
  - {name: c, evaluate: {remove_long_term: true}}
claims:
  - id: first
    statement: a beats b.
    metric: recall/accuracy@4x
    treatment: a
    control: b
    expected: greater
    margin: 0.02
    published: {source: a paper, metric: a score, value: 12 against 10, effect: 2, unit: points}
figures: [flops-accuracy]
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return write


def test_the_five_ablations_ship() -> None:
    found = {m.name: m for m in matrices.find([])}
    assert list(found) == ["bandwidth", "key-extractor", "long-term-mask", "long-term-removal", "transformer-masks"]
    assert [a.name for a in found["bandwidth"].arms] == ["adaptive", "constant", "constant-matched"]
    assert found["long-term-removal"].arm("removed").evaluate == Changes(remove_long_term=True)
    assert found["transformer-masks"].arm("masks-matched").match is not None
    for matrix in found.values():
        assert len(matrix.digest) == 64
        for claim in matrix.claims:
            assert "arXiv" in claim.published.source
            assert claim.published.text


@pytest.mark.parametrize(
    ("ablation", "claim", "effect", "text"),
    [
        ("long-term-mask", "recall-8x", 0.158, "fixed 15.9, stochastic 31.7"),
        ("long-term-mask", "recall-1x", 0.014, "fixed 43.6, stochastic 45.0"),
        ("long-term-removal", "recall", -0.332, "kept 53.4, removed 20.2"),
        ("long-term-removal", "in-context", -0.072, "kept 42.1, removed 34.9"),
        ("long-term-removal", "facts", -0.002, "kept 56.8, removed 56.6"),
        ("transformer-masks", "in-context", 0.225, "transformer 23.0, mosaic 45.5"),
        ("transformer-masks", "recall-1x", 0.056, "transformer 39.4, mosaic 45.0"),
        ("key-extractor", "recall-8x", 0.08, "+8 points"),
    ],
)
def test_published_values_stand_beside_the_claims(ablation: str, claim: str, effect: float, text: str) -> None:
    (matrix,) = matrices.find([ablation])
    found = next(c for c in matrix.claims if c.id == claim)
    assert found.published_effect == pytest.approx(effect)
    assert text in found.published.text


@pytest.mark.parametrize("name", list(matrices.shipped()))
def test_a_published_effect_in_another_unit_than_points_is_drawn_beside_ours(name: str) -> None:
    for claim in matrices.find([name])[0].claims:
        if claim.published is not None and claim.published.effect is not None and claim.published.unit != "points":
            assert claim.published_effect == claim.published.effect, f"{claim.id}: {unit_of(claim.metric)}"


def test_alpha_is_claimed_between_02_and_04() -> None:
    (matrix,) = matrices.find(["bandwidth"])
    assert {c.range for c in matrix.claims if c.expected == "range"} == {(0.2, 0.4)}


def test_a_users_own_file_by_path(write) -> None:
    (matrix,) = matrices.find([str(write(GOOD))])
    assert matrix.name == "mine"
    assert matrix.arm("b").label == "the other"
    assert matrix.claims[0].published.effect == 2


def swap(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (swap("question", "qeustion"), 'question: is missing; did you mean "qeustion"?'),
        (swap("figures:", "figure:"), 'figure: no such key; did you mean "figures"?'),
        (swap("expected: greater", "expected: grater"), 'claims[0].expected: "grater": expected one of'),
        (swap("expected: greater", "expected: grater"), 'did you mean "greater"?'),
        (swap("treatment: a", "treatment: z"), 'claims[0].treatment: "z": expected one of a, b, c'),
        (swap("control: b", "control: a"), 'claims[0].control: "a" is the treatment too'),
        (swap("    control: b\n", ""), "claims[0].control: is missing"),
        (swap("    margin: 0.02\n", ""), "claims[0].margin: is missing"),
        (swap("margin: 0.02", "margin: -1"), "claims[0].margin: -1: expected more than 0"),
        (swap("margin: 0.02", "margin: wide"), "claims[0].margin: expected a number, got text"),
        (swap("recall/accuracy@4x", "recal/accuracy@4x"), "recall/accuracy@1x"),
        (swap("    published", "    sutie: in-context\n    published"), 'sutie: no such key; did you mean "suite"?'),
        (swap("    published", "    suite: in-contxt\n    published"), 'did you mean "in-context"?'),
        (swap("    published", "    suite: in-context\n    published"), "is of suite new-knowledge"),
        (swap("recall/accuracy@4x", "recall/accuracy"), "such as recall/loss@1x"),
        (swap("recall/accuracy@4x", "recall/accuracy@4"), "such as recall/loss@1x"),
        (swap(", unit: points", ""), "claims[0].published.unit: is missing"),
        (swap("figures: [flops-accuracy]", "figures: [flop-accuracy]"), 'did you mean "flops-accuracy"?'),
        (swap("figures: [flops-accuracy]", "figures: flops"), "figures: expected a list, got text"),
        (swap("name: b", "name: a"), 'arms: "a" stands there twice'),
        (swap("name: mine", "name: ../up"), '"../up": expected a name of letters'),
        (swap("name: mine", "name: 3"), "name: expected text, got a whole number"),
        (swap("evaluate: {remove_long_term: true}", "evaluate: {remove: true}"), "remove: no such key"),
        (swap("evaluate: {remove_long_term: true}", "evaluate: {delay: 0}"), "delay: 0: expected at least 1"),
        (swap("model.bandwidth: adaptive", "seed: 3"), '"seed" is not the ablation\'s to set'),
        (swap("model.bandwidth: adaptive", "operation.device: cpu"), "is not the ablation's to set"),
        (swap("Does it?", "${oc.env:HOME}"), "question: ${...} is not read in an ablation"),
        (GOOD + "arms: []\n", "not readable as YAML"),
        (GOOD + "axes: {model.bandwidth: [adaptive, constant]}\n", "expected either arms or axes, not both"),
        (GOOD + "exclude: []\n", "exclude: belongs to axes"),
        (GOOD + "seeds: [1, 1]\n", 'seeds: "1" stands there twice'),
        (GOOD + "seeds: [-1]\n", "seeds: -1: expected 0 or more"),
        ("name: [unclosed", "not readable as YAML"),
        ("- a\n- list\n", "expected a mapping of keys, got a list"),
        ("", "name: is missing"),
    ],
)
def test_one_line_naming_file_and_key(write, text: str, says: str) -> None:
    path = write(text)
    with pytest.raises(UsageError) as caught:
        matrices.load(path)
    message = str(caught.value)
    assert says in message
    assert message.startswith(str(path))
    assert "\n" not in message


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        matrices.find([str(tmp_path / "nowhere.yaml")])
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(UsageError, match="not UTF-8"):
        matrices.load(tmp_path / "latin.yaml")
    with pytest.raises(UsageError, match='"bandwith": no such ablation; did you mean "bandwidth"'):
        matrices.find(["bandwith"])
    with pytest.raises(UsageError, match="given twice"):
        matrices.find(["bandwidth", "bandwidth"])


def axes(text: str) -> str:
    return f"name: mine\nquestion: Does it?\nbaseline: {{set: {{model.name: mosaic-v2}}}}\n{text}"


TWO = """axes:
  model.bandwidth: [adaptive, constant, constant-matched]
  model.key_extractor: [gated, fixed]
"""


def test_one_factor_at_a_time_is_the_default(write) -> None:
    matrix = matrices.load(write(axes(TWO)))
    assert [a.name for a in matrix.arms] == [
        "baseline",
        "bandwidth=constant",
        "bandwidth=constant-matched",
        "key_extractor=fixed",
    ]
    assert matrix.arm("key_extractor=fixed").set == {"model.bandwidth": "adaptive", "model.key_extractor": "fixed"}


def test_product_with_an_exclusion_that_gives_its_reason(write) -> None:
    text = axes(
        TWO
        + "combine: product\nexclude:\n"
        + "  - {when: {model.bandwidth: constant-matched, model.key_extractor: fixed}, reason: measured before}\n"
    )
    matrix = matrices.load(write(text))
    assert len(matrix.arms) == 5
    ((arm, reason),) = matrix.excluded
    assert (arm.name, reason) == ("bandwidth=constant-matched+key_extractor=fixed", "measured before")
    assert arm.name not in [a.name for a in matrix.arms]


def test_zip_pairs_the_axes(write) -> None:
    text = axes("axes:\n  data.length: [128, 256]\n  data.batch: [16, 8]\ncombine: zip\n")
    matrix = matrices.load(write(text))
    assert [a.set for a in matrix.arms] == [
        {"data.length": 128, "data.batch": 16},
        {"data.length": 256, "data.batch": 8},
    ]


def test_evaluation_axes_change_nothing_in_training(write) -> None:
    matrix = matrices.load(write(axes("axes:\n  evaluate.delay: [null, 8, 32]\n")))
    assert [a.evaluate.delay for a in matrix.arms] == [None, 8, 32]
    assert [dict(a.set) for a in matrix.arms] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TWO + "combine: cross\n", '"cross": expected one of one-at-a-time, product, zip'),
        (TWO + "combine: zip\n", "zip needs axes of one length, got 3, 2"),
        (TWO + "exclude: [{when: {model.window: 3}, reason: r}]\n", "model.window: no such axis"),
        (TWO + "exclude: [{when: {model.bandwidth: x}, reason: r}]\n", "x: expected one of adaptive, constant"),
        (TWO + "exclude: [{when: {model.bandwidth: constant}}]\n", "exclude[0].reason: is missing"),
        (
            TWO + "exclude: [{when: {model.bandwidth: constant, model.key_extractor: fixed}, reason: r}]\n",
            "leaves out nothing",
        ),
        ("axes: {model.bandwidth: [adaptive]}\n", "expected at least 2 items, got 1"),
        ("axes: {model.bandwidth: [adaptive, adaptive]}\n", "stands there twice"),
        ("axes: {}\n", "expected at least one axis"),
        ("axes: {data.length: [[1], 2]}\n", "expected a single value, got a list"),
        ("axes: {seed: [1, 2]}\n", "is not the ablation's to set"),
    ],
)
def test_wrong_axes(write, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        matrices.load(write(axes(text)))
    assert says in str(caught.value)


def test_selection_by_ablation_arm_and_axis_value() -> None:
    everything = matrices.find([])

    def chosen(only: list[str] = (), skip: list[str] = ()) -> list[str]:  # type: ignore[assignment]
        return [f"{m.name}/{a.name}" for m in select(everything, only, skip) for a in m.arms]

    assert chosen(["bandwidth/constant"]) == ["bandwidth/constant"]
    assert chosen(["constant,removed"]) == ["bandwidth/constant", "long-term-removal/removed"]
    assert chosen(["key_extractor=fixed"]) == chosen(["model.key_extractor=fixed"]) == ["key-extractor/fixed"]
    assert chosen(["remove_long_term=true"]) == ["long-term-removal/removed"]
    assert chosen(["bandwidth"], ["constant"]) == ["bandwidth/adaptive", "bandwidth/constant-matched"]
    assert "transformer-masks/masks" not in chosen(skip=["transformer-masks"])
    with pytest.raises(UsageError, match=r'--only "constnat": no such .* did you mean "constant"'):
        chosen(["constnat"])
    with pytest.raises(UsageError, match="leave no arm"):
        chosen(["bandwidth"], ["bandwidth"])


plain: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
BASE = OmegaConf.to_container(OmegaConf.create(GOOD))


@st.composite
def damaged(draw: Any) -> Any:
    """The good matrix with one place, anywhere, replaced, removed or added to."""
    content = OmegaConf.to_container(OmegaConf.create(BASE))
    node: Any = content
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw(st.sampled_from(keys))
        inside = isinstance(node[key], dict | list) and len(node[key]) > 0
        if not inside or draw(st.integers(0, 3)) == 0:
            break
        node = node[key]
    action = draw(st.sampled_from(["replace", "remove", "add"]))
    if action == "remove":
        del node[key]
    elif action == "replace" or isinstance(node, list):
        node[key] = draw(plain)
    else:
        node[draw(st.text(max_size=8))] = draw(plain)
    return content


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged())
def test_a_damaged_matrix_is_one_line_or_success(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "damaged.yaml"
    import yaml

    path.write_text(yaml.safe_dump(content, allow_unicode=True))
    one_line_or_success(path)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=60) | st.text(alphabet="{}[]:,-&*!|>%@ \n\t'\"#abc01$", max_size=60).map(str.encode))
def test_any_bytes_are_one_line_or_success(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "raw.yaml"
    path.write_bytes(raw)
    one_line_or_success(path)


def one_line_or_success(path: Path) -> None:
    try:
        matrices.load(path)
    except UsageError as error:
        assert str(error).strip()
        assert len(str(error).splitlines()) == 1
