"""Two pipeline stages, two processes: gradients, s_i and m_i are those of one process's autograd,
with an execution of more rows than the pipeline's window and with one that it can hold."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from gyre.adapters.microsteps import encode_microstep
from gyre.cell_agent.trainer.conversion import megatron_to_hf
from gyre.cell_agent.trainer.hf_config import read_policy_config
from gyre.cell_agent.trainer.weights_io import read_weights
from gyre.core.microstep import MicroStep
from gyre.core.objective import ExecutionLoss, ExecutionTargets, ObjectiveSettings, execution_loss
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.training import PlainPolicy, plain_gradients
from gyre.testkit.training_trees import TreeShape, laid_flat, random_tree_step

pytestmark = pytest.mark.timeout(240)

STAGES = 2
DEADLINE_S = 150
# Some executions of a random policy are masked, some not.
OBJECTIVE = ObjectiveSettings(
    name="gspo_token", clip_low=0.5, clip_high=1.5, token_weight_cap=5.0, loss_cap=100.0
)
SHAPE = TreeShape(num_edges=24, edge_tokens=6, depth_first=0.5, vocab_size=400)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A batch as both stages trained it. told: by stage, by micro-step."""

    model: Path
    told: tuple[list[dict[str, Any]], ...]
    stages: tuple[dict[str, torch.Tensor], ...]

    def gradients(self) -> dict[str, torch.Tensor]:
        """By Hugging Face names, of all stages."""
        named = {name: value for stage in self.stages for name, value in stage.items()}
        return megatron_to_hf(named, read_policy_config(self.model))


def steps_of_batch() -> list[MicroStep]:
    """One micro-step of one execution of many rows, one of several small executions with rows of
    trees and a placeholder; between them one whose s_i is infinite."""
    large = laid_flat(random_tree_step(random.Random(4), SHAPE, num_executions=1))
    small = random_tree_step(random.Random(2), SHAPE, num_executions=5)
    assert len(large.rows) > len(small.rows) > 1
    block = large.rows[0].blocks[0]
    absurd = replace(block, behaviour_logprobs=(-1e6,) * len(block.behaviour_logprobs))
    spoilt = replace(large, rows=(replace(large.rows[0], blocks=(absurd,)), *large.rows[1:]))
    return [
        replace(step, index=index, normalizer=8)
        for index, step in enumerate([large, spoilt, small])
    ]


LARGE, SPOILT, SMALL = STEPS = steps_of_batch()
WINDOWS = {"every row twice": 1, "the large one twice": len(SMALL.rows), "held": len(LARGE.rows)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, bool], Run]:
    """Of each window, with embeddings tied and not; and one with an objective that is not there."""
    work = tmp_path_factory.mktemp("pipeline")
    models = {
        tied: make_tiny_model(work / f"tied-{tied}", num_layers=4, tie_word_embeddings=tied)
        for tied in (True, False)
    }
    paths = []
    for step in STEPS:
        paths.append(str(work / f"{step.index}.npz"))
        Path(paths[-1]).write_bytes(encode_microstep(step))
    asked = {(name, tied): window for name, window in WINDOWS.items() for tied in (True, False)}
    asked["no such objective", True] = 1
    plan = [
        {
            "model": str(models[tied]),
            "dtype": "float64",
            "rows_per_unit": 1,
            "window": window,
            "steps": paths,
            "objective": objective_named("gspo_token" if name in WINDOWS else "nonsense"),
        }
        for (name, tied), window in asked.items()
    ]
    run_stages(work, plan)
    return {key: read_run(work, number, models[key[1]]) for number, key in enumerate(asked)}


def objective_named(name: str) -> dict[str, Any]:
    settings = {field: getattr(OBJECTIVE, field) for field in ObjectiveSettings.__slots__}
    return settings | {"name": name}


def run_stages(work: Path, plan: Sequence[Mapping[str, Any]]) -> None:
    (work / "plan.json").write_text(json.dumps(plan))
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "gyre.testkit.pipeline_stages"),
            *("--stages", str(STAGES), "--store", str(work / "store")),
            *("--plan", str(work / "plan.json"), "--out", str(work / "stage")),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def read_run(work: Path, number: int, model: Path) -> Run:
    places = [work / f"stage.{stage}.{number}" for stage in range(STAGES)]
    return Run(
        model=model,
        told=tuple(json.loads(Path(f"{place}.json").read_text()) for place in places),
        stages=tuple(safetensors.torch.load_file(f"{place}.safetensors") for place in places),
    )


