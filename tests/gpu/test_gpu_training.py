"""A training step on a GPU, a role switch on the one that the engine has, a world over NCCL.

Trainers are processes, as an agent starts them; the one with no GPU to see is the CPU's.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch

from gyre.cell_agent import engine_turn
from gyre.cell_agent.cell_memory import CellMemory, cell_memory
from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine.process import EngineProcess
from gyre.cell_agent.engine.tensors import read_directory
from gyre.cell_agent.group import TrainerGroup
from gyre.cell_agent.phases import now
from gyre.cell_agent.trainer.process.client import TrainerRefused
from gyre.core.microstep import NO_EDGE, Edge, ExecutionInfo, MicroStep, Row, TreeBlock
from gyre.testkit.trainer_calls import stopped
from gyre.testkit.trainer_cells import CALL_S, Cells, batch_of_steps, running

HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
PROMPT = range(20, 60)
NUM_SAMPLED = 24
# cuBLAS' workspaces, one a thread that computes, and the allocator's smallest blocks. A trainer of
# `models` takes more than four times as much.
LEFT_BYTES = 160 * 2**20
AT_ONCE_S = 30.0
_calls = itertools.count()


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-3), ("bfloat16", 0.1)])
async def test_a_steps_gradients_on_a_gpu_are_the_cpus(
    device: torch.device, tmp_path: Path, dtype: str, bound: float
) -> None:
    async with running(tmp_path, dtype=dtype, num_cells=0) as cells:
        found, norms = [], []
        for environment in (HIDDEN, {}):
            trainer = await cells.add(**environment)
            await trainer.call("restore", CALL_S)
            await cells.form([trainer])
            await cells.begin([trainer])
            await cells.train(trainer, batch_of_steps())
            found.append(await cells.gradients(trainer))
            (finished,) = await cells.finish([trainer])
            assert isinstance(finished, dict)
            assert not finished["skipped"]
            norms.append(finished["grad_norm"])
    expected, computed = found
    assert computed.keys() == expected.keys()
    sizes = {name: gradient.float().norm().item() for name, gradient in expected.items()}
    for name, gradient in expected.items():
        difference = (computed[name].float() - gradient.float()).norm().item()
        # Some are sums that nearly cancel.
        assert difference <= bound * max(sizes[name], 0.1 * max(sizes.values())), name
    assert norms[1] == pytest.approx(norms[0], rel=bound)


@asynccontextmanager
async def trainer_of(model: Path, work: Path) -> AsyncIterator[tuple[Cells, TrainerGroup]]:
    cells = Cells(model=model, work=work, dtype="float32", port=1)
    try:
        yield cells, await cells.add()
    finally:
        await asyncio.gather(*(stopped(trainer) for trainer in cells.trainers))


async def held(engine: EngineProcess, trainer: TrainerGroup) -> tuple[int, int]:
    """By the engine and by the trainer, as a role switch's phases record it."""
    memory: CellMemory = await cell_memory(engine.pid, trainer, on_device=True)
    assert memory.engine_bytes is not None
    assert memory.trainer_bytes is not None
    return memory.engine_bytes, memory.trainer_bytes


async def to_training(engine: EngineProcess, trainer: TrainerGroup) -> None:
    """Its phases; at the end of none do both hold their memory."""
    serving, kept = await held(engine, trainer)
    assert kept <= LEFT_BYTES
    await engine_turn.stop_admitting(engine.client, now())
    await engine_turn.release(engine.client)
    assert (await held(engine, trainer))[0] < 0.5 * serving
    await trainer.call("restore", CALL_S)
    assert (await held(engine, trainer))[0] < 0.5 * serving


async def to_rollout(engine: EngineProcess, trainer: TrainerGroup, directory: Path) -> None:
    """Up to where the engine has its memory again."""
    assert (await held(engine, trainer))[1] > 4 * LEFT_BYTES
    await trainer.call("offload", CALL_S, directory=directory)
    assert (await held(engine, trainer))[1] <= LEFT_BYTES
    assert await engine_turn.take_back(engine.client)


