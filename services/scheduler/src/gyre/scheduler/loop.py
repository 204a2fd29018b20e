"""The scheduler's loop: fold every fact, then append what the decider says, one decision at a time.

Invariants:
- A decision is appended with the subject's last sequence expected, so a second scheduler, or an API
  call that came in between, makes it conflict, never double.
- Nothing is decided until the log's head at start has been folded, nor while a decision of the same
  job is appended but not folded.
- A start order is put into the work queue after it is in the log, again at its deadline and after
  a restart; runners take it once, by execution id.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from gyre.adapters.clock import Clock
from gyre.adapters.collection import no_collection
from gyre.adapters.eventlog.base import SequenceConflict, Stream
from gyre.adapters.failpoints import failpoint
from gyre.adapters.journal import Fact, Journal
from gyre.adapters.logging import get_logger
from gyre.contracts import subjects
from gyre.contracts.envelope import Body, Decision
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import next_decision, next_wake
from gyre.core.scheduling.cluster import (
    ClusterState,
    cancel_of_queued,
    next_cell_join,
    next_job_start,
)
from gyre.core.scheduling.state import JobState
from gyre.scheduler.folded import Folded
from gyre.scheduler.snapshots import Snapshots

# The longest a timer waits before it looks again whether start orders are overdue.
SWEEP_S = 1.0


class WorkQueue(Protocol):
    """What the loop needs of a work queue."""

    async def put(self, subject: str, data: bytes, msg_id: str) -> int: ...


class Hearing(Protocol):
    """What the loop needs of the heartbeats (`heartbeats.Heartbeats`)."""

    def absent(self, cells: Iterable[int]) -> frozenset[int]: ...

    def silences(
        self, jobs: Iterable[JobState], now: float
    ) -> Iterable[tuple[JobState, sched.AgentSilent]]: ...


class SchedulerLoop:
    """Owns the cluster's state; `state` is for the API to read and for nobody to change."""

    def __init__(
        self,
        journal: Journal,
        queue: WorkQueue,
        clock: Clock,
        hearing: Hearing | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._journal = journal
        self._queue = queue
        self._clock = clock
        self._snapshots = snapshots
        self._folded = Folded()
        self._hearing = hearing
        self._pending: dict[str, int] = {}
        self._placed = 0
        self.folded = asyncio.Condition()

    @property
    def state(self) -> ClusterState:
        return self._folded.cluster

    def now(self) -> float:
        """Unix seconds, by the clock that its decisions go by."""
        return self._clock.now()

    async def run(self, on_ready: asyncio.Event) -> None:
        """Consume facts and time until cancelled."""
        head = await self._journal.head(Stream.FACTS)
        if self._snapshots is not None:
            self._folded = await self._snapshots.newest()
        begin = self.state.sequence
        facts = self._journal.follow(Stream.FACTS, after=begin)
        incoming: asyncio.Queue[Fact] = asyncio.Queue(maxsize=4096)
        async with asyncio.TaskGroup() as tasks:
            with no_collection():
                while self.state.sequence < head:
                    self._fold(await anext(facts))
            get_logger().info("caught_up", sequence=head, num_facts=self.state.sequence - begin)
            tasks.create_task(_pump(facts, incoming))
            on_ready.set()
            while True:
                await self._act()
                self._take_snapshot(tasks)
                await self._fold_available(incoming)

    def _take_snapshot(self, tasks: asyncio.TaskGroup) -> None:
        if self._snapshots is not None and self._snapshots.due(self._folded):
            tasks.create_task(self._snapshots.write(*self._snapshots.take(self._folded)))

    async def _fold_available(self, incoming: asyncio.Queue[Fact]) -> None:
        """Fold what has come; wait for one fact, but no longer than the next timer."""
        try:
            async with asyncio.timeout(self._patience()):
                fact = await incoming.get()
        except TimeoutError:
            return
        self._fold(fact)
        while not incoming.empty():
            self._fold(incoming.get_nowait())
        async with self.folded:
            self.folded.notify_all()

    def _fold(self, fact: Fact) -> None:
        self._folded.fold(fact)
        if self._pending.get(fact.job, 0) <= fact.sequence:
            self._pending.pop(fact.job, None)

    def _patience(self) -> float:
        wakes = [next_wake(job) for job in self.state.jobs.values()]
        due = min((wake for wake in wakes if wake is not None), default=None)
        if due is None:
            return SWEEP_S
        return min(SWEEP_S, max(0.001, due - self._clock.now()))

    async def _act(self) -> None:
        """Append every decision that is due and hand out the orders that are in the log."""
        now = self._clock.now()
        await self._place_cells(now)
        for job in self.state.jobs.values():
            if job.job not in self._pending:
                decision = next_decision(job, now)
                if decision is not None:
                    await self._append(job, decision)
        for order in self._folded.orders.due(self.state.jobs, now):
            await self._queue.put(
                subjects.start_order(order.job),
                json.dumps(order.payload()).encode(),
                msg_id=order.message_id(),
            )

    async def _place_cells(self, now: float) -> None:
        """Which job has which cells. One such decision at a time: the next sees what it took."""
        if self.state.sequence < self._placed:
            return
        cancelled = cancel_of_queued(self.state, now)
        chosen = cancelled or self._next_placement(now)
        if chosen is not None and chosen[0] not in self._pending:
            await self._append(self.state.jobs[chosen[0]], chosen[1])
            self._placed = self._pending[chosen[0]]
        if self._hearing is not None:
            for job, silent in self._hearing.silences(self.state.jobs.values(), now):
                if job.job not in self._pending:
                    await self._append(job, silent)

    def silent_cells(self) -> frozenset[int]:
        """Registered cells whose agents are not heard now."""
        if self._hearing is None:
            return frozenset()
        return self._hearing.absent(self.state.online)

    def _next_placement(self, now: float) -> tuple[str, Body] | None:
        """The agents are asked for only when there is something to place."""
        chosen = next_cell_join(self.state, now) or next_job_start(self.state, now)
        if chosen is None or self._hearing is None:
            return chosen
        absent = self.silent_cells()
        return next_cell_join(self.state, now, absent) or next_job_start(self.state, now, absent)

    async def _append(self, job: JobState, decision: Body) -> None:
        subject = _subject_of(job.job, decision)
        expected = self._folded.last_on.get(job.job, {}).get(subject, 0)
        try:
            sequence = await self._journal.append(
                subject,
                decision,
                job=job.job,
                cause=(subject, expected),
                causation=str(decision.based_on) if isinstance(decision, Decision) else "",
                expected=expected,
            )
        except SequenceConflict as conflict:
            # Somebody appended first; the fact is on its way here and the next look decides anew.
            self._pending[job.job] = conflict.actual
            get_logger().info("decision_conflict", job=job.job, decision=decision.TYPE)
            return
        self._pending[job.job] = sequence
        get_logger().info("decided", job=job.job, decision=decision.TYPE, sequence=sequence)
        failpoint("scheduler.after_append")
        failpoint(f"scheduler.after_{decision.TYPE}")


def _subject_of(job: str, decision: Body) -> str:
    if isinstance(decision, sched.EpochFenced):
        return subjects.batch_claims(job, decision.batch)
    return subjects.sched(job)


async def _pump(facts: AsyncIterator[Fact], incoming: asyncio.Queue[Fact]) -> None:
    async for fact in facts:
        await incoming.put(fact)
