"""A cell of two ranks computes what one process's autograd does, however its ranks share the model
and the tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from gyre.cell_agent.engine.torch_checksum import checksum
from gyre.cell_agent.trainer.model.weights_io import read_weights
from gyre.contracts.training_job import LayoutSection
from gyre.testkit.layout_runs import (
    OPTIMIZER,
    LayoutResult,
    LayoutRun,
    PlainBatch,
    plain_batch,
    run_layouts,
    steps_of_batch,
    worst_difference,
)
from gyre.testkit.tiny_model import make_tiny_model

pytestmark = pytest.mark.timeout(240)

LAYOUTS = {
    "tensor": LayoutSection(tensor=2),
    "sequence": LayoutSection(tensor=2, sequence_parallel=True),
    "context": LayoutSection(context=2),
    "pipeline": LayoutSection(pipeline=2),
    "data": LayoutSection(data=2),
    "expert_tensor": LayoutSection(tensor=2, sequence_parallel=True, expert=2),
    "expert_context": LayoutSection(context=2, expert=2),
    "expert_data": LayoutSection(data=2, expert=2),
}
# Parts of parameters, other layers, shares of the masters and moments of all of them, and such
# shares beside parameters of one's own.
CHECKPOINTED = {
    "tensor": "float32",
    "pipeline": "float32",
    "data": "bfloat16",
    "expert_data": "bfloat16",
}
STEPS = steps_of_batch()
# Where embeddings and experts are shared out in a way of their own. Megatron shares experts out
# over tensor ranks only with sequence parallelism.
MODELS_OF = {
    "tensor": ("tied", "untied", "llama"),
    "sequence": ("tied", "experts"),
    "context": ("tied",),
    "pipeline": ("tied", "untied", "experts", "llama"),
    "data": ("tied", "experts"),
    "expert_tensor": ("experts",),
    "expert_context": ("experts",),
    "expert_data": ("experts",),
}
# Those of a layout whose precision or checkpoints are looked at.
MODEL_OF = {layout: models[0] for layout, models in MODELS_OF.items()}
# The share of an expert is a softmax that Megatron works out in float32.
LIMITS = {"tied": 1e-10, "untied": 1e-10, "llama": 1e-10, "experts": 1e-6}
Key = tuple[str, str, str]
"""Layout; model; precision, or an option of the model's."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    work = tmp_path_factory.mktemp("models")
    return {
        "tied": make_tiny_model(work / "tied"),
        "untied": make_tiny_model(work / "untied", tie_word_embeddings=False),
        "experts": make_tiny_model(work / "experts", num_experts=4),
        "llama": make_tiny_model(work / "llama", llama=True),
    }


@pytest.fixture(scope="module")
def plain(models: Mapping[str, Path]) -> dict[str, PlainBatch]:
    return {name: plain_batch(model, STEPS) for name, model in models.items()}