async def sampled(client: EngineClient, version: int) -> MicroStep:
    """What the engine says now and with which probability, as a step to train on."""
    answer = await client.generate(
        input_ids=PROMPT,
        sampling_params={
            "temperature": 1.0,
            "max_new_tokens": NUM_SAMPLED,
            "ignore_eos": True,
        },
        rid=f"sampled-{next(_calls)}",
    )
    assert answer.weight_version == f"0.{version}"
    tokens = (*PROMPT, *answer.output_ids)
    block = TreeBlock(
        execution=0,
        token_ids=tokens,
        edges=(Edge(start=0, stop=len(tokens), parent=NO_EDGE),),
        target_positions=tuple(range(len(PROMPT), len(tokens))),
        behaviour_logprobs=answer.logprobs,
        versions=(version,) * len(answer.output_ids),
    )
    info = ExecutionInfo(
        execution="e0",
        group="g0",
        advantage=0.5,
        num_targets=len(answer.output_ids),
        temperature=1.0,
    )
    return MicroStep(
        batch=f"b{version}",
        index=0,
        row_tokens=len(tokens),
        window_rows=1,
        normalizer=1,
        executions=(info,),
        rows=(Row(blocks=(block,)),),
    )


async def test_a_switch_gives_the_device_to_the_trainer_and_back_with_what_it_has_learnt(
    engine: EngineProcess, models: tuple[Path, Path], device: torch.device, tmp_path: Path
) -> None:
    """The engine's probabilities of what it then says are the trainer's: on a GPU nothing else
    tells which weights it serves."""
    client, directory = engine.client, tmp_path / "l0-v00004"
    async with trainer_of(models[0], tmp_path) as (cells, trainer):
        await to_training(engine, trainer)
        await cells.form([trainer])
        await cells.begin([trainer], "b0")
        await cells.train(trainer, batch_of_steps())
        (finished,) = await cells.finish([trainer], final=True)
        assert isinstance(finished, dict)
        assert not finished["skipped"]
        saved = await trainer.call("save_checkpoint", CALL_S, directory=directory)
        await to_rollout(engine, trainer, tmp_path)
        weights = read_directory(directory)
        await client.update_weights_from_tensors(weights, weight_version="0.4")
        await client.confirm_tensors(weights, saved["sha256"])
        await engine_turn.warm(client)
        step = await sampled(client, 4)
        await to_training(engine, trainer)
        learnt = await mismatch(cells, trainer, step, 4)
        await trainer.call("drop_accumulation", CALL_S)
        await cells.load(trainer)
        before = await mismatch(cells, trainer, step, 3)
    assert learnt < 0.1
    assert before > 2 * learnt


async def mismatch(cells: Cells, trainer: TrainerGroup, step: MicroStep, version: int) -> float:
    """Between the trainer's weights, of that version, and the engine's: mean over the targets of
    the distance of their log-probabilities, in nats."""
    await cells.begin([trainer], step.batch, version)
    (report,) = await cells.train(trainer, [step])
    (one,) = report["mismatches"]
    return float(one["mean_abs"])


async def test_two_cells_sum_their_gradients_over_nccl_and_one_that_dies_is_missed_at_once(
    device: torch.device, tmp_path: Path
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL has one rank a GPU, and there is one GPU")
    steps = batch_of_steps()
    async with running(tmp_path, dtype="float32", num_cells=0) as cells:
        members = [await cells.add(CUDA_VISIBLE_DEVICES=str(number)) for number in range(2)]
        core, satellite = members
        await asyncio.gather(*(member.call("restore", CALL_S) for member in members))
        await cells.form(members)
        await cells.begin(members)
        await cells.train(core, steps[:2])
        await cells.train(satellite, steps[2:])
        finished = await cells.finish(members)
        assert all(isinstance(one, dict) for one in finished)
        sums = [await member.call("checksum", CALL_S) for member in members]
        assert sums[0] == sums[1]

        await cells.begin(members, "b1", 4)
        left = asyncio.create_task(
            core.call("finish_batch", CALL_S, members=[0, 1], epoch=cells.epoch, final=False)
        )
        satellite.kill()
        async with asyncio.timeout(AT_ONCE_S):
            with pytest.raises(TrainerRefused, match="peer_lost"):
                await left
        cells.trainers.remove(satellite)
        await satellite.wait()
