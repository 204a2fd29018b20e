"""The evaluator as a process, on a real nats-server and a real Postgres: it is killed between a
score and its event, and its tables follow the log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import select, text

from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.postgres import connect, migrate
from gyre.adapters.tables import evaluations, executions
from gyre.contracts.events.scores import Evaluated, ExecutionExcluded
from gyre.embedded import postgres
from gyre.testkit.execution_world import ExecutionWorld, until
from gyre.testkit.nats_server import NatsServer

SCORE = 'echo x >> "{count}"; echo 0.5 > "$LOGS_DIR/verifier/reward.txt"'


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    with postgres.running() as server:
        migrate(server.url)
        yield server.url


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ExecutionWorld]:
    server = NatsServer(tmp_path / "nats").start()
    try:
        await ensure_streams(server.url)
        log = JetStreamEventLog(server.url)
        world = ExecutionWorld(tmp_path, log)
        world.env = {"GYRE_NATS_URL": server.url}
        world.add_task("train", "sum", SCORE.format(count=tmp_path / "count"))
        world.add_task("train", "broken", "exit 1")
        await world.submit(evaluation={"max_tries": 1})
        await world.dispatch("g0", "sum", "e0", "e2")
        await world.dispatch("g1", "broken", "e1")
        yield world
        await log.close()
    finally:
        server.stop()


@contextmanager
def evaluator(
    world: ExecutionWorld, database_url: str, **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed with SIGKILL at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gyre.evaluator"],
        env={
            "PATH": os.environ["PATH"],
            "GYRE_HOME": str(world.home),
            "GYRE_DATABASE_URL": database_url,
            "GYRE_KEY_SECRET": "a-secret",
            **world.env,
            **env,
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


async def rows(database_url: str) -> dict[str, list[tuple[object, ...]]]:
    """Both tables, in order, without times."""
    engine = connect(database_url)
    async with engine.connect() as connection:
        e, v = executions.c, evaluations.c
        runs = await connection.execute(
            select(e.execution, e.task, e.status, e.reason, e.reward).order_by(e.execution)
        )
        tries = await connection.execute(
            select(v.id, v.execution, v.attempt, v.branch, v.status, v.reward).order_by(v.id)
        )
        found = {"executions": [tuple(r) for r in runs], "evaluations": [tuple(r) for r in tries]}
    await engine.dispose()
    return found


EXPECTED: dict[str, list[tuple[object, ...]]] = {
    "executions": [
        ("e0", "sum", "evaluated", "completed", 0.5),
        ("e1", "broken", "excluded", "failed", None),
        ("e2", "sum", "queued", None, None),
    ],
    "evaluations": [
        ("e0-t1", "e0", 1, "n1", "valid", 0.5),
        ("e1-t1", "e1", 1, "", "failed", None),
    ],
}


async def test_a_kill_after_the_score_loses_and_doubles_nothing(
    world: ExecutionWorld, database_url: str
) -> None:
    await world.run("e0", "sum")
    await world.call("e0", "n1")
    await world.end("e0", "completed")
    with evaluator(world, database_url, GYRE_FAILPOINT="evaluator.after_score") as process:
        assert process.wait(60) == -signal.SIGKILL
    assert await world.scores("e0") == []

    async def scored() -> bool:
        return bool(await world.scores("e0")) and len(await world.scores("e1")) == 2

    async def projected() -> bool:
        return await rows(database_url) == EXPECTED

    await world.run("e1", "broken", group="g1")
    await world.end("e1", "failed")
    with evaluator(world, database_url, GYRE_FAILPOINT="evaluator.after_score"):
        await until(scored)
        await until(projected)
    (event,) = await world.scores("e0")
    assert isinstance(event, Evaluated)
    assert (event.reward, event.branch) == (0.5, "n1")
    assert isinstance((await world.scores("e1"))[-1], ExecutionExcluded)
    assert (world.root / "count").read_text() == "x\nx\n"

    # A projection can be thrown away: the log has it all.
    engine = connect(database_url)
    async with engine.begin() as connection:
        await connection.execute(text("TRUNCATE executions, evaluations, projection_checkpoints"))
    await engine.dispose()
    with evaluator(world, database_url):
        await until(projected)
    assert len(await world.scores("e0")) == 1
