"""A stream over two and over four pipeline stages, a process each: gradients bit-equal to those of
Megatron's own schedule, and to 1e-10 those of one process's autograd where units are more than one.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from gyre.adapters.microsteps import encode_microstep
from gyre.cell_agent.trainer.model.hf_config import read_policy_config
from gyre.cell_agent.trainer.model.weights_io import read_weights
from gyre.core.microstep import MicroStep
from gyre.core.objective import ExecutionLoss, ExecutionTargets, ObjectiveSettings, execution_loss
from gyre.testkit.hf_conversion import megatron_to_hf
from gyre.testkit.stream_stages import Run, plan_of
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.training import PlainPolicy, plain_gradients
from gyre.testkit.training_trees import TreeShape, laid_flat, random_tree_step

pytestmark = pytest.mark.timeout(240)

DEADLINE_S = 200
# Some executions of a random policy are masked, some not.
OBJECTIVE = ObjectiveSettings(
    name="gspo_token", clip_low=0.5, clip_high=1.5, token_weight_cap=5.0, loss_cap=100.0
)
SHAPE = TreeShape(num_edges=24, edge_tokens=6, depth_first=0.5, vocab_size=400)
NUM_STEPS = 7
LATE, FLUSHED = 3, 4
EMBEDDING = "embedding.word_embeddings.weight"


def steps_of_one_unit() -> list[MicroStep]:
    """Micro-steps of different lengths, as a job has them; one of them is a placeholder alone."""
    steps = [
        random_tree_step(random.Random(seed), SHAPE, num_executions=1 + seed % 3)
        for seed in range(NUM_STEPS)
    ]
    steps[5] = replace(steps[5], executions=steps[5].executions[-1:], rows=())
    return [
        replace(step, index=index, normalizer=8, window_rows=max(1, len(step.rows)))
        for index, step in enumerate(steps)
    ]


def steps_of_rows() -> list[MicroStep]:
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


LARGE, SPOILT, SMALL = ROWS = steps_of_rows()
UNITS = {"a unit each row": 1, "one unit": len(LARGE.rows)}
"""Rows a unit."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A batch as the stages trained it; what each was told, and its gradients."""

    model: Path
    told: tuple[dict[str, Any], ...]
    stages: tuple[dict[str, torch.Tensor], ...]

    def gradients(self) -> dict[str, torch.Tensor]:
        """By Hugging Face names, of all stages."""
        named = {name: value for stage in self.stages for name, value in stage.items()}
        return megatron_to_hf(named, read_policy_config(self.model))


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Of one number of stages, by name. lost: by stage, what the survivors of the last run said."""

    ran: Mapping[str, Ran]
    lost: tuple[dict[str, Any] | None, ...]


def plan(models: Mapping[bool, Path], work: Path, num_stages: int) -> dict[str, Run]:
    def stored(steps: list[MicroStep], name: str) -> list[str]:
        paths = [work / f"{name}-{step.index}" for step in steps]
        for path, step in zip(paths, steps, strict=True):
            path.write_bytes(encode_microstep(step))
        return [str(path) for path in paths]

    settings = {field: getattr(OBJECTIVE, field) for field in ObjectiveSettings.__slots__}
    ones, rows = stored(steps_of_one_unit(), "one"), stored(ROWS, "rows")
    # Megatron's schedule knows no micro-step without a target.
    full = [path for number, path in enumerate(ones) if number != 5]
    runs: dict[str, Run] = {}
    for tied, model in models.items():
        stream = Run(model=str(model), dtype="float32", steps=ones, objective=settings)
        runs[f"megatron {tied}"] = replace(stream, steps=full, schedule="megatron")
        runs[f"stream {tied}"] = stream
        for name, size in UNITS.items():
            exact = replace(stream, steps=rows, dtype="float64", rows_per_unit=size)
            runs[f"{name} {tied}"] = exact
    stream = runs["stream True"]
    runs["late"] = replace(stream, late=[LATE])
    runs["flushed"] = replace(stream, flushed=[FLUSHED])
    runs["nonsense"] = replace(stream, objective=settings | {"name": "nonsense"})
    runs["dies"] = replace(stream, dies=[num_stages - 1, 2])
    return runs


@pytest.fixture(scope="module", params=[2, 4], ids=["PP2", "PP4"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    num_stages: int = request.param
    work = tmp_path_factory.mktemp("stream")
    models = {
        tied: make_tiny_model(work / f"tied-{tied}", num_layers=4, tie_word_embeddings=tied)
        for tied in (True, False)
    }
    asked = plan(models, work, num_stages)
    (work / "plan.json").write_text(plan_of(list(asked.values())))
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "gyre.testkit.stream_stages"),
            *("--stages", str(num_stages), "--store", str(work / "store")),
            *("--plan", str(work / "plan.json"), "--out", str(work / "stage")),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return read_runs(work, asked, num_stages)


def read_runs(work: Path, asked: Mapping[str, Run], num_stages: int) -> Runs:
    def told(stage: int, number: int) -> dict[str, Any] | None:
        path = work / f"stage.{stage}.{number}.json"
        return json.loads(path.read_text()) if path.exists() else None

    ran, lost = {}, tuple[dict[str, Any] | None, ...]()
    for number, (name, run) in enumerate(asked.items()):
        answers = tuple(told(stage, number) for stage in range(num_stages))
        if run.dies is not None:
            lost = answers
            continue
        ran[name] = Ran(
            model=Path(run.model),
            told=tuple(answer for answer in answers if answer is not None),
            stages=tuple(
                safetensors.torch.load_file(work / f"stage.{stage}.{number}.safetensors")
                for stage in range(num_stages)
            ),
        )
    return Runs(ran=ran, lost=lost)


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


def assert_bit_equal(found: Ran, expected: Ran) -> None:
    for stage, (ours, theirs) in enumerate(zip(found.stages, expected.stages, strict=True)):
        assert ours.keys() == theirs.keys()
        for name, gradient in theirs.items():
            assert gradient.any(), name
            assert torch.equal(ours[name], gradient), (stage, name)


both = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
each_size = pytest.mark.parametrize("units", list(UNITS))


@both
def test_gradients_are_bit_equal_to_those_of_megatrons_schedule(runs: Runs, tied: bool) -> None:
    assert_bit_equal(runs.ran[f"stream {tied}"], runs.ran[f"megatron {tied}"])


@pytest.mark.parametrize("stopped", ["late", "flushed"])
def test_a_stream_that_stops_on_the_way_gives_the_same_bits(runs: Runs, stopped: str) -> None:
    assert_bit_equal(runs.ran[stopped], runs.ran["megatron True"])


def test_a_batch_warms_up_once_and_again_only_after_a_stop(runs: Runs) -> None:
    warmups = {
        name: {told["num_warmups"] for told in runs.ran[name].told}
        for name in ("stream True", "late", "flushed")
    }
    assert warmups == {"stream True": {1}, "late": {2}, "flushed": {2}}


def test_every_stage_knows_of_every_micro_step(runs: Runs) -> None:
    """The placeholder's too, which no stage computes: it may be done before those under way."""
    for name in ("stream True", "late", "flushed"):
        first, *others = runs.ran[name].told
        assert sorted(first["accumulated"]) == list(range(NUM_STEPS))
        assert {one["micro_step"] for one in first["executions"]} == set(range(NUM_STEPS))
        assert all(
            told["executions"] == first["executions"] and told["loss"] == first["loss"]
            for told in others
        )


