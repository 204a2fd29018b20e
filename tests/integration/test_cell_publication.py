"""A publication over the network, as two agents perform it: the core's offers its checkpoint, the
other's real engine is sent it. No disk is shared: the path that the facts name is the core's alone.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from gyre.cell_agent.engine.local.weights import read_checkpoint
from gyre.cell_agent.engine.torch_checksum import checksum
from gyre.cell_agent.performer import Performer
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.settings import CellAgentSettings
from gyre.cell_agent.stepping import publishing
from gyre.contracts.events.cells import WeightsExposed, WeightsLoaded
from gyre.core.cell import CellState, duties, orders
from gyre.core.cell.state import Checkpoint, Exposure
from gyre.testkit.specs import job_spec
from gyre.testkit.tiny_model import make_tiny_model

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

JOB, VERSION = "j", (1, 2)
SAMPLING = {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True}


def performer(home: Path, cell: int) -> Performer:
    settings = CellAgentSettings.model_validate(
        {
            "nats_url": "nats://unused",
            "database_url": "postgresql://unused",
            "home": home,
            "key_secret": "of the stack",
            "cell": cell,
            "store_port": 1,
        }
    )
    return Performer(settings, CellProcesses(settings))


def state(cell: int, model: Path, checkpoint: Checkpoint) -> CellState:
    sections = {
        "model": {"path": str(model), "context_tokens": 1024},
        "weights": {"publication": "tcp", "in_flight": "in_place"},
    }
    return CellState(
        cell=cell,
        job=JOB,
        spec=job_spec(cells=2, heldout=False, sections=sections),
        order=(0, 1),
        role="rollout",
        checkpoint=checkpoint,
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = make_tiny_model(tmp_path_factory.mktemp("core") / "l1-v00002", seed=1)
    return Checkpoint(version=VERSION, path=str(path), checksum=checksum(read_checkpoint(path)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def satellite(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint
) -> AsyncIterator[tuple[Performer, CellState]]:
    """Cell 1 with its engine, which began with the job's model."""
    root = tmp_path_factory.mktemp("satellite")
    model = make_tiny_model(root / "model", seed=0)
    made, its_state = performer(root, 1), state(1, model, checkpoint)
    start = duties.next_duty(its_state, made.held)
    assert start == orders.StartEngine(path=None, version=orders.BEFORE_ALL)
    await made.perform(start, its_state)
    yield made, its_state
    await made.processes.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def core(tmp_path: Path, checkpoint: Checkpoint) -> AsyncIterator[Performer]:
    made = performer(tmp_path, 0)
    yield made
    await made.processes.stop()


async def offered(core: Performer, checkpoint: Checkpoint) -> Exposure:
    its_state = state(0, Path(checkpoint.path), checkpoint)
    duty = duties.next_duty(its_state, core.held)
    assert duty == orders.OfferCheckpoint(checkpoint=checkpoint)
    (report,) = await core.perform(duty, its_state)
    body = report.body
    assert isinstance(body, WeightsExposed)
    assert (body.source, body.num_bytes > 0) == ("checkpoint", True)
    return Exposure(version=VERSION, host=body.host, port=body.port, checksum=body.checksum)


async def test_an_engine_is_sent_the_checkpoint_before_it_is_said_to_serve(
    satellite: tuple[Performer, CellState], core: Performer, checkpoint: Checkpoint
) -> None:
    made, its_state = satellite
    its_state.trainer_reported, made.held.trainer_version = True, (1, 0)
    assert duties.next_duty(its_state, made.held) is None
    its_state.offered = await offered(core, checkpoint)
    duty = duties.next_duty(its_state, made.held)
    assert duty == orders.LoadWeights(checkpoint=checkpoint)
    (report,) = await made.perform(duty, its_state)
    body = report.body
    assert isinstance(body, WeightsLoaded)
    assert (body.version, body.checksum) == (2, checkpoint.checksum)
    assert (body.transport, body.in_flight, body.num_retracted) == ("tcp", "in_place", 0)
    assert body.seconds > 0
    engine = made.processes.live_engine.client
    assert (await engine.weight_version(), await engine.checksum()) == ("1.2", checkpoint.checksum)
    assert duties.next_duty(its_state, made.held) == orders.ReportRollout(version=VERSION)


async def test_an_engine_that_misses_a_publication_serves_on_under_the_old_name(
    satellite: tuple[Performer, CellState],
    core: Performer,
    checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "ASK_AGAIN_S", 0.01)
    made, its_state = satellite
    newer = replace(checkpoint, version=(1, 4))
    its_state.checkpoint = newer
    its_state.offered = replace(await offered(core, checkpoint), version=(1, 4))
    duty = duties.next_duty(its_state, made.held)
    assert duty == orders.LoadWeights(checkpoint=newer)
    for _ in range(2):
        assert await made.perform(duty, its_state) == []
    engine = made.processes.live_engine.client
    answer = await engine.generate(input_ids=[5, 6], sampling_params=SAMPLING, rid="after")
    assert [span.version for span in answer.spans] == ["1.2"]
    assert duties.next_duty(its_state, made.held) == duty


async def test_a_checkpoint_that_is_gone_is_not_offered(
    core: Performer, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "ASK_AGAIN_S", 0.01)
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint.path, copy)
    there = replace(checkpoint, path=str(copy))
    its_state = state(0, copy, there)
    shutil.rmtree(copy)
    assert await core.perform(orders.OfferCheckpoint(checkpoint=there), its_state) == []
    assert core.held.offered is None
