"""The runner as a process on a real nats-server, killed at its worst moments: nothing is lost and
nothing is started twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.workqueue.jetstream import JetStreamWorkQueue
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.executions import AttemptFailed, Terminated
from gyre.testkit.execution_world import JOB, ExecutionWorld, until, until_written
from gyre.testkit.nats_server import NatsServer

SCRIPT = "echo $$ >> {root}/count; echo $$ > pid.txt; sleep 1; echo 7 > answer.txt"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ExecutionWorld]:
    server = NatsServer(tmp_path / "nats").start()

    async def healthy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    proxy = await asyncio.start_server(healthy, "127.0.0.1", 0)
    log = JetStreamEventLog(server.url)
    queue = JetStreamWorkQueue(server.url)
    try:
        await ensure_streams(server.url)
        world = ExecutionWorld(tmp_path, log)
        world.env = {
            "GYRE_NATS_URL": server.url,
            "GYRE_PROXY_URL": f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}",
        }
        folder = world.add_task("train", "t", "exit 0")
        (folder / "instruction.md").write_text(SCRIPT.format(root=tmp_path))
        settings = {"argv": ["/bin/sh", "-c", "{prompt}"]}
        harness = {"profile": "command", "timeout_s": 30, "settings": settings}
        await world.submit(harness=harness)
        await world.dispatch("g0", "t", "e0")
        order = {"job": JOB, "execution": "e0", "group": "g0", "task": "t", "seed": 1}
        await queue.put(subjects.start_order(JOB), json.dumps(order).encode(), "start-e0-1")
        yield world
    finally:
        await queue.close()
        await log.close()
        proxy.close()
        server.stop()


@contextmanager
def runner(
    world: ExecutionWorld, *, failpoint: str = "", stop: signal.Signals = signal.SIGKILL
) -> Iterator[subprocess.Popen[bytes]]:
    """A runner that gets `stop` at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gyre.runner"],
        env={
            "PATH": os.environ["PATH"],
            "GYRE_HOME": str(world.home),
            "GYRE_DATABASE_URL": "postgresql://nowhere",
            "GYRE_KEY_SECRET": "a-secret",
            "GYRE_FAILPOINT": failpoint,
            **world.env,
        },
    )
    try:
        yield process
    finally:
        process.send_signal(stop)
        process.wait(30)


async def ended(world: ExecutionWorld) -> list[Body]:
    async def terminated() -> bool:
        return any(isinstance(body, Terminated) for body in await world.runs("e0"))

    await until(terminated, deadline_s=60)
    return await world.runs("e0")


def count(world: ExecutionWorld) -> int:
    """How many harness processes have begun."""
    file = world.root / "count"
    return len(file.read_text().split()) if file.exists() else 0


@pytest.mark.parametrize("failpoint", ["runner.after_started", "runner.after_launch"])
async def test_a_kill_starts_nothing_twice(world: ExecutionWorld, failpoint: str) -> None:
    with runner(world, failpoint=failpoint) as process:
        assert process.wait(60) == -signal.SIGKILL
    with runner(world, failpoint=failpoint, stop=signal.SIGTERM):
        events = await ended(world)
    assert [event.TYPE for event in events] == ["started", "attempt_started", "terminated"]
    assert isinstance(events[-1], Terminated)
    assert events[-1].reason == "completed"
    assert count(world) == 1
    answer = world.home / "workspaces" / JOB / "e0/a1/workspace/answer.txt"
    assert answer.read_text() == "7\n"


async def test_a_harness_that_ended_meanwhile_is_found(world: ExecutionWorld) -> None:
    with runner(world, failpoint="runner.after_launch") as process:
        assert process.wait(60) == -signal.SIGKILL
    await until_written(world.home / "workspaces" / JOB / "e0/a1/workspace/answer.txt")
    await asyncio.sleep(0.5)  # the harness has nothing left to do but to exit
    with runner(world, stop=signal.SIGTERM):
        events = await ended(world)
    assert isinstance(events[-1], Terminated)
    assert (events[-1].reason, count(world)) == ("completed", 1)


async def test_a_harness_that_vanished_gets_a_new_attempt(world: ExecutionWorld) -> None:
    with runner(world, failpoint="runner.after_launch") as process:
        assert process.wait(60) == -signal.SIGKILL
    pid_file = world.home / "workspaces" / JOB / "e0/a1/workspace/pid.txt"
    await until_written(pid_file)
    harness = psutil.Process(int(pid_file.read_text()))
    for process_ in (*harness.parents()[:1], harness):
        with suppress(psutil.NoSuchProcess):  # a harness does not outlive its keeper for long
            process_.kill()
    with runner(world, stop=signal.SIGTERM):
        events = await ended(world)
    assert isinstance(events[2], AttemptFailed)
    assert isinstance(events[-1], Terminated)
    assert (events[-1].reason, events[-1].attempt, count(world)) == ("completed", 2, 2)


async def test_a_second_runner_is_refused(world: ExecutionWorld) -> None:
    with runner(world, stop=signal.SIGTERM) as first:
        await until_written(world.home / "run" / "runner.ready")
        with runner(world) as second:
            assert await asyncio.to_thread(second.wait, 60) == 1
        assert first.poll() is None
