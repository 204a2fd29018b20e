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
from collections.abc import AsyncIterator
from typing import Protocol

from gyre.adapters.clock import Clock
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
    evolve_cluster,
    next_job_start,
)
from gyre.core.scheduling.state import JobState
from gyre.scheduler.orders import OrderDesk

# The longest a timer waits before it looks again whether start orders are overdue.
SWEEP_S = 1.0


class WorkQueue(Protocol):
    """What the loop needs of a work queue."""

    async def put(self, subject: str, data: bytes, msg_id: str) -> int: ...


class SchedulerLoop:
    """Owns the cluster's state; `state` is for the API to read and for nobody to change."""

    def __init__(self, journal: Journal, queue: WorkQueue, clock: Clock) -> None:
        self._journal = journal
        self._queue = queue
        self._clock = clock
        self._orders = OrderDesk()
        self._pending: dict[str, int] = {}
        self._last_on: dict[str, int] = {}
        self._caught_up = False
        self.state = ClusterState()
        self.folded = asyncio.Condition()

    async def run(self, on_ready: asyncio.Event) -> None:
        """Consume facts and time until cancelled."""
        head = await self._journal.head(Stream.FACTS)
        facts = self._journal.follow(Stream.FACTS)
        incoming: asyncio.Queue[Fact] = asyncio.Queue(maxsize=4096)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_pump(facts, incoming))
            if head == 0:
                self._caught_up = True
                on_ready.set()
            while True:
                await self._fold_available(incoming)
                if not self._caught_up and self.state.sequence >= head:
                    self._caught_up = True
                    on_ready.set()
                if self._caught_up:
                    await self._act()

    async def _fold_available(self, incoming: asyncio.Queue[Fact]) -> None:
        """Fold what has come; wait for one fact, but no longer than the next timer."""
        try:
            fact = await asyncio.wait_for(incoming.get(), self._patience())
        except TimeoutError:
            return
        self._fold(fact)
        while not incoming.empty():
            self._fold(incoming.get_nowait())
        async with self.folded:
            self.folded.notify_all()

    def _fold(self, fact: Fact) -> None:
        evolve_cluster(self.state, fact.sequence, fact.job, fact.body)
        self._last_on[fact.envelope.aggregate] = fact.sequence
        self._orders.fold(fact.job, fact.body, fact.envelope.time)
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
        for choose in (cancel_of_queued, next_job_start):
            chosen = choose(self.state, now)
            if chosen is not None and chosen[0] not in self._pending:
                await self._append(self.state.jobs[chosen[0]], chosen[1])
        for job in self.state.jobs.values():
            if job.job not in self._pending:
                decision = next_decision(job, now)
                if decision is not None:
                    await self._append(job, decision)
        for order in self._orders.due(self.state.jobs, now):
            await self._queue.put(
                subjects.start_order(order.job),
                json.dumps(order.payload()).encode(),
                msg_id=order.message_id(),
            )

    async def _append(self, job: JobState, decision: Body) -> None:
        subject = _subject_of(job.job, decision)
        expected = self._last_on.get(subject, 0)
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
