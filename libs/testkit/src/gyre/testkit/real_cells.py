"""A job on real cells: scheduler loop, cell agents, engines and trainers on a real event log.

Micro-steps travel over HTTP. Played are only the harness runs, whose rewards are always 1, and
packing's contents: each batch has the micro-steps that the test gives for its version, so that runs
are comparable step by step, whoever claimed what and whoever died. `Life.losses` is a loss curve.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gyre.adapters.blob_server import serving_blobs
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.base import SequenceConflict
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.failpoints import failpoint
from gyre.adapters.journal import Fact, Journal
from gyre.adapters.keys import make_blobs_key
from gyre.adapters.microsteps import encode_microstep
from gyre.adapters.runtime import Runtime
from gyre.cell_agent import bootstrap
from gyre.cell_agent.settings import CellAgentSettings
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.contracts.job import JobSpec
from gyre.scheduler.heartbeats import Heartbeats
from gyre.scheduler.loop import SchedulerLoop
from gyre.testkit.cells_job import Batches, Life
from gyre.testkit.facts import terminated
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.training_services import JOB, Packing

# A start of all processes, some steps and a restart, on two cores that others use too.
RUN_S = 150.0
STORE_S = 60.0
SECRET = "the-key-secret"


class NotEnded(AssertionError):
    """The job did not end in time; the message is the end of its log."""


@dataclass(kw_only=True)
class RealCells:
    """environment: of the agents' children, beside this process's. on_fact: told of each fact of
    the job as soon as it is read. spare: cells beyond those that the job asks for. nodes: of each
    cell, with an agent on each."""

    spec: JobSpec
    home: Path
    batches: Batches
    environment: Mapping[str, str] = field(default_factory=dict)
    on_fact: Callable[[Fact], None] = lambda fact: None
    spare: int = 0
    nodes: int = 1
    deadline_s: float = RUN_S

    facts: list[Fact] = field(default_factory=list)
    _url: str = ""
    _logs: list[JetStreamEventLog] = field(default_factory=list)
    _ordered: set[str] = field(default_factory=set)
    _runs: set[asyncio.Task[None]] = field(default_factory=set)

    def live(self) -> Life:
        """The whole job, until it has ended and its cells are free. Raises NotEnded, or what one
        of the services died of."""
        with _environment({**self.environment, "GYRE_HOME": str(self.home)}):
            asyncio.run(self._live())
        return Life(facts=tuple(self.facts))

    async def _live(self) -> None:
        server = NatsServer(self.home / "nats").start()
        self._url = server.url
        try:
            await ensure_streams(server.url)
            key = make_blobs_key(SECRET)
            async with (
                asyncio.timeout(self.deadline_s),
                _store() as port,
                serving_blobs(self._blobs, host="127.0.0.1", port=0, key=key) as blobs_url,
            ):
                await self._serve({"store_port": port, "blobs_url": blobs_url})
        except TimeoutError:
            raise NotEnded(f"not ended after {self.deadline_s:g} s\n{self._picture()}") from None
        finally:
            for log in self._logs:
                await log.close()
            server.stop()

    async def _serve(self, places: Mapping[str, Any]) -> None:
        hearing = Heartbeats(self._url)
        loop = SchedulerLoop(self.journal(), self, SystemClock(), hearing)
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(work)
                for work in (
                    self._watch(over),
                    hearing.run(),
                    loop.run(asyncio.Event()),
                    _FixedPacking(self).run(),
                    *(
                        self._agent(cell, node, places)
                        for cell in range(self._num_cells)
                        for node in range(self.nodes)
                    ),
                )
            ]
            body = sched.JobSubmitted(spec=self.spec, train_tasks=("t",), heldout_tasks=())
            await self.say(subjects.sched(JOB), body, ("submit",))
            await over.wait()
            for task in (*running, *self._runs):
                task.cancel()

    @property
    def _num_cells(self) -> int:
        return self.spec.cells.num_cells + self.spare

    async def _agent(self, cell: int, node: int, places: Mapping[str, Any]) -> None:
        settings = CellAgentSettings.model_validate(
            {
                "nats_url": self._url,
                "database_url": "postgresql://nowhere",
                "key_secret": SECRET,
                "home": self.home,
                "cell": cell,
                "node": node,
                "cell_nodes": self.nodes,
                **places,
            }
        )
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        name = settings.own_name
        ready = settings.run_dir / f"{name}.ready"
        await bootstrap.main(settings, Runtime(service=name, ready_file=ready))

    async def _watch(self, over: asyncio.Event) -> None:
        """Keeps the facts; the end is the job's and then every cell's."""
        busy: set[int] = set()
        async for fact in self.journal().follow(Stream.FACTS):
            if fact.job != JOB:
                continue
            self.facts.append(fact)
            self.on_fact(fact)
            match fact.body:
                case sched.JobStarted():
                    busy |= set(fact.body.cells)
                case sched.CellJoined():
                    busy.add(fact.body.cell)
                case cell_events.RoleChanged(role="offline"):
                    busy.discard(fact.body.cell)
                case _:
                    pass
            ended = any(isinstance(one.body, sched.JobFinished) for one in self.facts)
            if ended and not busy:
                over.set()

    def _picture(self) -> str:
        return "\n".join(
            f"{fact.sequence} {fact.envelope.aggregate} {fact.body.TYPE} {str(fact.body)[:200]}"
            for fact in self.facts[-60:]
        )

    # -- what the other services do

    def journal(self) -> Journal:
        log = JetStreamEventLog(self._url, name="gyre-test")
        self._logs.append(log)
        return Journal(log, SystemClock(), self._blobs)

    @property
    def _blobs(self) -> DirectoryBlobStore:
        return DirectoryBlobStore(self.home / "blobs")

    async def say(self, subject: str, body: Body, cause: tuple[str | int, ...]) -> int:
        if not self._logs:
            self.journal()
        journal = Journal(self._logs[0], SystemClock(), self._blobs)
        return await journal.append(subject, body, job=JOB, cause=cause, expected=None)

    async def put(self, subject: str, data: bytes, msg_id: str) -> int:
        """The work queue: each execution is run once, however often it is ordered."""
        order = json.loads(data)
        if order["execution"] not in self._ordered:
            self._ordered.add(order["execution"])
            self._spawn(self._execute(order))
        return len(self._ordered)

    def resume(self) -> None:
        """As a user does; the job's facts say when it goes on."""
        self._spawn(self._resume())

    async def _resume(self) -> None:
        journal, subject = Journal(self._logs[0], SystemClock(), self._blobs), subjects.sched(JOB)
        while True:
            with suppress(SequenceConflict):
                await journal.append(
                    subject,
                    request_events.ResumeRequested(),
                    job=JOB,
                    cause=("resume", len(self.facts)),
                    expected=await journal.last_sequence(subject),
                )
                return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)

    async def _execute(self, order: Mapping[str, str]) -> None:
        name = order["execution"]
        run, cause = subjects.run(JOB, name), (name, "run")
        started = run_events.Started(execution=name, group=order["group"], task=order["task"])
        await self.say(run, started, cause)
        await self.say(run, terminated(name), cause)
        scored = score_events.Evaluated(
            execution=name, attempt=1, evaluation="x", artifact="x", branch="main", reward=1.0
        )
        await self.say(subjects.score(JOB, name), scored, (name, "score"))