def plain_policy(model: Path) -> PlainPolicy:
    weights = {name: w.double() for name, w in read_weights(model).items()}
    return PlainPolicy(weights, json.loads((model / "config.json").read_text()))


def plain_executions(model: Path, step: MicroStep) -> list[ExecutionLoss]:
    """s_i and m_i by execution, from its targets in all rows."""
    policy = plain_policy(model)
    logprobs: list[list[float]] = [[] for _ in step.executions]
    behaviour: list[list[float]] = [[] for _ in step.executions]
    with torch.no_grad():
        for block in step.blocks:
            temperature = step.executions[block.execution].temperature
            logprobs[block.execution] += policy.logprobs(block, temperature).tolist()
            behaviour[block.execution] += block.behaviour_logprobs
    return [
        execution_loss(
            ExecutionTargets(
                advantage=info.advantage,
                logprobs=tuple(logprobs[number]),
                behaviour_logprobs=tuple(behaviour[number]),
            ),
            OBJECTIVE,
        )
        for number, info in enumerate(step.executions)
    ]


both = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
each_window = pytest.mark.parametrize("window", list(WINDOWS))


@both
@each_window
def test_the_stages_gradients_are_those_of_one_process(
    runs: Mapping[tuple[str, bool], Run], window: str, tied: bool
) -> None:
    """Of the batch's two finite micro-steps: of the third nothing was added, on either stage."""
    run = runs[window, tied]
    policy = plain_policy(run.model)
    plain_gradients(policy, [LARGE, SMALL], OBJECTIVE)
    found, expected = run.gradients(), policy.gradients()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.norm() > 0
        assert (found[name] - gradient).norm().item() <= 1e-10 * gradient.norm().item(), name


@both
@each_window
def test_both_stages_are_told_the_loss_s_and_m_of_one_process(
    runs: Mapping[tuple[str, bool], Run], window: str, tied: bool
) -> None:
    run = runs[window, tied]
    assert run.told[0] == run.told[1]
    for step in (LARGE, SMALL):
        told, expected = run.told[0][step.index], plain_executions(run.model, step)
        assert told["ratios"] == pytest.approx([e.ratio for e in expected], rel=1e-10)
        assert told["kept"] == [e.kept for e in expected]
        loss = sum(e.loss for e in expected) / step.normalizer
        assert told["loss"] == pytest.approx(loss, rel=1e-10)
    # What is masked would leave its gradient untested.
    assert run.told[0][LARGE.index]["kept"][0]
    assert set(run.told[0][SMALL.index]["kept"]) == {True, False}


@each_window
def test_rows_beyond_the_window_are_forwarded_twice(
    runs: Mapping[tuple[str, bool], Run], window: str
) -> None:
    for step in (LARGE, SMALL):
        told = runs[window, True].told[0][step.index]
        passes = 2 if len(step.rows) > WINDOWS[window] else 1
        assert told["units"] == len(step.rows)
        assert told["num_forwarded_tokens"] == passes * step.num_tokens


@both
def test_both_copies_of_a_tied_embedding_hold_its_whole_gradient(
    runs: Mapping[tuple[str, bool], Run], tied: bool
) -> None:
    embedding = "embedding.word_embeddings.weight"
    first, last = runs["held", tied].stages
    assert (embedding in last) == tied
    assert not tied or torch.equal(first[embedding], last[embedding])


@each_window
def test_what_the_objective_refuses_is_raised_on_both_stages_alike(
    runs: Mapping[tuple[str, bool], Run], window: str
) -> None:
    for told in runs[window, True].told:
        assert "1 execution ratios" in told[SPOILT.index]["error"]
    for told in runs["no such objective", True].told:
        assert all("nonsense" in one["error"] for one in told)
    for gradients in runs["no such objective", True].stages:
        assert all(not gradient.any() for gradient in gradients.values())
