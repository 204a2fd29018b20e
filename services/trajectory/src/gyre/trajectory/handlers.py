"""What the trajectory service does with what it hears: fold, then pay the log what it is owed.

The state moves only by folding the log. After each append the loop folds until it has met its own
event again, so the next step is decided on what the log says, never on a guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from gyre.adapters.blobs import BlobStore
from gyre.adapters.eventlog import Stream
from gyre.adapters.journal import EventLost, Fact, Journal
from gyre.adapters.logging import get_logger
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallRerouted, CallUndelivered
from gyre.contracts.events.groups import GroupReady, MicroStepEmitted, StreamClosed
from gyre.contracts.events.lost import FactLost
from gyre.contracts.events.scheduling import Dispatched, GroupDropped, JobFinished
from gyre.core.groups import JobGroups, evolve, next_draw, next_quarantined, next_ready
from gyre.trajectory.inbox import Inbox, Incoming
from gyre.trajectory.statements import Job, Statements
from gyre.trajectory.trees import Trees
from gyre.trajectory.workbench import Workbench

# An event that we appended comes back within milliseconds; longer means that the reader is stuck,
# and a restart folds from the start.
OWN_EVENT_DEADLINE_S = 60.0
# Filters of one read: enough that a restart needs few reads, few enough for the server.
MOST_SUBJECTS = 128

# Events that come by the thousand and never make a group complete or a batch go on.
_CHANGES_NOTHING_OWED = (CallRecorded, CallRerouted, CallUndelivered)


class OwnEventMissing(Exception):
    """An event that this service appended did not come back from the log."""


class Trajectories:
    """All jobs' groups, trees and open batches.

    Mutated by folding alone; `pay_one` appends. `_restless` are the jobs that may owe something.
    """

    def __init__(self, journal: Journal, blobs: BlobStore) -> None:
        self.trees = Trees(journal)
        self.jobs: dict[str, Job] = {}
        self._journal = journal
        self._say = Statements(journal, blobs)
        self._inbox = Inbox(journal)
        self._restless: set[str] = set()
        self._folded = dict.fromkeys(Stream, 0)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Folds the log, then pays what is owed and waits for news, until it is cancelled."""
        await self.catch_up()
        async with asyncio.TaskGroup() as tasks:
            for stream in (Stream.FACTS, Stream.CALLS):
                tasks.create_task(self._inbox.pump(stream, self._folded[stream]))
            on_ready()
            while True:
                while (sequence := await self.pay_one()) is not None:
                    await self._meet_own_event(sequence)
                self._take(await self._inbox.next())
                while (news := self._inbox.here()) is not None:
                    self._take(news)

    async def catch_up(self) -> None:
        """Folds all facts, and the calls of the executions whose group is not ready.

        The head of the calls is taken first: whoever called up to there was dispatched before, so
        its group is in the facts. Calls of ready groups are read when the group is drawn.
        """
        calls_head = await self._journal.head(Stream.CALLS)
        facts_head = await self._journal.head(Stream.FACTS)
        async for fact in self._journal.read(Stream.FACTS, until=facts_head):
            self.fold(Incoming(stream=Stream.FACTS, fact=fact))
        for open_calls in self._open_calls():
            async for fact in self._journal.read(
                Stream.CALLS, open_calls, until=calls_head, lost=self.lose
            ):
                self.fold(Incoming(stream=Stream.CALLS, fact=fact))
        self._folded = {**self._folded, Stream.FACTS: facts_head, Stream.CALLS: calls_head}

    def _open_calls(self) -> Iterator[list[str]]:
        """Subjects of the calls that wait for their seal, MOST_SUBJECTS at a time."""
        wanted = [
            subjects.calls(name, execution)
            for name, job in self.jobs.items()
            for group in job.groups.groups.values()
            if group.ready is None and not group.dropped
            for execution in group.executions
        ]
        for start in range(0, len(wanted), MOST_SUBJECTS):
            yield wanted[start : start + MOST_SUBJECTS]

    async def _meet_own_event(self, sequence: int) -> None:
        try:
            async with asyncio.timeout(OWN_EVENT_DEADLINE_S):
                await self._fold_until(Stream.FACTS, sequence)
        except TimeoutError:
            raise OwnEventMissing(
                f"fact {sequence} was appended and not read back in {OWN_EVENT_DEADLINE_S:g} s"
            ) from None

    async def _fold_until(self, stream: Stream, sequence: int) -> None:
        while self._folded[stream] < sequence:
            self._take(await self._inbox.next())

    # -- folding

    def _take(self, news: Incoming | EventLost) -> None:
        if isinstance(news, Incoming):
            self.fold(news)
        else:
            self.lose(news)

    def lose(self, error: EventLost) -> None:
        """An event of an execution's calls is there and will never be folded."""
        name, execution = subjects.owner_of(error.subject)
        if execution is None:
            get_logger().error("call_of_nobody", error=str(error))
            return
        job = self._job(name)
        if not job.groups.finished and job.groups.trains(execution):
            self.trees.condemn(execution, str(error))
            self._restless.add(name)

    def _job(self, name: str) -> Job:
        return self.jobs.setdefault(name, Job(groups=JobGroups(job=name)))

    def fold(self, incoming: Incoming) -> None:
        """One event into the state; O(its own size)."""
        self._folded[incoming.stream] = incoming.fact.sequence
        envelope = incoming.fact.envelope
        if envelope.job == subjects.CLUSTER:
            return
        job = self._job(envelope.job)
        if job.groups.finished:
            return
        if isinstance(envelope.body, FactLost):
            self._lose_fact(job, envelope.body)
        evolve(job.groups, incoming.fact.sequence, envelope.body)
        if incoming.stream is Stream.CALLS:
            self._fold_call(job, incoming.fact)
        self._forget(job, envelope.body)
        job.last_event = envelope.id
        if not isinstance(envelope.body, _CHANGES_NOTHING_OWED):
            self._restless.add(envelope.job)

    def _lose_fact(self, job: Job, lost: FactLost) -> None:
        """An execution's is said as its damaged records are; the job's own end the job."""
        if lost.execution is not None and job.groups.trains(lost.execution):
            self.trees.condemn(lost.execution, lost.error)

    def _fold_call(self, job: Job, fact: Fact) -> None:
        execution = fact.envelope.aggregate.rpartition(".")[2]
        if job.groups.trains(execution) and not self.trees.fold(execution, fact):
            self._restless.add(job.groups.job)

    def _forget(self, job: Job, body: Body) -> None:
        """Drops the trees that nothing will train any more."""
        match body:
            case GroupReady(outcomes=outcomes, zero_weight=zero_weight):
                self.trees.drop(
                    one.execution for one in outcomes if zero_weight or one.disposition != "valid"
                )
            case MicroStepEmitted(executions=executions):
                self.trees.drop(executions)
            case StreamClosed(groups=groups):
                for group in groups:
                    self.trees.drop(job.groups.groups[group].executions)
            case GroupDropped(group=group) if job.groups.groups[group].dropped:
                self.trees.drop(job.groups.groups[group].executions)
            case Dispatched(kind="heldout", groups=plans):  # their calls may have come first
                for plan in plans:
                    self.trees.drop(plan.executions)
            case JobFinished() | FactLost(execution=None):
                self.trees.drop(job.groups.group_of)
                self.trees.drop(job.groups.heldout)
                job.groups = JobGroups(job=job.groups.job, finished=True)
                job.workbench = None

    # -- paying

    async def pay_one(self) -> int | None:
        """Appends one event that is owed; its sequence, or None when nothing is owed."""
        while self._restless:
            name = min(self._restless)
            sequence = await self._pay(self.jobs[name])
            if sequence is not None:
                return sequence
            self._restless.discard(name)
        return None

    async def _pay(self, job: Job) -> int | None:
        if job.groups.finished:
            return None
        if (quarantined := next_quarantined(job.groups, self.trees.damaged)) is not None:
            return await self._say.quarantined(job, quarantined)
        ready = next_ready(job.groups)
        if ready is not None:
            return await self._say.ready(job, ready)
        batch = job.groups.batch
        if batch is None or batch.closed:
            job.workbench = None
            return None
        if job.workbench is None or job.workbench.batch is not batch:
            job.workbench = Workbench(job.groups, batch, self.trees)
        micro_step = await job.workbench.next_micro_step()
        if (quarantined := next_quarantined(job.groups, self.trees.damaged)) is not None:
            return await self._say.quarantined(job, quarantined)
        if micro_step is not None:
            chosen = job.workbench.chosen_for(micro_step)
            return await self._say.micro_step(job, micro_step, batch, chosen)
        if batch.all_drawn:
            return await self._say.closed(job, batch, job.workbench)
        group = next_draw(job.groups)
        return None if group is None else await self._say.claim(job, group, batch)
