"""Batches trained by one cell in several layouts (`layout_rank`), and how far the gradients of each
are from the plain policy's."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyre.adapters.microsteps import encode_microstep
from gyre.contracts.training_job import LayoutSection, OptimizerSection
from gyre.core.microstep import MicroStep
from gyre.core.objective import ObjectiveSettings
from gyre.testkit.training import PlainPolicy, plain_gradients
from gyre.testkit.training_trees import TreeShape, laid_flat, random_tree_step

if TYPE_CHECKING:
    from torch import Tensor

# Some executions of a random policy are masked, some not.
OBJECTIVE = ObjectiveSettings(
    name="gspo_token", clip_low=0.5, clip_high=1.5, token_weight_cap=5.0, loss_cap=100.0
)
# Nothing is clipped, and an update is large enough beside the weights to be seen.
OPTIMIZER = OptimizerSection(lr=1e-3, grad_clip=1e9)
SHAPE = TreeShape(num_edges=14, edge_tokens=6, depth_first=0.5, vocab_size=400)
DEADLINE_S = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRun:
    """options: of `build_module`, where they are not its defaults. checkpoint: save one behind the
    batch and go on from it (`layout_checkpoint`)."""

    layout: LayoutSection
    model: Path
    dtype: str = "float64"
    options: Mapping[str, bool] = field(default_factory=dict)
    checkpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutResult:
    """told: by rank. gradients: of the whole model, summed over the batch. weights: after its
    update. Both by Hugging Face names."""

    told: tuple[Mapping[str, Any], ...]
    gradients: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]


def steps_of_batch() -> list[MicroStep]:
    """One micro-step of an execution of many rows, in windows that it does not fill; one of several
    small executions with trees and a placeholder; one of a single row, which no two data ranks can
    share."""
    large = laid_flat(random_tree_step(random.Random(7), SHAPE, num_executions=1), window_rows=4)
    small = random_tree_step(random.Random(2), SHAPE, num_executions=5)
    single = random_tree_step(random.Random(7), SHAPE, num_executions=1)
    steps = [
        replace(step, index=index, normalizer=8)
        for index, step in enumerate([large, small, single])
    ]
    assert len(large.rows) % 4
    assert len(single.rows) == 1
    return steps


def run_layouts(
    work: Path, runs: Sequence[LayoutRun], steps: Sequence[MicroStep], *, num_ranks: int = 2
) -> list[LayoutResult]:
    """All runs in one set of rank processes, one after the other."""
    import safetensors.torch

    plan = [_planned(run, paths) for paths in [_written(work, steps)] for run in runs]
    (work / "plan.json").write_text(json.dumps(plan))
    command = [
        *(sys.executable, "-W", "ignore", "-m", "gyre.testkit.layout_rank"),
        *("--ranks", str(num_ranks), "--plan", str(work / "plan.json"), "--out", str(work / "out")),
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True
    ) as ranks:
        try:
            _, said = ranks.communicate(timeout=DEADLINE_S)
        finally:
            # Its forks too: they would wait for one another.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(ranks.pid, signal.SIGKILL)
    if ranks.returncode != 0:
        raise AssertionError(said[-4000:])
    results = []
    for number in range(len(runs)):
        places = [work / f"out.{rank}.{number}" for rank in range(num_ranks)]
        results.append(
            LayoutResult(
                told=tuple(json.loads(Path(f"{place}.json").read_text()) for place in places),
                gradients=safetensors.torch.load_file(f"{places[0]}.gradients"),
                weights=safetensors.torch.load_file(f"{places[0]}.weights"),
            )
        )
    return results


def _written(work: Path, steps: Sequence[MicroStep]) -> list[str]:
    paths = []
    for step in steps:
        path = work / f"{step.index}.step"
        path.write_bytes(encode_microstep(step))
        paths.append(str(path))
    return paths


def _planned(run: LayoutRun, paths: Sequence[str]) -> dict[str, Any]:
    return {
        "layout": run.layout.model_dump(),
        "model": str(run.model),
        "dtype": run.dtype,
        "options": dict(run.options),
        "checkpoint": run.checkpoint,
        "steps": list(paths),
        "objective": asdict(OBJECTIVE),
        "optimizer": OPTIMIZER.model_dump(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainBatch:
    """loss: eq. (6) over the batch; gradients by Hugging Face names, float64."""

    loss: float
    weights: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]


def plain_batch(model: Path, steps: Sequence[MicroStep]) -> PlainBatch:
    from gyre.cell_agent.trainer.model.weights_io import read_weights

    weights = {name: tensor.double() for name, tensor in read_weights(model).items()}
    policy = PlainPolicy(weights, json.loads((model / "config.json").read_text()))
    loss = plain_gradients(policy, steps, OBJECTIVE)
    return PlainBatch(loss=loss, weights=weights, gradients=policy.gradients())


def worst_difference(result: LayoutResult, plain: PlainBatch) -> float:
    """Over the model's tensors: the norm of what a gradient differs by, over its own."""
    assert result.gradients.keys() == plain.gradients.keys()
    differences: list[float] = [
        ((result.gradients[name].double() - gradient).norm() / gradient.norm()).item()
        for name, gradient in plain.gradients.items()
    ]
    return max(differences)
