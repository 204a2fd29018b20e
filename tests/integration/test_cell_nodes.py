"""A cell on two nodes, an agent on each: the first leads once the other has reported; a rank that
is lost on the other is named, and the batch is done again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from gyre.adapters.eventlog.link import Link
from gyre.adapters.eventlog.wire import Unavailable
from gyre.adapters.journal import Fact
from gyre.adapters.keys import make_control_ticket
from gyre.cell_agent.group import TrainerGroup
from gyre.cell_agent.nodes.host import NodeHost
from gyre.cell_agent.nodes.lead import Nodes
from gyre.cell_agent.nodes.messages import StartRank
from gyre.cell_agent.nodes.rank import RemoteRank
from gyre.cell_agent.settings import CellAgentSettings
from gyre.cell_agent.trainer.process.channel import TrainerGone, TrainerRefused
from gyre.cell_agent.trainer.process.launch import TrainerLaunch
from gyre.contracts import subjects
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.testkit.cells_job import Life, cells_spec, make_batches
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.plain_batch import plain_run
from gyre.testkit.real_cells import RealCells

pytestmark = pytest.mark.timeout(240)

SECRET = "the-key-secret"


def settings_of(url: str, home: Path, node: int, **more: object) -> CellAgentSettings:
    return CellAgentSettings.model_validate(
        {
            "nats_url": url,
            "database_url": "postgresql://nowhere",
            "key_secret": SECRET,
            "home": home,
            "cell": 4,
            "node": node,
            "cell_nodes": 2,
            "store_port": 1,
            **more,
        }
    )


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats").start()
    yield server
    server.stop()


@contextlib.asynccontextmanager
async def hosting(settings: CellAgentSettings) -> AsyncIterator[None]:
    listening = asyncio.Event()
    task = asyncio.create_task(NodeHost(settings).run(listening))
    try:
        await listening.wait()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def leading(settings: CellAgentSettings) -> AsyncIterator[Nodes]:
    nodes = Nodes(settings)
    try:
        yield nodes
    finally:
        await nodes.close()


async def asked_in_vain(url: str, subject: str, *, times: int) -> None:
    """Until somebody has asked there so often and was told, as by the server, that nobody is."""
    link = Link(url, name="nobody")
    wire = await link.wire()
    heard = asyncio.Semaphore(0)

    def refuse(subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
        wire.publish(reply.decode(), b"", headers=b"NATS/1.0 503\r\n\r\n")
        heard.release()

    wire.subscribe(subject, refuse)
    for _ in range(times):
        await asyncio.wait_for(heard.acquire(), 20.0)
    await link.close()


async def deserted(url: str, subject: str) -> None:
    """Until the server knows that nobody listens there any more."""
    link = Link(url, name="visitor")
    wire = await link.wire()
    async with asyncio.timeout(20.0):
        with contextlib.suppress(Unavailable):
            while True:
                with contextlib.suppress(TimeoutError):
                    await wire.request(subject, b"", timeout_s=0.2)
    await link.close()


def order_of(model: Path) -> StartRank:
    launch = TrainerLaunch(cell=4, model_path=model)
    return StartRank(start="s", job="j", control="", launch=launch)


async def test_the_first_node_leads_when_the_other_has_reported(
    nats: NatsServer, tmp_path: Path
) -> None:
    async with leading(settings_of(nats.url, tmp_path, 0)) as nodes:
        gathering = asyncio.create_task(nodes.gather())
        await asked_in_vain(nats.url, subjects.node(4, 1), times=2)
        assert not gathering.done()
        async with hosting(settings_of(nats.url, tmp_path, 1, node_ranks=3)):
            await asyncio.wait_for(gathering, 20.0)
        assert nodes.limits == (3,)


@contextlib.asynccontextmanager
async def rank_without_a_model(
    nats: NatsServer, home: Path
) -> AsyncIterator[tuple[Nodes, RemoteRank]]:
    """Spawned by another node, where it cannot start."""
    async with (
        hosting(settings_of(nats.url, home, 1)),
        leading(settings_of(nats.url, home, 0)) as nodes,
    ):
        await nodes.gather()
        rank = RemoteRank(nodes, 1, order_of(home / "no-model"), silence_s=30.0)
        await rank.spawn()
        yield nodes, rank


async def test_a_rank_that_its_node_cannot_start_is_one_line_and_ends(
    nats: NatsServer, tmp_path: Path
) -> None:
    async with rank_without_a_model(nats, tmp_path) as (_, rank):
        # Its pid says nothing on this machine.
        group = TrainerGroup([rank])
        assert (group.pids, group.pids_here) == ((rank.pid,), ())
        with pytest.raises(TrainerRefused, match=r"^bad_model: .*no-model/config.json"):
            await rank.ready(60.0)
        assert await rank.wait() == 2
        assert rank.how_it_ended == "on node 1 ended with exit status 2"


async def test_why_a_rank_cannot_start_is_told_though_its_end_was_heard_first(
    nats: NatsServer, tmp_path: Path
) -> None:
    async with rank_without_a_model(nats, tmp_path) as (_, rank):
        assert await rank.wait() == 2
        with pytest.raises(TrainerRefused, match=r"^bad_model: .*no-model/config.json"):
            await rank.ready(60.0)
        assert await rank.wait() == 2


async def test_a_node_that_is_not_there_starts_no_rank(nats: NatsServer, tmp_path: Path) -> None:
    async with leading(settings_of(nats.url, tmp_path, 0)) as nodes:
        async with hosting(settings_of(nats.url, tmp_path, 1)):
            await nodes.gather()
        rank = RemoteRank(nodes, 1, order_of(tmp_path), silence_s=30.0)
        await deserted(nats.url, subjects.node(4, 1))
        with pytest.raises(TrainerGone, match="node 1 does not answer: nobody answers"):
            await rank.spawn()


@pytest.mark.parametrize(
    "hello",
    [
        b"\n",
        b"[]\n",
        b'{"ticket": 7}\n',
        json.dumps({"ticket": make_control_ticket(SECRET, "another", 0)}).encode() + b"\n",
        json.dumps({"ticket": make_control_ticket("another", "s", 0)}).encode() + b"\n",
    ],
)
async def test_a_connection_without_the_ranks_ticket_is_closed(
    nats: NatsServer, tmp_path: Path, hello: bytes
) -> None:
    async with rank_without_a_model(nats, tmp_path) as (nodes, rank):
        host, _, port = nodes.control.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(hello)
        assert await asyncio.wait_for(reader.read(), 20.0) == b""
        writer.close()
        rank.kill()
        assert await rank.wait() == -signal.SIGKILL


BATCHES = make_batches(num_batches=2, num_micro_steps=4, normalizer=8)


def lived(home: Path, layout: Mapping[str, int], **how: Any) -> Life:
    """A job of two steps on one cell, which ends well."""
    spec = cells_spec(home, cells=1, layout=layout, num_steps=2, tokens_per_s=None)
    life = RealCells(spec=spec, home=home, batches=BATCHES, **how).live()
    assert (life.end.status, life.end.reason) == ("succeeded", "all steps done")
    return life


def test_a_cell_with_two_agents_trains_and_survives_the_other_nodes_rank(tmp_path: Path) -> None:
    """Its losses are the plain run's on the first batch; what the killed rank had is done again."""
    killed: list[int] = []

    def on_fact(fact: Fact) -> None:
        body = fact.body
        if isinstance(body, cell_events.TrainerReady):
            pids.append(body.pids)
        if isinstance(body, step_events.MicroStepClaimed) and not killed:
            killed.append(pids[0][1])
            os.kill(killed[0], signal.SIGKILL)

    pids: list[tuple[int, ...]] = []
    life = lived(tmp_path, {"tensor": 2}, on_fact=on_fact, nodes=2)
    assert [len(each) for each in pids] == [2, 2]
    assert len({pid for each in pids for pid in each}) == 4
    (lost,) = life.of(cell_events.TrainerLost)
    assert "rank 1: " in lost.error
    assert len(life.of(sched.Restored)) == 1
    plain = plain_run(tmp_path / "model", BATCHES[0], torch.float32)
    assert life.losses[0] == pytest.approx(plain.loss, rel=1e-4)
    assert [step.version for step in life.steps] == [1, 2]


def test_a_cell_of_two_stages_on_two_nodes_has_the_losses_of_a_cell_of_one_rank(
    tmp_path: Path,
) -> None:
    """The second step's too: each stage has applied its part of the first."""
    (alone, staged) = (
        lived(tmp_path / name, {"pipeline": stages}, nodes=stages)
        for name, stages in (("alone", 1), ("staged", 2))
    )
    (ready,) = staged.of(cell_events.TrainerReady)
    assert len(set(ready.pids)) == 2
    assert staged.losses == pytest.approx(alone.losses, rel=1e-4)
    norms = [[step.statistics.grad_norm for step in life.steps] for life in (alone, staged)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    assert staged.of(cell_events.TrainerLost) == []
