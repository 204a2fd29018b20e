"""Cells of two pipeline stages stream a batch over a prefix of cells: the gradient is the plain
run's, and still is when a stage of one of them dies on the way."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
import torch

from gyre.adapters.microsteps import encode_microstep
from gyre.cell_agent.group import TrainerGroup
from gyre.cell_agent.trainer.process.client import TrainerGone
from gyre.contracts.training_job import LayoutSection
from gyre.core.microstep import MicroStep
from gyre.testkit.plain_batch import largest_difference, plain_run
from gyre.testkit.trainer_cells import CALL_S, Cells, batch_of_steps, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cells(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cells]:
    work = tmp_path_factory.mktemp("streams")
    layout = LayoutSection(pipeline=2)
    async with running(work, dtype="float32", num_cells=2, layout=layout) as started:
        yield started


async def streamed(cells: Cells, trainer: TrainerGroup, steps: Sequence[MicroStep]) -> None:
    """Each put in behind the one before; none is waited for."""
    for step in steps:
        path = cells.work / f"{step.batch}-{step.index}"
        path.write_bytes(encode_microstep(step))
        answer = await trainer.call("submit_step", CALL_S, source=path)
        assert answer["accepted"] == step.index


async def test_a_batch_streams_through_two_cells_of_two_stages(cells: Cells) -> None:
    steps, (core, satellite) = batch_of_steps(count=6), cells.trainers
    plain = plain_run(cells.model, steps, torch.float32)
    await cells.form(cells.trainers)
    await cells.begin(cells.trainers)
    await asyncio.gather(streamed(cells, core, steps[:4]), streamed(cells, satellite, steps[4:]))
    answers = await cells.finish(cells.trainers)
    told = [answer for answer in answers if isinstance(answer, dict)]
    assert len(told) == 2, answers
    for answer in told:
        assert answer["num_warmups"] == 1
        assert answer["num_micro_steps"] == len(steps)
    assert largest_difference(await cells.gradients(core), plain.gradients) < 1e-5
    sums = [await trainer.call("checksum", CALL_S) for trainer in cells.trainers]
    assert sums[0] == sums[1]
    times = {one["cell"]: one for one in told[0]["statistics"]["cell_times"]}
    assert times.keys() == {0, 1}
    assert all(one["busy_s"] > 0 and one["idle_s"] >= 0 for one in times.values())


async def test_a_stage_that_dies_costs_its_cells_accumulation_and_no_more(cells: Cells) -> None:
    steps, (core, satellite) = batch_of_steps(count=5, seed=7), cells.trainers
    plain = plain_run(cells.model, steps, torch.float32)
    for trainer in cells.trainers:
        await cells.load(trainer)
    await cells.form(cells.trainers)
    await cells.begin(cells.trainers)
    await streamed(cells, core, steps[:2])
    await streamed(cells, satellite, steps[2:3])
    os.kill(satellite.pids[1], signal.SIGKILL)
    with pytest.raises(TrainerGone):
        await streamed(cells, satellite, steps[3:])
    await satellite.wait()
    cells.trainers.remove(satellite)

    await cells.form([core])
    await cells.begin([core])
    await streamed(cells, core, steps)
    (answer,) = await cells.finish([core])
    assert isinstance(answer, dict), answer
    assert answer["num_micro_steps"] == len(steps)
    assert largest_difference(await cells.gradients(core), plain.gradients) < 1e-5
