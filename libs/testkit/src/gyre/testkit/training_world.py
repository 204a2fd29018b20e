"""One job, whole, in virtual time: real scheduler loops and cell agents on one lagging log.

Simulated are only the engines, the trainers, the harness runs, and packing's micro-steps (groups
are drawn by the real fold). `Strike`s kill processes at chosen facts. What a run must have kept is
checked in `training_audit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gyre.adapters.eventlog.base import SequenceConflict, Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Fact, Journal
from gyre.adapters.snapshots import SnapshotHeader, SnapshotStore
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.contracts.job import JobSpec
from gyre.scheduler.loop import SchedulerLoop
from gyre.scheduler.snapshots import Snapshots
from gyre.testkit.facts import terminated
from gyre.testkit.lagging_log import LaggingLog
from gyre.testkit.simulated_cell import CellLife
from gyre.testkit.simulated_fabric import Fabric
from gyre.testkit.training_services import JOB, Hearing, IndexPacking
from gyre.testkit.virtual_time import VirtualClock

__all__ = ["JOB", "MOST_FACTS", "Stalled", "Strike", "TrainingWorld"]

# Longer than any wait in the system: a collective's time-out, and the agent's patience after it.
SILENCE_S = 1500.0
# Longer than the silence that the jobs run here allow, shorter than an agent's patience with its
# log: it comes back as it went, with its processes.
CUT_OFF_S = 25.0
MOST_FACTS = 6000


class Stalled(AssertionError):
    """Nothing happens any more, or far too much does, and the job has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """Kill `victim` ("agent", "engine", "trainer", "scheduler") of `cell`, `delay_s` after the
    `nth` fact of type `after`. "cell": its agent, for good. "link": it is cut off from the log for
    `CUT_OFF_S`, and works on. "release": somebody wants it back."""

    after: str
    nth: int
    delay_s: float
    victim: str
    cell: int


class _AtOnce(Snapshots):
    """Writes without a thread, for which virtual time does not wait."""

    async def write(self, header: SnapshotHeader, body: bytes) -> None:
        self._store.write(header, body)


