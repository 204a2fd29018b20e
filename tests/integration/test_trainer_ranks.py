"""Cells of two ranks, which are tensor-parallel and share out experts: a batch's gradient is the
plain run's, also after a rank of one of them was killed or stopped in its middle."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import torch

from gyre.cell_agent.trainer.process.client import TrainerGone
from gyre.contracts.training_job import LayoutSection
from gyre.core.microstep import MicroStep
from gyre.testkit.plain_batch import largest_difference, plain_run
from gyre.testkit.trainer_cells import CALL_S, Cells, batch_of_steps, running
from gyre.testkit.weight_relay import relaying

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SILENCE_S = 8.0
# Of a busy machine, for what is noticed after a silence.
MARGIN_S = 15.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cells(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cells]:
    work = tmp_path_factory.mktemp("ranks")
    layout = LayoutSection(tensor=2, sequence_parallel=True, expert=2)
    async with running(
        work, dtype="float32", num_cells=2, layout=layout, silence_s=SILENCE_S, num_experts=4
    ) as started:
        yield started


async def opened(cells: Cells) -> None:
    """A new world, and the batch begun in it on the model's own weights."""
    await cells.renew()
    await cells.form(cells.trainers)
    await cells.begin(cells.trainers)


async def trained(cells: Cells, steps: list[MicroStep]) -> None:
    """The batch by both cells; the core's gradient is the plain run's."""
    await opened(cells)
    core, satellite = cells.trainers
    plain = plain_run(cells.model, steps, torch.float32)
    await asyncio.gather(cells.train(core, steps[:3]), cells.train(satellite, steps[3:]))
    answers = await cells.finish(cells.trainers)
    assert all(isinstance(answer, dict) for answer in answers), answers
    assert largest_difference(await cells.gradients(core), plain.gradients) < 1e-5
    told = answers[0]
    assert isinstance(told, dict)
    # A sum of executions' losses of both signs, which nearly cancel.
    assert told["statistics"]["loss"] == pytest.approx(plain.loss, rel=1e-4)
    sums = [await trainer.call("checksum", CALL_S) for trainer in cells.trainers]
    assert sums[0] == sums[1]


async def test_two_cells_of_two_ranks_train_a_batch(cells: Cells) -> None:
    assert len({pid for trainer in cells.trainers for pid in trainer.pids}) == 4
    await trained(cells, batch_of_steps())


async def test_a_cell_of_two_ranks_pulls_the_cores_weights_once(cells: Cells) -> None:
    core, satellite = cells.trainers
    await cells.load(core)
    served = await core.call("serve_weights", CALL_S)
    with relaying((served["host"], served["port"])) as relay:
        host, port = relay.address
        pulled = await satellite.call(
            "pull_weights", CALL_S, host=host, port=port, version=3, lineage=0
        )
    assert len(relay.said) == 1
    assert pulled["checksum"] == served["checksum"]
    sums = [await trainer.call("checksum", CALL_S) for trainer in cells.trainers]
    assert sums[0] == sums[1]


@pytest.mark.parametrize(
    ("how", "victim"),
    [
        pytest.param(signal.SIGKILL, 1, id="killed"),
        # Silence by itself is tested in test_trainer_group, where a start costs nothing.
        pytest.param(signal.SIGSTOP, 0, id="stopped", marks=pytest.mark.slow),
    ],
)
async def test_a_rank_that_is_lost_costs_its_cells_accumulation_and_no_more(
    cells: Cells, how: signal.Signals, victim: int
) -> None:
    steps, (core, satellite) = batch_of_steps(seed=victim), cells.trainers
    await opened(cells)
    await cells.train(core, steps[:2])
    await cells.train(satellite, steps[2:3])
    os.kill(satellite.pids[victim], how)
    # The other rank waits for it in a collective, whose own time-out is ten minutes.
    async with asyncio.timeout(SILENCE_S + MARGIN_S):
        with pytest.raises(TrainerGone, match=f"rank {victim}: "):
            await cells.train(satellite, steps[3:4])
    assert await satellite.wait() == -signal.SIGKILL
    assert satellite.how_it_ended.startswith(f"rank {victim}: ")
    # All ranks of the survivor leave the world alike: it lives, and takes commands.
    (lost, _) = await cells.finish(cells.trainers)
    assert getattr(lost, "kind", None) == "peer_lost"
    cells.trainers.remove(satellite)
    await cells.add()
    await trained(cells, steps)
