"""Precision of parameters, gradients and masters, and activations that are computed again.

`test_trainer_state_law.py` runs these in a process of their own, with `check_checkpoints.py`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from gyre.testkit.trainer_by_commands import LR, accumulate, assert_identical, make, update

pytestmark = pytest.mark.filterwarnings("ignore:::megatron.*")


@pytest.fixture(scope="module")
def model_path() -> Path:
    return Path(os.environ["GYRE_CHECKED_MODEL"])


def test_half_precision_parameters_have_full_gradients_and_masters(
    model_path: Path, tmp_path: Path
) -> None:
    trainer = make(model_path, "bfloat16")
    update(trainer, 0, tmp_path)
    parameters = trainer.trainer.parameters
    state = trainer.trainer.optimizer_state()
    assert state is not None
    assert {value.dtype for value in parameters.values()} == {torch.bfloat16}
    assert {gradient.dtype for gradient in trainer.trainer.gradients().values()} == {torch.float32}
    for name, value in parameters.items():
        kept = state["parameters"][name]
        assert {kept[key].dtype for key in ("master", "exp_avg", "exp_avg_sq")} == {torch.float32}
        assert torch.equal(value, kept["master"].bfloat16())


def test_updates_below_a_parameters_precision_add_up(model_path: Path, tmp_path: Path) -> None:
    """Adam moves every parameter by about the learning rate, which near 1 is less than bfloat16
    can tell: the norms, which begin there, would never move."""
    trainer = make(model_path, "bfloat16")
    norm = trainer.trainer.parameters["decoder.final_layernorm.weight"]
    before = norm.detach().clone()
    update(trainer, 0, tmp_path)
    assert torch.equal(norm, before)
    state = trainer.trainer.optimizer_state()
    assert state is not None
    master = state["parameters"]["decoder.final_layernorm.weight"]["master"]
    assert (master - before.float()).abs().median() == pytest.approx(LR, rel=0.1)
    assert torch.finfo(torch.bfloat16).eps / 4 > LR


def test_half_precision_gradients_are_near_the_full_ones(model_path: Path, tmp_path: Path) -> None:
    half, full = (make(model_path, dtype) for dtype in ("bfloat16", "float32"))
    for trainer in (half, full):
        accumulate(trainer, 0, tmp_path)
    expected = full.trainer.gradients()
    for name, gradient in half.trainer.gradients().items():
        difference = (gradient.float() - expected[name]).norm() / expected[name].norm()
        assert difference < 0.1, name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_computed_again_give_the_identical_gradient(
    model_path: Path, tmp_path: Path, dtype: str
) -> None:
    kept, again = (make(model_path, dtype, recompute=how) for how in ("none", "full"))
    passes = {"none": 0, "full": 0}
    for how, trainer in (("none", kept), ("full", again)):
        layer = trainer.trainer.model.module.decoder.layers[0]

        def count(*_: Any, how: str = how) -> None:
            passes[how] += 1

        handle = layer.register_forward_hook(count)
        accumulate(trainer, 0, tmp_path)
        handle.remove()
    assert passes == {"none": 1, "full": 2}
    assert_identical(again.trainer.gradients(), kept.trainer.gradients())
