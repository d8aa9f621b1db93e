"""Where the last query looks: flatness and peak mass of known curves, and as scores of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fakes import quick_config

from mmctl import models
from mmctl.config import identity, load
from mmctl.errors import UsageError
from mmctl.evaluation import attention, reported, scored_at_end
from mmctl.evaluation.attention import Panel
from mmctl.evaluation.changes import Changes
from mmctl.evaluation.scoring import evaluate
from mmctl.evaluation.suites import ATTENTION, find_evaluation, stem_in


def still(curve: np.ndarray) -> Panel:
    """Without any spread over sequences."""
    return Panel(np.atleast_2d(curve), np.zeros((1, curve.shape[-1])) if curve.ndim == 1 else np.zeros_like(curve))


def test_a_flat_curve_is_1_and_its_peak_mass_is_what_lies_near() -> None:
    length, near = 100, 10  # the query at 99: far are 0 .. 88, near 89 .. 98
    flat = np.full(length, 0.5 / 89)
    flat[89:] = 0.5 / 11
    numbers = still(flat).numbers(near, sequences=4)
    assert numbers["flatness"] == pytest.approx(1.0)
    assert numbers["peak_mass"] == pytest.approx(0.5)


@pytest.mark.parametrize("shared", [1, 2, 5, 10])
def test_all_weight_on_k_of_n_positions_is_k_over_n(shared: int) -> None:
    """The effective share of positions: 1/n where one has everything."""
    curve = np.zeros((2, 31))
    curve[0, :20] = 0.05  # another head sees all 20 far positions
    curve[1, :shared] = 1.0 / shared
    per_head = still(curve).numbers(near=10, sequences=2)["per_head"]["flatness"]
    assert per_head == pytest.approx([1.0, shared / 20])


def test_alternating_weights_have_the_flatness_of_their_variation() -> None:
    curve = np.tile([0.5, 1.5], 50) / 100
    numbers = still(curve).numbers(near=9, sequences=2)
    assert numbers["variation"] == pytest.approx(0.25)
    assert numbers["flatness"] == pytest.approx(1 / 1.25)


def test_sampling_noise_is_taken_out_and_unevenness_is_not() -> None:
    rng = np.random.default_rng(0)
    sequences, deviation = 16, 0.012
    for true, level in ((np.full(4000, 0.01), 1.0), (np.tile([0.006, 0.014], 2000), 1 / 1.16)):
        samples = rng.normal(true, deviation, (sequences, 1, 4000))
        panel = Panel(samples.mean(0), samples.std(0, ddof=1))
        numbers = panel.numbers(near=100, sequences=sequences)
        assert numbers["noise"] == pytest.approx((deviation / 0.01) ** 2 / sequences, rel=0.05)
        assert numbers["flatness"] == pytest.approx(level, abs=0.02)
        assert 1 / (1 + numbers["variation"]) < level - 0.05  # what it would be with the noise


def test_a_short_memory_has_no_flatness_and_all_its_mass_near() -> None:
    curve = np.zeros(64)
    curve[31:63] = 1 / 32
    numbers = still(curve).numbers(near=32, sequences=2)
    assert numbers["flatness"] is None
    assert numbers["peak_mass"] == pytest.approx(1.0)


def test_a_head_without_any_far_weight_is_left_out_of_the_mean() -> None:
    curve = np.zeros((2, 31))
    curve[0, :20], curve[1, 25] = 0.05, 1.0
    numbers = still(curve).numbers(near=10, sequences=2)
    assert numbers["per_head"]["flatness"] == [pytest.approx(1.0), None]
    assert numbers["flatness"] == pytest.approx(1.0)
    assert numbers["peak_mass"] == pytest.approx(0.5)


class Counted(torch.nn.Module):
    """Gives each sequence its first token as weight everywhere, so that averages can be checked."""

    def last_query_weights(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        assert not self.training
        assert not torch.is_grad_enabled()
        return {"layer0/attention": tokens[:, :1, None].double().expand(-1, 2, tokens.shape[1])}


def test_weights_are_averaged_over_all_sequences_in_evaluation_mode() -> None:
    model = Counted().train()
    tokens = torch.tensor([[1, 0], [2, 0], [6, 0]])
    panels, count = attention.measure(model, iter(tokens.split(2)))
    assert count == 3
    assert panels["layer0/attention"].mean == pytest.approx(np.full((2, 2), 3.0))
    assert panels["layer0/attention"].deviation == pytest.approx(np.full((2, 2), np.std([1, 2, 6], ddof=1)))
    assert model.training


def test_the_same_sequences_at_every_call_and_others_for_another_seed_or_task() -> None:
    config = quick_config("data.mixture={recall: 1, text: 1}")
    first, again = (attention.held_out(config, "text", 5, 64) for _ in range(2))
    assert np.array_equal(first, again)
    assert first.shape == (5, 64)
    assert not np.array_equal(first, attention.held_out(config, "text", 5, 64, seed=1))
    assert not np.array_equal(first, attention.held_out(config, "recall", 5, 64))


def panel(flatness: float | None, *peaks: float) -> dict[str, object]:
    return {"flatness": flatness, "peak_mass": float(np.mean(peaks)), "per_head": {"peak_mass": list(peaks)}}


def test_scores_are_means_over_layers_and_far_is_the_memory_that_reaches_far() -> None:
    found = attention.summed_up(
        {
            "layer0/long-term": panel(0.9, 0.2, 0.4),
            "layer0/short-term": panel(None, 1.0, 1.0),
            "layer1/long-term": panel(0.5, 0.0, 0.2),
            "layer1/short-term": panel(None, 1.0, 1.0),
        }
    )
    assert found == pytest.approx(
        {
            "flatness-long-term": 0.7,
            "flatness-far": 0.7,
            "peak-mass-long-term": 0.2,
            "peak-mass-short-term": 1.0,
            "peak-mass": 0.6,
        }
    )
    alone = attention.summed_up({"layer0/attention": panel(0.25, 0.75)})
    assert alone["flatness-far"] == 0.25
    assert alone["peak-mass"] == alone["peak-mass-attention"] == 0.75
    assert "flatness-far" not in attention.summed_up({"layer0/short-term": panel(None, 1.0)})


def looking(name: str, *words: str) -> object:
    mixture = ["model.layers=1", "data.length=64", "data.mixture={recall: 1, text: 1}", "training.precision=float32"]
    settings = ["evaluation.examples=4", "evaluation.attention=16", "evaluation.lengths=[1,2]"]
    typed = {word.partition("=")[0] for word in words}
    settings = [word for word in settings if word.partition("=")[0] not in typed]
    return load("smoke", [f"model.name={name}", *mixture, *settings, *words])


@pytest.mark.parametrize("near", [30, 31, 61, 62, 16])
@pytest.mark.parametrize("name", ["mosaic-v2", "mosaic-v1", "transformer", "transformer-masks", "mamba2"])
def test_every_model_has_the_scores_that_are_promised_of_it(name: str, near: int) -> None:
    """What a claim may be about is asked of the configuration; what there is, of the model: they must agree, also where a
    window of 32, or the length itself, ends just within what is near, or just beyond."""
    from mmctl.sweeps.metrics import attention_scores

    config = looking(name, f"evaluation.attention={near}")
    model = models.build(config)  # type: ignore[arg-type]
    found = evaluate(model, config, ATTENTION)
    promised = set(attention_scores(config))  # type: ignore[arg-type]
    assert set(found["scores"]) == promised
    assert all(0 < score["value"] <= 1 + 1e-6 for score in found["scores"].values())
    if name == "mamba2":
        assert not promised
        assert "no attention weights" in found["skipped"]["attention@2x"]
    else:
        far = {"mosaic-v2": "long-term", "mosaic-v1": "contextual", "transformer": "attention"}.get(
            name, "attention-long"
        )
        assert found["scores"]["attention/flatness-far@2x"] == found["scores"][f"attention/flatness-{far}@2x"]


def test_equal_keys_are_perfectly_flat_through_the_models_own_operations() -> None:
    """A mosaic whose tokens are all the same weighs all earlier positions alike."""
    config = looking("mosaic-v2")
    model = models.build(config)  # type: ignore[arg-type]
    panels, count = attention.measure_on(model, np.zeros((2, 64), dtype=np.int64), "cpu")
    far = panels["layer0/long-term"].numbers(16, count)
    assert far["flatness"] == pytest.approx(1.0, abs=1e-3)
    # m = 8 at T = 64: positions 0 .. 55 are read, of which 47 .. 55 are among the last 16.
    assert far["peak_mass"] == pytest.approx(9 / 56, abs=2e-3)


def test_it_is_measured_where_it_is_asked_for_of_the_trained_model_and_no_part_of_what_is_trained() -> None:
    plain, asked = quick_config(), quick_config("evaluation.attention=8")
    assert ATTENTION not in scored_at_end(plain)
    assert scored_at_end(asked) == [*scored_at_end(plain), ATTENTION]
    assert reported(asked, Changes(remove_long_term=True)) == reported(plain)
    assert identity(plain) == identity(asked)
    with pytest.raises(UsageError, match=r"evaluation\.attention=-1"):
        quick_config("evaluation.attention=-1")


def test_another_peak_is_another_measurement_and_the_suites_stay_what_they_are() -> None:
    own = quick_config("evaluation.attention=8")
    files = {
        "attention": evaluate(models.build(own), own, ATTENTION),
        "recall": {"suite": "new-knowledge", "settings": attention.settings_dict(own)},
    }
    run = SimpleNamespace(evaluation=files.get, config=lambda: own)
    assert find_evaluation(run, own, ATTENTION) == ("attention", files["attention"])
    wider = replace(own, evaluation=replace(own.evaluation, attention=16))
    assert stem_in(run, wider, ATTENTION) == "attention+near=16"
    assert find_evaluation(run, wider, ATTENTION) is None
    assert stem_in(run, wider, "new-knowledge") == "new-knowledge"


def test_what_is_too_long_for_the_corpus_is_said_and_the_rest_is_measured(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a short text, said again. " * 400)
    config = looking("transformer", f"data.text={tmp_path}", "evaluation.lengths=[1,64]")
    found = evaluate(models.build(config), config, ATTENTION)  # type: ignore[arg-type]
    assert "attention/flatness-far@1x" in found["scores"]
    assert list(found["skipped"]) == ["attention@64x"]


@pytest.mark.parametrize(("near", "measured"), [(61, ["1x", "2x"]), (62, ["2x"]), (125, ["2x"]), (126, []), (5000, [])])
def test_where_everything_is_near_nothing_is_a_score(near: int, measured: list[str]) -> None:
    words = ["model.layers=1", "data.length=64", "evaluation.lengths=[1,2]", "evaluation.examples=2"]
    config = quick_config(*words, f"evaluation.attention={near}")
    found = attention.attend(models.build(config), config)
    assert list(found["panels"]) == measured
    assert {name.rpartition("@")[2] for name in found["scores"]} == set(measured)
    assert all(why.endswith(" tokens") for why in found["skipped"].values())
    assert len(found["skipped"]) == 2 - len(measured)
