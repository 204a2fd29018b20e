"""The runner over a log in memory, with real workspaces, sandboxes and harness processes. The
harness is a shell whose script is the task's instruction."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.workqueue.memory import MemoryWorkQueue
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.executions import (
    AttemptFailed,
    AttemptStarted,
    Started,
    Terminated,
)
from gyre.contracts.events.scheduling import (
    ExecutionsCancelled,
    GroupDropped,
    SurplusCancelled,
)
from gyre.contracts.job import JobSpec
from gyre.runner.bootstrap import build
from gyre.runner.sandbox import Command, Limits
from gyre.runner.sandbox.process import ProcessSandbox
from gyre.runner.settings import RunnerSettings
from gyre.runner.workspace import AttemptDir
from gyre.testkit.execution_world import JOB, ExecutionWorld, until, until_written


class ShellHarnesses:
    """The prompt is a script; it sees its key and the model's address."""

    def command(
        self, spec: JobSpec, directory: AttemptDir, *, prompt: str, key: str, proxy_url: str
    ) -> Command:
        return Command(
            profile="command",
            argv=("/bin/sh", "-c", prompt),
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(directory.harness_home),
                "TMPDIR": str(directory.tmp),
                "KEY": key,
            },
            cwd=directory.workspace,
            stdout=directory.logs / "stdout.log",
            stderr=directory.logs / "stderr.log",
            status=directory.status,
            limits=Limits(max_file_bytes=1_000_000, max_open_files=256),
        )

    def reported_error(self, spec: JobSpec, directory: AttemptDir) -> str | None:
        return None


class World(ExecutionWorld):
    """An execution's world with a runner in it and a proxy that says it is well."""

    def __init__(self, root: Path, proxy_port: int) -> None:
        super().__init__(root, MemoryEventLog())
        self.queue = MemoryWorkQueue()
        self.settings = RunnerSettings(
            nats_url="nats://nowhere",
            database_url="postgresql://nowhere",
            home=self.home,
            key_secret="a-secret",  # type: ignore[arg-type]
            proxy_url=f"http://127.0.0.1:{proxy_port}",
            runner_grace_s=0.5,
            runner_retry_pause_s=0.05,
        )
        self.num_orders = 0

    def script(self, task: str, text: str) -> None:
        """A task whose harness runs `text`."""
        folder = self.add_task("train", task, "exit 0", files={"input.txt": "1"})
        (folder / "instruction.md").write_text(text)

    async def order(self, execution: str, task: str, *, dispatch: bool = True) -> None:
        """What the scheduler does for one execution: its group, and the order."""
        if dispatch:
            await self.dispatch(f"g-{execution}", task, execution)
        self.num_orders += 1
        order = {"job": JOB, "execution": execution, "group": f"g-{execution}", "task": task}
        data = json.dumps({**order, "seed": 1}).encode()
        await self.queue.put(subjects.start_order(JOB), data, f"{execution}-{self.num_orders}")

    @asynccontextmanager
    async def runner(self) -> AsyncIterator[None]:
        """A runner that works meanwhile, and is stopped in an orderly way."""
        sandbox = ProcessSandbox(self.settings.run_dir, {})
        runner = build(
            self.settings,
            log=self.log,
            queue=self.queue,
            clock=SystemClock(),
            sandbox=sandbox,
            harnesses=ShellHarnesses(),
        )
        task = asyncio.create_task(runner.run(lambda: None))
        try:
            yield
        finally:
            task.cancel()
            results = await asyncio.gather(task, return_exceptions=True)
            await sandbox.close()
            assert isinstance(results[0], asyncio.CancelledError), results[0]

    async def ended(self, execution: str) -> list[Body]:
        """The execution's events, once it has terminated."""

        async def terminated() -> bool:
            return any(isinstance(body, Terminated) for body in await self.runs(execution))

        await until(terminated)
        return await self.runs(execution)

    def file(self, execution: str, name: str, *, attempt: int = 1) -> Path:
        """A file of the attempt's workspace."""
        root = self.settings.workspaces_dir / JOB / execution / f"a{attempt}"
        return root / "workspace" / name


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async def healthy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(healthy, "127.0.0.1", 0)
    made = World(tmp_path, server.sockets[0].getsockname()[1])
    await made.submit(harness={"profile": "shell", "timeout_s": 20, "num_attempts": 2})
    yield made
    server.close()
    await server.wait_closed()


def last(events: list[Body]) -> Terminated:
    assert isinstance(events[-1], Terminated)
    return events[-1]


