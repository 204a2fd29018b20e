"""What else a training world has: packing by the real fold of groups, the agents' heartbeats."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from gyre.adapters.eventlog.base import Stream
from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events import calls as call_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.core.groups import JobGroups, next_draw, next_ready
from gyre.core.groups import evolve as evolve_groups
from gyre.core.scheduling import JobState

if TYPE_CHECKING:
    from gyre.testkit.training_world import TrainingWorld

JOB = "job"


class Hearing:
    """What a scheduler hears of the agents; implements the loop's Hearing."""

    def __init__(self, world: TrainingWorld) -> None:
        self._world = world
        self._heard: dict[int, float] = {}

    def absent(self, cells: Iterable[int]) -> frozenset[int]:
        return frozenset(cell for cell in cells if self._silence(cell) > 0)

    def silences(
        self, jobs: Iterable[JobState], now: float
    ) -> Iterator[tuple[JobState, sched.AgentSilent]]:
        for job in jobs:
            limit = job.required_spec.schedule.silence_deadline_s
            for cell in job.everyone:
                silence = self._silence(cell.cell)
                if job.status == "running" and silence > limit and not cell.silent:
                    yield job, sched.AgentSilent(cell=cell.cell, last_heard=now - silence)
                    break

    def _silence(self, cell: int) -> float:
        """Seconds since this scheduler found the cell silent."""
        now = asyncio.get_running_loop().time()
        if self._world.cells[cell].audible:
            self._heard[cell] = now
        return now - self._heard.setdefault(cell, now)


class PackedFor(Protocol):
    """A world that packing reads and writes the log of."""

    def journal(self) -> Journal: ...

    async def say(self, subject: str, body: Body, cause: tuple[str | int, ...]) -> int: ...


class Packing(ABC):
    """The trajectory service's fold and draws; what a batch's micro-steps are is a subclass's."""

    def __init__(self, world: PackedFor) -> None:
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

    @abstractmethod
    def _next_step(self) -> group_events.MicroStepEmitted | None:
        """Of the open batch, None when its groups have brought all of theirs."""


class IndexPacking(Packing):
    """Micro-steps that carry nothing but an index, for simulated trainers."""

    def __init__(self, world: TrainingWorld) -> None:
        super().__init__(world)
        self._fabric = world.fabric

    def _next_step(self) -> group_events.MicroStepEmitted | None:
        """A group brings none, one or two micro-steps, by its name."""
        batch = self._state.batch
        assert batch is not None
        owed = sum(len(group.group) and (group.order * 7 + 1) % 3 for group in batch.groups)
        index = batch.num_micro_steps
        if index >= owed:
            return None
        digest = hashlib.sha256(f"{batch.batch}/{index}".encode()).hexdigest()
        self._fabric.micro_steps[digest] = (batch.batch, index)
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