@both
@each_size
def test_gradients_are_those_of_one_process_however_many_units(
    runs: Runs, units: str, tied: bool
) -> None:
    """Of the batch's two finite micro-steps: of the third nothing was added, on any stage."""
    ran = runs.ran[f"{units} {tied}"]
    policy = plain_policy(ran.model)
    plain_gradients(policy, [LARGE, SMALL], OBJECTIVE)
    found, expected = ran.gradients(), policy.gradients()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.norm() > 0
        assert (found[name] - gradient).norm().item() <= 1e-10 * gradient.norm().item(), name


@both
@each_size
def test_s_and_m_are_those_of_one_process(runs: Runs, units: str, tied: bool) -> None:
    ran = runs.ran[f"{units} {tied}"]
    told = ran.told[0]["executions"]
    for step in (LARGE, SMALL):
        ours = [one for one in told if one["micro_step"] == step.index]
        expected = plain_executions(ran.model, step)
        assert [one["ratio"] for one in ours] == pytest.approx(
            [e.ratio for e in expected], rel=1e-10
        )
        assert [one["kept"] for one in ours] == [e.kept for e in expected]
    # What is masked would leave its gradient untested.
    assert {one["kept"] for one in told if one["micro_step"] == SMALL.index} == {True, False}


@each_size
def test_a_loss_that_is_not_finite_is_noted_and_stops_no_stage(runs: Runs, units: str) -> None:
    for told in runs.ran[f"{units} True"].told:
        assert {one["ratio"] for one in told["executions"] if one["micro_step"] == 1} == {None}
        (problem,) = told["problems"]
        assert problem.startswith("micro-step 1: not finite: 1 execution ratios")


@each_size
def test_more_units_than_one_are_forwarded_twice(runs: Runs, units: str) -> None:
    told = runs.ran[f"{units} True"].told[0]
    flat = sum(step.num_tokens for step in ROWS)
    if UNITS[units] == 1:
        assert told["num_forwarded_tokens"] == 2 * flat
    else:
        assert told["num_forwarded_tokens"] < flat


@both
def test_both_copies_of_a_tied_embedding_hold_its_whole_gradient(runs: Runs, tied: bool) -> None:
    first, *_, last = runs.ran[f"stream {tied}"].stages
    assert (EMBEDDING in last) == tied
    assert not tied or torch.equal(first[EMBEDDING], last[EMBEDDING])


def test_what_no_objective_takes_is_refused_on_all_stages_alike(runs: Runs) -> None:
    refused = {told["refused"] for told in runs.ran["nonsense"].told}
    assert len(refused) == 1
    assert "micro-step 0: objective.name: no objective is called 'nonsense'" in refused.pop()
    for gradients in runs.ran["nonsense"].stages:
        assert all(not gradient.any() for gradient in gradients.values())


def test_a_stages_death_ends_what_the_others_wait_for(runs: Runs) -> None:
    *survivors, killed = runs.lost
    assert killed is None
    for told in survivors:
        assert told is not None
        assert "a rank of this cell is gone" in told["lost"]
        # Far below the time-out of a wait, which is a minute here.
        assert told["seconds"] < 20
