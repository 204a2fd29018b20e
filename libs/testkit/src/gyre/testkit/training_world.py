"""One job, whole, in virtual time: real scheduler loops and cell agents on one lagging log.

Simulated are only the engines, the trainers, the harness runs, and packing's micro-steps (groups
are drawn by the real fold). `Strike`s kill processes at chosen facts. What a run must have kept is
checked in `training_audit`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Fact, Journal
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events import calls as call_events
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.contracts.job import JobSpec
from gyre.core.groups import JobGroups, next_draw, next_ready
from gyre.core.groups import evolve as evolve_groups
from gyre.scheduler.loop import SchedulerLoop
from gyre.testkit.lagging_log import LaggingLog
from gyre.testkit.simulated_cell import CellLife
from gyre.testkit.simulated_trainer import Fabric
from gyre.testkit.virtual_time import VirtualClock

JOB = "job"
# Longer than any wait in the system: a collective's time-out, and the agent's patience after it.
SILENCE_S = 1500.0
MOST_FACTS = 6000


class Stalled(AssertionError):
    """Nothing happens any more, or far too much does, and the job has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """Kill `victim` ("agent", "engine", "trainer", "scheduler") of `cell`, `delay_s` after the
    `nth` fact of type `after`."""

    after: str
    nth: int
    delay_s: float
    victim: str
    cell: int


@dataclass(kw_only=True)
class TrainingWorld:
    """log: every fact, in order. lag_s: of the log. micro_step_s, execution_s: at most."""

    spec: JobSpec
    home: Path
    seed: int
    strikes: tuple[Strike, ...] = ()
    num_schedulers: int = 1
    lag_s: float = 0.05
    micro_step_s: float = 1.0
    execution_s: float = 3.0
    heldout_tasks: tuple[str, ...] = ()

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
        self.fabric = Fabric(self.source)
        self.inner = MemoryEventLog(clock=VirtualClock())
        self.cells = [
            CellLife(cell, self.home, self.fabric, self._new_log, self.micro_step_s)
            for cell in range(self.spec.cells.count)
        ]
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(work)
                for work in (
                    self._watch(over, tasks),
                    self._guard(),
                    _Packing(self).run(),
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

    def _new_log(self) -> LaggingLog:
        return LaggingLog(self.inner, self.source, self.lag_s)

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
        offline: set[int] = set()
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
            if isinstance(fact.body, cell_events.RoleChanged) and fact.body.role == "offline":
                offline.add(fact.body.cell)
            if finished and len(offline) == len(self.cells):
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
        if strike.victim == "scheduler":
            self._schedulers[strike.cell % len(self._schedulers)].cancel()
        else:
            self.cells[strike.cell % len(self.cells)].kill(strike.victim)

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
            loop = SchedulerLoop(self.journal(), self, VirtualClock())
            task = asyncio.create_task(loop.run(asyncio.Event()))
            self._schedulers[place : place + 1] = [task]
            try:
                await asyncio.wait({task})
            finally:
                task.cancel()
            if not task.cancelled() and (error := task.exception()) is not None:
                raise RuntimeError("scheduler failed") from error
            await self.fabric.pause(1.0)

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
        ended = run_events.Terminated(
            execution=name,
            attempt=1,
            reason="completed",
            exit_code=0,
            signal=None,
            workspace=None,
            duration_s=1.0,
        )
        await self.say(run, ended, (name, "run"))
        scored = score_events.Evaluated(
            execution=name, attempt=1, evaluation="x", artifact="x", branch="main", reward=1.0
        )
        await self.say(subjects.score(JOB, name), scored, (name, "score"))


class _Packing:
    """The trajectory service's fold and draws, with micro-steps that carry nothing but an index."""

    def __init__(self, world: TrainingWorld) -> None:
        self._world = world
        self._state = JobGroups(job=JOB)

    async def run(self) -> None:
        async for fact in self._world.journal().follow(Stream.FACTS):
            evolve_groups(self._state, fact.sequence, fact.body)
            if isinstance(fact.body, run_events.Terminated):
                name = fact.body.execution
                seal = call_events.CallsSealed(execution=name, num_calls=0, last_seq=0)
                evolve_groups(self._state, 0, seal)
            await self._pay()

    async def _pay(self) -> None:
        """One event that is owed; its own coming back brings the next."""
        state, say = self._state, self._world.say
        if state.spec is None or state.finished:
            return
        ready = next_ready(state)
        batch = state.batch
        if ready is not None:
            await say(subjects.group(JOB, ready.group), ready, (ready.group,))
        elif batch is not None and not batch.closed and (step := self._next_step()) is not None:
            await say(subjects.batch_stream(JOB, batch.batch), step, (batch.batch, step.index))
        elif batch is not None and batch.all_drawn and not batch.closed:
            closed = group_events.StreamClosed(
                batch=batch.batch,
                groups=tuple(group.group for group in batch.groups),
                num_micro_steps=batch.num_micro_steps,
                num_targets=1,
            )
            await say(subjects.batch_stream(JOB, batch.batch), closed, (batch.batch,))
        elif batch is not None and (group := next_draw(state)) is not None:
            claim = group_events.GroupClaimed(group=group.group, batch=batch.batch)
            await say(subjects.group(JOB, group.group), claim, (group.group, batch.batch))

    def _next_step(self) -> group_events.MicroStepEmitted | None:
        """A group brings none, one or two micro-steps, by its name."""
        batch = self._state.batch
        assert batch is not None
        owed = sum(len(group.group) and (group.order * 7 + 1) % 3 for group in batch.groups)
        index = batch.num_micro_steps
        if index >= owed:
            return None
        digest = hashlib.sha256(f"{batch.batch}/{index}".encode()).hexdigest()
        self._world.fabric.micro_steps[digest] = (batch.batch, index)
        return group_events.MicroStepEmitted(
            batch=batch.batch,
            index=index,
            digest=digest,
            executions=(f"{batch.batch}-x{index}",),
            num_rows=1,
            row_tokens=1,
            num_tokens=1,
            num_targets=1,
        )