@dataclass(kw_only=True)
class TrainingWorld:
    """log: every fact, in order. lag_s: of the log. micro_step_s, execution_s: at most.
    skips: versions whose batch the core does not apply. full: version -> how often its checkpoint
    does not fit; resumed_after_s: how long the user then takes to make room.
    spare: cells beyond those that the job asks for. snapshot_every: facts between two snapshots of
    a scheduler, None for one that reads the whole log when it starts."""

    spec: JobSpec
    home: Path
    seed: int
    strikes: tuple[Strike, ...] = ()
    num_schedulers: int = 1
    lag_s: float = 0.05
    micro_step_s: float = 1.0
    execution_s: float = 3.0
    heldout_tasks: tuple[str, ...] = ()
    spare: int = 0
    skips: frozenset[int] = frozenset()
    full: dict[int, int] = field(default_factory=dict)
    resumed_after_s: float = 30.0
    snapshot_every: int | None = None
    refusals: dict[tuple[int, str], int] = field(default_factory=dict)

    source: random.Random = field(init=False)
    fabric: Fabric = field(init=False)
    inner: MemoryEventLog = field(init=False)
    cells: list[CellLife] = field(init=False)
    log: list[Fact] = field(default_factory=list)
    on_fact: Callable[[Fact], None] = lambda fact: None
    _schedulers: list[asyncio.Task[None]] = field(default_factory=list)
    _known_orders: set[str] = field(default_factory=set)
    _last_fact_at: float = 0.0

    async def run(self) -> None:
        """Live through the job. Raises Stalled, or whatever a service died of."""
        self.source = random.Random(self.seed)
        self.fabric = Fabric(self.source, self.skips, dict(self.full), refusals=dict(self.refusals))
        self.inner = MemoryEventLog(clock=VirtualClock())
        self.cells = [
            CellLife(cell, self.home, self.fabric, self._new_log, self.micro_step_s)
            for cell in range(self.spec.cells.count + self.spare)
        ]
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(work)
                for work in (
                    self._watch(over, tasks),
                    self._guard(),
                    IndexPacking(self).run(),
                    *(cell.run() for cell in self.cells),
                    *(self._schedule(place, tasks) for place in range(self.num_schedulers)),
                )
            ]
            await self._submit()
            await over.wait()
            for task in (*running, *self._schedulers):
                task.cancel()

    def journal(self) -> Journal:
        return Journal(self._new_log(), VirtualClock())

    def _new_log(self, connected: asyncio.Event | None = None) -> LaggingLog:
        return LaggingLog(self.inner, self.source, self.lag_s, connected)

    async def _submit(self) -> None:
        tasks = tuple(f"t{i}" for i in range(4))
        body = sched.JobSubmitted(
            spec=self.spec, train_tasks=tasks, heldout_tasks=self.heldout_tasks
        )
        await self.say(subjects.sched(JOB), body, ("submit",))

    async def say(self, subject: str, body: Body, cause: tuple[str | int, ...]) -> int:
        return await self.journal().append(subject, body, job=JOB, cause=cause, expected=None)

    # --- what watches ---

    async def _watch(self, over: asyncio.Event, tasks: asyncio.TaskGroup) -> None:
        """Keep the log, strike, and end the run when the job and every cell have ended."""
        seen: dict[str, int] = {}
        busy: set[int] = set()
        finished = False
        async for fact in Journal(self.inner, VirtualClock()).follow(Stream.FACTS):
            self.log.append(fact)
            self.on_fact(fact)
            self._last_fact_at = asyncio.get_running_loop().time()
            name = fact.body.TYPE
            seen[name] = seen.get(name, 0) + 1
            for strike in self.strikes:
                if (strike.after, strike.nth) == (name, seen[name]) and not finished:
                    tasks.create_task(self._strike(strike))
            finished |= isinstance(fact.body, sched.JobFinished)
            match fact.body:
                case sched.JobStarted():
                    busy |= set(fact.body.cells)
                case sched.CellJoined():
                    busy.add(fact.body.cell)
                case cell_events.RoleChanged(role="offline"):
                    busy.discard(fact.body.cell)
                case cell_events.CheckpointFailed():
                    tasks.create_task(self._resume())
                case _:
                    pass
            if finished and all(self.cells[cell].buried for cell in busy):
                over.set()
            if len(self.log) > MOST_FACTS:
                raise Stalled(f"{MOST_FACTS} facts and no end\n{self.picture()}")

    async def _guard(self) -> None:
        """Silence for longer than any time-out is a dead-lock."""
        while True:
            await asyncio.sleep(10.0)
            silent = asyncio.get_running_loop().time() - self._last_fact_at
            if silent > SILENCE_S:
                raise Stalled(f"nothing for {silent:.0f} s\n{self.picture()}")

    async def _strike(self, strike: Strike) -> None:
        await asyncio.sleep(strike.delay_s)
        cell = self.cells[strike.cell % len(self.cells)]
        match strike.victim:
            case "scheduler":
                self._schedulers[strike.cell % len(self._schedulers)].cancel()
            case "link":
                cell.connected.clear()
                await asyncio.sleep(CUT_OFF_S)
                cell.connected.set()
            case "release":
                await self._release(cell.cell)
            case "cell" if sum(not other.buried for other in self.cells) == 1:
                pass
            case _:
                cell.kill(strike.victim)

    async def _release(self, cell: int) -> None:
        await self._ask(request_events.ReleaseRequested(cell=cell), ("release", cell))

    async def _resume(self) -> None:
        await asyncio.sleep(self.resumed_after_s)
        now = VirtualClock().now()
        await self._ask(request_events.ResumeRequested(now=now), ("resume", f"{now:.3f}"))

    async def _ask(self, body: Body, cause: tuple[str | int, ...]) -> None:
        """As the API does: behind whatever the scheduler said last."""
        journal, subject = self.journal(), subjects.sched(JOB)
        while True:
            with contextlib.suppress(SequenceConflict):
                await journal.append(
                    subject,
                    body,
                    job=JOB,
                    cause=cause,
                    expected=await journal.last_sequence(subject),
                )
                return

    def picture(self) -> str:
        """The end of the log, and what every agent believes."""
        lines = [
            f"{fact.sequence} {fact.envelope.time % 1e5:.2f} {fact.envelope.aggregate} "
            f"{fact.body.TYPE} {str(fact.body)[:160]}"
            for fact in self.log[-40:]
        ]
        for cell in self.cells:
            if cell.agent is not None and cell.performer is not None:
                state = cell.agent.state
                lines.append(
                    f"cell {cell.cell}: {cell.performer.held}\n  role={state.role} "
                    f"transition={state.transition} leaving={state.leaving} epoch={state.epoch} "
                    f"world={state.world} left={state.left_epoch} version={state.version} "
                    f"published={state.published} checkpoint={state.checkpoint} "
                    f"exposure={state.exposure}\n  batch={state.batch}"
                )
        return "\n".join(lines)

    # --- what the scheduler and the runner do ---

    async def _schedule(self, place: int, tasks: asyncio.TaskGroup) -> None:
        """One scheduler after the other: a killed one is replaced and replays the log."""
        while True:
            hearing = Hearing(self)
            snapshots = self._snapshots_of(place)
            loop = SchedulerLoop(self.journal(), self, VirtualClock(), hearing, snapshots)
            task = asyncio.create_task(loop.run(asyncio.Event()))
            self._schedulers[place : place + 1] = [task]
            try:
                await asyncio.wait({task})
            finally:
                task.cancel()
            if not task.cancelled() and (error := task.exception()) is not None:
                raise RuntimeError("scheduler failed") from error
            await self.fabric.pause(1.0)

    def _snapshots_of(self, place: int) -> Snapshots | None:
        if self.snapshot_every is None:
            return None
        store = SnapshotStore(self.home / f"snapshots-{place}")
        return _AtOnce(store, self._new_log(), every=self.snapshot_every)

    async def put(self, subject: str, data: bytes, msg_id: str) -> int:
        """The work queue: each execution is run once, however often it is ordered."""
        order = json.loads(data)
        if order["execution"] not in self._known_orders:
            self._known_orders.add(order["execution"])
            asyncio.get_running_loop().create_task(self._execute(order))
        return len(self._known_orders)

    async def _execute(self, order: dict[str, str]) -> None:
        name = order["execution"]
        run = subjects.run(JOB, name)
        await self.say(
            run,
            run_events.Started(execution=name, group=order["group"], task=order["task"]),
            (name, "run"),
        )
        await self.fabric.pause(self.execution_s)
        await self.say(run, terminated(name), (name, "run"))
        scored = score_events.Evaluated(
            execution=name, attempt=1, evaluation="x", artifact="x", branch="main", reward=1.0
        )
        await self.say(subjects.score(JOB, name), scored, (name, "score"))