@pytest.fixture(scope="module")
def results(
    models: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[Key, LayoutResult]:
    asked: dict[Key, dict[str, Any]] = {}
    for layout in LAYOUTS:
        asked |= {(layout, model, "float64"): {} for model in MODELS_OF[layout]}
        asked[layout, MODEL_OF[layout], "float32"] = {"dtype": "float32"}
    asked["data", "tied", "divided"] = {"options": {"calculate_per_token_loss": False}}
    asked["sequence", "tied", "recomputed"] = {"options": {"recompute": True}}
    for layout, dtype in CHECKPOINTED.items():
        asked[layout, MODEL_OF[layout], "checkpoint"] = {"dtype": dtype, "checkpoint": True}
    runs = [
        LayoutRun(layout=LAYOUTS[layout], model=models[model], **options)
        for (layout, model, _), options in asked.items()
    ]
    found = run_layouts(tmp_path_factory.mktemp("layouts"), runs, STEPS)
    return dict(zip(asked, found, strict=True))


each_layout = pytest.mark.parametrize("layout", list(LAYOUTS))
each_model = pytest.mark.parametrize(
    ("layout", "model"), [(layout, model) for layout, of in MODELS_OF.items() for model in of]
)


@each_model
def test_gradients_in_double_precision_are_those_of_one_process(
    results: Mapping[Key, LayoutResult], plain: Mapping[str, PlainBatch], layout: str, model: str
) -> None:
    assert worst_difference(results[layout, model, "float64"], plain[model]) <= LIMITS[model]


@each_layout
def test_gradients_in_single_precision_are_those_of_one_process(
    results: Mapping[Key, LayoutResult], plain: Mapping[str, PlainBatch], layout: str
) -> None:
    model = MODEL_OF[layout]
    assert worst_difference(results[layout, model, "float32"], plain[model]) <= 1e-5


@each_model
def test_every_rank_says_the_same_of_every_micro_step(
    results: Mapping[Key, LayoutResult], plain: Mapping[str, PlainBatch], layout: str, model: str
) -> None:
    """And the losses add up to the batch's."""
    one, other = (told["micro_steps"] for told in results[layout, model, "float64"].told)
    assert one == other
    # What is masked would leave its gradient untested.
    assert all(answer["clip_fraction"] < 1 for answer in one)
    assert math.fsum(answer["loss"] for answer in one) == pytest.approx(
        plain[model].loss, rel=LIMITS[model]
    )


@each_model
def test_the_update_is_that_of_the_whole_gradient(
    results: Mapping[Key, LayoutResult], plain: Mapping[str, PlainBatch], layout: str, model: str
) -> None:
    """Its norm, which Megatron adds up in float32, counts every parameter once. Adam's first step
    moves each by lr against its gradient's sign, but where that is of the size of eps, which
    magnifies what it differs by."""
    result, expected = results[layout, model, "float64"], plain[model]
    norm = math.sqrt(sum(g.square().sum().item() for g in expected.gradients.values()))
    for told in result.told:
        assert told["finished"]["grad_norm"] == pytest.approx(norm, rel=1e-6)
    for name, before in expected.weights.items():
        gradient = expected.gradients[name]
        step = OPTIMIZER.lr * gradient / (gradient.abs() + OPTIMIZER.eps)
        clear = gradient.abs() > 1000 * OPTIMIZER.eps
        assert clear.any()
        found = before - result.weights[name]
        assert torch.allclose(found[clear], step[clear], rtol=0, atol=1e-5 * OPTIMIZER.lr)


@each_layout
def test_weights_go_in_and_out_bit_for_bit(
    results: Mapping[Key, LayoutResult], models: Mapping[str, Path], layout: str
) -> None:
    for model in MODELS_OF[layout]:
        first = results[layout, model, "float64"].told[0]
        assert first["loaded"]["checksum"] == checksum(read_weights(models[model]))


def test_ranks_that_hold_the_same_parameters_share_their_updates(
    results: Mapping[Key, LayoutResult],
) -> None:
    """Moments lie on one rank each, about as many on either; ranks that hold other parameters
    update all of theirs."""
    everything = results["tensor", "tied", "float64"].told[0]["updated"]
    for layout in ("tensor", "sequence", "context", "data"):
        one, other = (set(told["updated"]) for told in results[layout, "tied", "float64"].told)
        assert one | other == set(everything)
        if layout in ("context", "data"):
            assert one.isdisjoint(other)
            assert min(len(one), len(other)) > len(everything) / 4
        else:
            assert one == other


@pytest.mark.parametrize("layout", ["expert_tensor", "expert_context", "expert_data"])
def test_each_rank_has_and_updates_experts_of_its_own(
    results: Mapping[Key, LayoutResult], models: Mapping[str, Path], layout: str
) -> None:
    """Whole ones, beside its share of what all ranks hold, unless tensor ranks cut that."""
    whole = read_weights(models["experts"])
    in_experts = sum(value.numel() for name, value in whole.items() if ".experts." in name)
    rest = sum(value.numel() for value in whole.values()) - in_experts
    told = results[layout, "experts", "float64"].told
    one, other = ({name for name in rank["updated"] if ".experts." not in name} for rank in told)
    shared = LAYOUTS[layout].tensor == 1
    assert one.isdisjoint(other) if shared else one == other
    for rank in told:
        # Two layers' experts, numbered from this rank's first, each of two matrices.
        assert sum(".experts." in name for name in rank["updated"]) == 2 * 2 * 2
        held = rank["num_parameters"] - in_experts / 2
        assert held == rest if shared else rest / 2 < held < 0.6 * rest


@pytest.mark.parametrize("layout", list(CHECKPOINTED))
def test_ranks_save_one_checkpoint_and_go_on_from_it_to_the_bit(
    results: Mapping[Key, LayoutResult], layout: str
) -> None:
    """And when one of them cannot write its part, all refuse alike and nothing of it is left."""
    told = results[layout, MODEL_OF[layout], "checkpoint"].told
    one, other = (rank["checkpoint"] for rank in told)
    assert one["refused"] == other["refused"] == ["no_space", "no_space"]
    assert one["left"] == ["earlier"]
    assert one["state"] == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    undisturbed, resumed = one["sums"]
    assert undisturbed == resumed


def test_ranks_share_parameters_or_tokens(
    results: Mapping[Key, LayoutResult], models: Mapping[str, Path]
) -> None:
    def of_each(layout: str, what: str) -> list[Any]:
        return [told[what] for told in results[layout, "tied", "float64"].told]

    whole = sum(tensor.numel() for tensor in read_weights(models["tied"]).values())
    for layout, count in (("tensor", 2), ("sequence", 2), ("context", 1), ("data", 1)):
        assert all(n < 1.1 * whole / count for n in of_each(layout, "num_parameters"))
    every_token, _ = of_each("tensor", "norm_tokens")
    half = [math.ceil(n / 2) for n in every_token]
    assert of_each("tensor", "norm_tokens") == [every_token, every_token]
    assert of_each("sequence", "norm_tokens") == of_each("context", "norm_tokens") == [half, half]
    # Of several rows a data rank merges the prefixes of its own; of a single one the other rank
    # has a filler.
    *_, several, single = zip(*of_each("data", "norm_tokens"), strict=True)
    assert 1 < min(several) <= max(several) < every_token[-2]
    assert sorted(single) == [1, every_token[-1]]


def test_megatrons_own_division_by_ranks_changes_nothing(
    results: Mapping[Key, LayoutResult],
) -> None:
    """Nothing divides by tokens or ranks, `calculate_per_token_loss` or not."""
    whole, divided = results["data", "tied", "float64"], results["data", "tied", "divided"]
    assert all(torch.equal(divided.gradients[n], g) for n, g in whole.gradients.items())


def test_layers_that_are_recomputed_give_the_same_gradients(
    results: Mapping[Key, LayoutResult],
) -> None:
    kept, recomputed = (
        results["sequence", "tied", "float64"],
        results["sequence", "tied", "recomputed"],
    )
    assert all(torch.equal(recomputed.gradients[n], g) for n, g in kept.gradients.items())
    once, twice = (result.told[0]["norm_tokens"] for result in (kept, recomputed))
    assert sum(twice) > sum(once)
