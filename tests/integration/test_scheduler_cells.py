"""Silence and release of cells: the scheduler's process, a real nats-server, real heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import Journal
from gyre.cell_agent.heartbeat import beat
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.testkit.nats_server import NatsServer, free_port
from gyre.testkit.scheduler_world import Cells, sound_job

TOKEN = "the-api-token"
DEADLINE_S = 40.0
SILENCE_S = 4.0


@dataclass
class Cluster:
    """A scheduler, three cells that are heard, and the log. beats: cell -> its heartbeat."""

    root: Path
    nats: NatsServer
    journal: Journal
    http: httpx.AsyncClient
    cells: Cells
    beats: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    async def start_job(self) -> str:
        """A job in rollout on all three cells."""
        await self.cells.register()
        for cell in range(3):
            life = beat(self.nats.url, cell=cell, incarnation="i")
            self.beats[cell] = asyncio.create_task(life)
        raw = sound_job(self.root)
        raw["schedule"]["silence_deadline_s"] = SILENCE_S
        async with asyncio.timeout(DEADLINE_S):
            while (answer := await self.http.post("/v1/jobs", json=raw)).status_code != 201:
                await asyncio.sleep(0.05)
        job = str(answer.json()["id"])
        await self.first(job, sched.JobStarted)
        await self.cells.boot(job)
        await self.first(job, sched.WorldFormed)
        for cell in range(3):
            await self.cells.say(job, cell, cell_events.WorldJoined(cell=cell, epoch=1))
        await self.first(job, sched.StartOrdered)
        return job

    async def first(self, job: str, kind: type[Body]) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            async for fact in self.journal.follow(Stream.FACTS, (subjects.all_facts(job),)):
                if isinstance(fact.body, kind):
                    return fact.body
        raise AssertionError("the log ended")

    async def all(self, job: str, kind: type[Body]) -> list[Any]:
        facts = self.journal.read(Stream.FACTS, (subjects.all_facts(job),))
        return [fact.body async for fact in facts if isinstance(fact.body, kind)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    nats = NatsServer(tmp_path / "nats").start()
    await ensure_streams(nats.url)
    port = free_port()
    env = {
        "PATH": os.environ["PATH"],
        "GYRE_HOME": str(tmp_path),
        "GYRE_NATS_URL": nats.url,
        "GYRE_DATABASE_URL": "postgresql+psycopg://unused",
        "GYRE_KEY_SECRET": "a-secret",
        "GYRE_API_TOKEN": TOKEN,
        "GYRE_SCHEDULER_PORT": str(port),
    }
    log = JetStreamEventLog(nats.url, name="test")
    journal = Journal(log, SystemClock())
    http = httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=20.0,
    )
    scheduler = _start(env)
    made = Cluster(root=tmp_path, nats=nats, journal=journal, http=http, cells=Cells(journal))
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not (tmp_path / "run" / "scheduler.ready").exists():
                assert scheduler.poll() is None
                await asyncio.sleep(0.05)
        yield made
    finally:
        scheduler.kill()
        scheduler.wait(10)
        for task in made.beats.values():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await http.aclose()
        await log.close()
        nats.stop()


def _start(env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "gyre.scheduler"], env=env)


async def test_an_agent_that_falls_silent_is_lost_and_a_server_that_was_away_blames_nobody(
    cluster: Cluster,
) -> None:
    job = await cluster.start_job()
    cluster.nats.kill()
    await asyncio.sleep(SILENCE_S + 1.5)
    cluster.nats.start()
    # Everybody is heard again before anybody is missed.
    await asyncio.sleep(2.5)
    assert await cluster.all(job, sched.AgentSilent) == []
    cluster.beats[2].cancel()
    lost = await cluster.first(job, sched.CellLost)
    assert lost.cell == 2
    assert {move.destination for move in lost.moves} <= {0, 1}
    (silent,) = await cluster.all(job, sched.AgentSilent)
    assert lost.now - silent.last_heard >= SILENCE_S
    assert len(await cluster.all(job, sched.CellLost)) == 1


async def test_a_cell_is_asked_back_and_leaves_and_the_last_one_does_not(cluster: Cluster) -> None:
    job = await cluster.start_job()
    path = f"/v1/jobs/{job}/cells"
    answer = await cluster.http.post(f"{path}/1/release")
    assert (answer.status_code, answer.json()["cell"]) == (202, 1)
    left = await cluster.first(job, sched.CellReleased)
    assert left.cell == 1
    assert {move.destination for move in left.moves} <= {0, 2}
    assert (await cluster.http.post(f"{path}/1/release")).status_code == 202
    await cluster.cells.change_role(job, 1, "offline")
    async with asyncio.timeout(DEADLINE_S):
        while (await _cell(cluster, 1))["role"] != "free":
            await asyncio.sleep(0.05)
    assert (await _cell(cluster, 0))["job"] == job
    assert (await cluster.http.post(f"{path}/0/release")).status_code == 202
    refused = await cluster.http.post(f"{path}/2/release")
    assert refused.status_code == 409
    assert refused.json()["error"]["field"] == "cell"
    assert "is the last that job" in refused.json()["error"]["message"]
    assert (await cluster.http.post(f"{path}/7/release")).status_code == 404
    assert (await cluster.http.post("/v1/jobs/none/cells/0/release")).status_code == 404
    assert (await cluster.http.post(f"{path}/x/release")).status_code == 422
    assert len(await cluster.all(job, request_events.ReleaseRequested)) == 2
    assert await cluster.all(job, sched.CellJoined) == []


async def _cell(cluster: Cluster, number: int) -> dict[str, Any]:
    answer = await cluster.http.get("/v1/cells")
    (found,) = (cell for cell in answer.json()["cells"] if cell["cell"] == number)
    return dict(found)