class _FixedPacking(Packing):
    """Emits the micro-steps that are given for the batch's version, as many a group as are owed."""

    def __init__(self, world: RealCells) -> None:
        super().__init__(world)
        self._batches = world.batches
        self._blobs = DirectoryBlobStore(world.home / "blobs")

    def _next_step(self) -> group_events.MicroStepEmitted | None:
        batch = self._state.batch
        assert batch is not None
        steps = self._batches[batch.version]
        index = batch.num_micro_steps
        if index * batch.num_groups >= len(steps) * len(batch.groups):
            return None
        step = replace(steps[index], batch=batch.batch, index=index)
        return group_events.MicroStepEmitted(
            batch=batch.batch,
            index=index,
            digest=self._blobs.put(encode_microstep(step)),
            executions=tuple(info.execution for info in step.executions),
            num_rows=len(step.rows),
            row_tokens=step.row_tokens,
            num_tokens=step.num_tokens,
            num_targets=step.num_targets,
        )


@asynccontextmanager
async def _store() -> AsyncIterator[int]:
    """The trainers' rendezvous; its port."""
    store = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gyre.cell_agent.rendezvous"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert store.stdout is not None
    assert store.stdin is not None
    try:
        line = await asyncio.wait_for(store.stdout.readline(), STORE_S)
        yield int(json.loads(line)["port"])
    finally:
        store.stdin.close()
        await asyncio.wait_for(store.wait(), STORE_S)


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """For children alone: this process's own failpoints are read before, and only once."""
    failpoint("real_cells.before")
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