async def test_an_execution_runs_in_a_workspace_of_its_own(world: World) -> None:
    world.script("t", 'env > env.txt; pwd > pwd.txt; cat input.txt > copy.txt; echo "$0"')
    await world.order("e0", "t")
    async with world.runner():
        events = await world.ended("e0")
    workspace = f"{JOB}/e0/a1/workspace"
    assert [type(event) for event in events] == [Started, AttemptStarted, Terminated]
    assert events[0] == Started(execution="e0", group="g-e0", task="t")
    assert isinstance(events[1], AttemptStarted)
    assert events[1].workspace == workspace
    end = last(events)
    assert (end.reason, end.exit_code, end.signal) == ("completed", 0, None)
    assert end.workspace == workspace
    assert world.file("e0", "copy.txt").read_text() == "1"
    assert Path(world.file("e0", "pwd.txt").read_text().strip()) == world.file("e0", ".")
    names = {line.split("=")[0] for line in world.file("e0", "env.txt").read_text().split("\n")}
    assert names - {"", "PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "HOME", "TMPDIR", "KEY"}


@pytest.mark.parametrize(
    ("script", "exit_code", "signal"), [("exit 3", 3, None), ("kill -9 $$", None, 9)]
)
async def test_a_harness_that_fails_by_itself_has_failed(
    world: World, script: str, exit_code: int | None, signal: int | None
) -> None:
    world.script("t", script)
    await world.order("e0", "t")
    async with world.runner():
        end = last(await world.ended("e0"))
    assert (end.reason, end.exit_code, end.signal) == ("failed", exit_code, signal)


HANGS = """trap "" TERM
(setsid sh -c 'echo $$ > daemon.txt; trap "" TERM HUP; sleep 100' &)
echo partial > answer.txt
echo $$ > pid.txt
while true; do sleep 0.1; done
"""


async def test_a_time_out_ends_the_whole_tree_and_keeps_the_workspace(world: World) -> None:
    await world.submit(harness={"profile": "shell", "timeout_s": 1.0})
    world.script("t", HANGS)
    await world.order("e0", "t")
    async with world.runner():
        end = last(await world.ended("e0"))
        pids = [int(world.file("e0", name).read_text()) for name in ("pid.txt", "daemon.txt")]
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert (end.reason, end.signal) == ("timeout", 9)
    assert 1.0 <= end.duration_s < 10.0
    assert world.file("e0", "answer.txt").read_text() == "partial\n"


async def test_sigterm_comes_first(world: World) -> None:
    await world.submit(harness={"profile": "shell", "timeout_s": 2.0})
    world.script(
        "t", 'trap "echo saved > answer.txt; exit 0" TERM; while true; do sleep 0.05; done'
    )
    await world.order("e0", "t")
    async with world.runner():
        end = last(await world.ended("e0"))
    assert (end.reason, end.exit_code) == ("timeout", 0)
    assert world.file("e0", "answer.txt").read_text() == "saved\n"


async def test_what_a_harness_leaves_running_is_gone_before_terminated(world: World) -> None:
    script = "(setsid sh -c 'echo $$ > pid.txt; sleep 100' &)\nwhile [ ! -s pid.txt ]; do :; done"
    world.script("t", script)
    await world.order("e0", "t")
    async with world.runner():
        end = last(await world.ended("e0"))
        assert not psutil.pid_exists(int(world.file("e0", "pid.txt").read_text()))
    assert end.reason == "completed"


def cancel(*, queued: tuple[str, ...] = (), running: tuple[str, ...] = ()) -> ExecutionsCancelled:
    return ExecutionsCancelled(based_on=1, now=0, queued=queued, running=running, reason="user")


async def test_a_cancelled_execution_ends_and_a_queued_one_never_starts(world: World) -> None:
    world.script("t", "echo > there.txt; sleep 100")
    async with world.runner():
        await world.order("e0", "t")
        await until_written(world.file("e0", "there.txt"))
        await world.dispatch("g-e1", "t", "e1")
        await world.say(subjects.sched(JOB), cancel(queued=("e1",), running=("e0",)))
        end = last(await world.ended("e0"))
        await world.order("e1", "t", dispatch=False)
        world.script("quick", "exit 0")
        await world.order("e2", "quick")
        await world.ended("e2")
    assert end.reason == "cancelled"
    assert await world.runs("e1") == []


@pytest.mark.parametrize("reason", ["surplus", "dropped"])
async def test_surplus_and_dropped_executions_end_and_say_so(world: World, reason: str) -> None:
    """Running, ordered and not started, queued: the first two hold a slot until they terminated."""
    world.script("t", "echo > there.txt; sleep 100")
    who = {"queued": ("e2",), "running": ("e0", "e1")}
    decision: Body = SurplusCancelled(based_on=1, now=0, group="g", **who)
    if reason == "dropped":
        decision = GroupDropped(based_on=1, now=0, group="g", staleness=3, **who)
    async with world.runner():
        await world.order("e0", "t")
        await until_written(world.file("e0", "there.txt"))
        await world.dispatch("g-e1", "t", "e1")
        await world.dispatch("g-e2", "t", "e2")
        await world.say(subjects.sched(JOB), decision)
        ends = [last(await world.ended("e0"))]
        await world.order("e1", "t", dispatch=False)
        await world.order("e2", "t", dispatch=False)
        ends.append(last(await world.ended("e1")))
    assert [end.reason for end in ends] == [reason, reason]
    assert [type(body) for body in await world.runs("e1")] == [Started, Terminated]
    assert await world.runs("e2") == []


async def test_an_order_that_was_cancelled_on_its_way_gives_its_slot_back(world: World) -> None:
    world.script("t", f"echo x >> {world.root}/count")
    await world.dispatch("g-e0", "t", "e0")
    await world.say(subjects.sched(JOB), cancel(running=("e0",)))
    async with world.runner():
        await world.order("e0", "t", dispatch=False)
        events = await world.ended("e0")
    assert [event.TYPE for event in events] == ["started", "terminated"]
    assert (last(events).reason, last(events).attempt) == ("cancelled", 0)
    assert not (world.root / "count").exists()


async def test_an_infrastructure_failure_is_tried_again_then_final(world: World) -> None:
    await world.order("e0", "nowhere")
    async with world.runner():
        events = await world.ended("e0")
    assert [event.TYPE for event in events] == [
        "started",
        *("attempt_started", "attempt_failed") * 2,
        "terminated",
    ]
    assert isinstance(events[2], AttemptFailed)
    assert events[2].error.startswith("task nowhere: no directory")
    assert (last(events).reason, last(events).attempt) == ("infrastructure", 2)


async def test_a_failure_after_an_undelivered_call_gets_a_fresh_attempt(world: World) -> None:
    world.script("t", 'case "$HOME" in */a1/*) exit 1;; esac; test ! -e trace; echo > trace')
    await world.call("e0", "n1", attempt=1)
    await world.lose_answer("e0", "n1")
    await world.order("e0", "t")
    async with world.runner():
        events = await world.ended("e0")
    assert [event.TYPE for event in events] == [
        *("started", "attempt_started", "attempt_failed", "attempt_started"),
        "terminated",
    ]
    end = last(events)
    assert (end.reason, end.attempt, end.workspace) == ("completed", 2, f"{JOB}/e0/a2/workspace")
    keys = {event.key_id for event in events if isinstance(event, AttemptStarted)}
    assert len(keys) == 2


async def test_a_failure_while_the_proxy_is_down_is_not_the_harness_s(tmp_path: Path) -> None:
    world = World(tmp_path, proxy_port=1)
    await world.submit(harness={"profile": "shell", "timeout_s": 20, "num_attempts": 1})
    world.script("t", "exit 1")
    await world.order("e0", "t")
    async with world.runner():
        events = await world.ended("e0")
    assert last(events).reason == "infrastructure"


async def test_orders_that_come_twice_start_one_harness(world: World) -> None:
    world.script("t", f"echo x >> {world.root}/count; sleep 0.2")
    async with world.runner():
        await asyncio.gather(*(world.order("e0", "t", dispatch=n == 0) for n in range(4)))
        await world.ended("e0")
        await world.order("e0", "t", dispatch=False)
        await world.order("e1", "t")
        await world.ended("e1")
    assert (world.root / "count").read_text() == "x\nx\n"


async def test_an_order_waits_for_the_facts_it_relies_on(world: World) -> None:
    world.script("t", "exit 0")
    async with world.runner():
        await world.order("e0", "t", dispatch=False)
        await asyncio.sleep(0.1)
        assert await world.runs("e0") == []
        await world.dispatch("g-e0", "t", "e0")
        await world.ended("e0")


async def test_a_stopped_runner_takes_its_harnesses_along(world: World) -> None:
    world.script(
        "t", 'echo $$ > pid.txt; case "$HOME" in */a1/*) while true; do sleep 0.05; done;; esac'
    )
    await world.order("e0", "t")
    async with world.runner():
        await until_written(world.file("e0", "pid.txt"))
    assert not psutil.pid_exists(int(world.file("e0", "pid.txt").read_text()))
    async with world.runner():
        events = await world.ended("e0")
    assert isinstance(events[2], AttemptFailed)
    assert events[2].error == "the runner was stopped during the attempt"
    assert (last(events).reason, last(events).attempt) == ("completed", 2)


async def test_many_executions_run_at_once(world: World) -> None:
    world.script("t", "sleep 0.5; cat input.txt > answer.txt")
    for index in range(16):
        await world.order(f"e{index}", "t")
    async with world.runner():
        for index in range(16):
            assert last(await world.ended(f"e{index}")).reason == "completed"
