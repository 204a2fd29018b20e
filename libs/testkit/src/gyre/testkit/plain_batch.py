"""A batch's loss and gradient by plain autograd in one process, to hold trainers against."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gyre.core.microstep import MicroStep
from gyre.testkit.trainer_cells import OBJECTIVE
from gyre.testkit.training import PlainPolicy, plain_gradients

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Plain:
    """gradients: by Hugging Face names."""

    loss: float
    gradients: dict[str, torch.Tensor]


def plain_run(model: Path, steps: Sequence[MicroStep], dtype: torch.dtype) -> Plain:
    """Of the micro-steps of one batch under OBJECTIVE. model: a Hugging Face directory."""
    from gyre.cell_agent.trainer.model.weights_io import read_weights

    weights = {name: value.to(dtype) for name, value in read_weights(model).items()}
    policy = PlainPolicy(weights, json.loads((model / "config.json").read_text()))
    loss = plain_gradients(policy, steps, OBJECTIVE)
    return Plain(loss=loss, gradients=policy.gradients())


def largest_difference(
    found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> float:
    """Relative, by tensor: |found - expected| / |expected| in the 2-norm."""
    assert found.keys() == expected.keys()
    return max(
        float((found[name] - expected[name]).norm() / expected[name].norm()) for name in expected
    )
