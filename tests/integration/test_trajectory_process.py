"""The trajectory process on real NATS and Postgres, killed where it hurts, and its projection."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gyre.adapters.blob_fetch import blob_source, fetch_body
from gyre.adapters.blobs import DirectoryBlobStore, MemoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog import EventLog, Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.keys import make_blobs_key
from gyre.adapters.microsteps import decode_microstep
from gyre.contracts.envelope import Body
from gyre.contracts.events.groups import GroupClaimed, GroupReady, MicroStepEmitted, StreamClosed
from gyre.core.microstep import MicroStep
from gyre.core.tree import fold
from gyre.testkit.nats_server import NatsServer, free_port
from gyre.testkit.trajectory_world import World, calls_of, small_spec
from gyre.testkit.tree_projection import assert_same_tree, rows_of_tree, until_projected
from gyre.trajectory.handlers import Trajectories

JOB, BATCH, SEED = "job", "l1-s0000", 4
DEADLINE_S = 90
SECRET = "the-key-secret"


class Process:
    """`python -m gyre.trajectory`, started again whenever it dies, as the supervisor does."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self.deaths = 0
        self._died = asyncio.Condition()

    async def died(self, times: int) -> None:
        """Waits for that many deaths: the log shows an append before its author is reaped."""
        async with asyncio.timeout(DEADLINE_S), self._died:
            await self._died.wait_for(lambda: self.deaths >= times)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Process]:
        keeping = asyncio.create_task(self._keep())
        try:
            yield self
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})

    async def _keep(self) -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gyre.trajectory", env=self._env
            )
            try:
                status = await process.wait()
                assert status == -signal.SIGKILL, status
                async with self._died:
                    self.deaths += 1
                    self._died.notify_all()
            except asyncio.CancelledError:
                process.terminate()
                await asyncio.wait_for(process.wait(), 20)
                raise


async def facts(journal: Journal) -> list[Body]:
    return [fact.body async for fact in journal.read(Stream.FACTS)]


async def play(log: EventLog) -> World:
    world = World(Journal(log, SystemClock()), JOB, small_spec(), seed=SEED)
    await world.submit()
    await world.dispatch(range(3))
    for number in range(3):
        await world.finish_group(number, (1.0, 0.0, 0.5, None))
    await world.open_batch(BATCH)
    return world


async def drain(world: World, journal: Journal) -> list[Body]:
    """Claims micro-steps as a cell does until the stream is closed; all facts."""
    claimed = 0
    async with asyncio.timeout(DEADLINE_S):
        while True:
            bodies = await facts(journal)
            emitted = sum(isinstance(body, MicroStepEmitted) for body in bodies)
            while claimed < emitted:
                await world.claim(BATCH, claimed)
                claimed += 1
            if any(isinstance(body, StreamClosed) for body in bodies):
                return bodies
            await asyncio.sleep(0.05)


def of_interest(bodies: list[Body]) -> list[Body]:
    kinds = (GroupReady, GroupClaimed, MicroStepEmitted, StreamClosed)
    return [body for body in bodies if isinstance(body, kinds)]


async def undisturbed() -> list[Body]:
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    world = await play(log)
    service = Trajectories(journal, MemoryBlobStore())
    running = asyncio.create_task(service.run(lambda: None))
    bodies = await drain(world, journal)
    running.cancel()
    return of_interest(bodies)


@pytest.mark.parametrize(
    "failpoints",
    [
        "trajectory.after_append:2,trajectory.after_claim:2",
        "trajectory.after_claim,trajectory.after_append:5",
    ],
)
def test_a_killed_service_goes_on_and_says_exactly_what_an_undisturbed_one_says(
    nats: NatsServer, database_url: str, tmp_path: Path, failpoints: str
) -> None:
    """And serves the micro-steps that it says over HTTP, across its deaths."""
    home, port = tmp_path / "home", free_port()
    env = {
        **os.environ,
        "GYRE_NATS_URL": nats.url,
        "GYRE_DATABASE_URL": database_url,
        "GYRE_HOME": str(home),
        "GYRE_KEY_SECRET": SECRET,
        "GYRE_BLOBS_PORT": str(port),
        "GYRE_FAILPOINT": failpoints,
    }
    blobs = DirectoryBlobStore(home / "blobs")

    async def served(step: MicroStepEmitted) -> MicroStep:
        source = blob_source(f"http://127.0.0.1:{port}", blobs, step.digest)
        key = make_blobs_key(SECRET)
        return decode_microstep(await asyncio.to_thread(fetch_body, source, step.digest, key))

    async def scenario() -> None:
        log = JetStreamEventLog(nats.url)
        journal = Journal(log, SystemClock())
        world = await play(log)
        async with Process(env).running() as process:
            bodies = of_interest(await drain(world, journal))
            await process.died(2)
            for body in bodies:
                if isinstance(body, MicroStepEmitted):
                    assert (await served(body)).index == body.index
        await log.close()
        assert process.deaths == 2
        assert bodies == await undisturbed()

    asyncio.run(scenario())


async def test_a_kill_between_rows_and_their_commit_leaves_every_tree_whole(
    nats: NatsServer, database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    env = {
        **os.environ,
        "GYRE_NATS_URL": nats.url,
        "GYRE_DATABASE_URL": database_url,
        "GYRE_HOME": str(tmp_path / "home"),
        "GYRE_KEY_SECRET": "not-used-here",
        "GYRE_FAILPOINT": "trajectory.rows_copied",
    }
    log = JetStreamEventLog(nats.url)
    async with Process(env).running() as process:
        world = await play(log)
        await process.died(1)
        await until_projected(log, database)
    await log.close()
    for number in range(3):
        for execution in world.plan(number).executions:
            tree = await rows_of_tree(database, execution)
            assert_same_tree(tree, fold(calls_of(execution, SEED)))


def test_groups_go_on_while_the_database_is_gone(nats: NatsServer, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "GYRE_NATS_URL": nats.url,
        "GYRE_DATABASE_URL": "postgresql+psycopg://nobody@127.0.0.1:1/nothing",
        "GYRE_HOME": str(tmp_path / "home"),
        "GYRE_KEY_SECRET": "not-used-here",
    }

    async def scenario() -> None:
        log = JetStreamEventLog(nats.url)
        world = await play(log)
        async with Process(env).running() as process:
            bodies = await drain(world, Journal(log, SystemClock()))
        await log.close()
        assert process.deaths == 0
        assert any(isinstance(body, StreamClosed) for body in bodies)

    asyncio.run(scenario())
