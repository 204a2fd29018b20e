"""The agent's loop: fold the facts, do the next duty, say what came of it.

Invariants:
- one duty at a time, chosen by `next_duty` from the log and from what the processes hold;
- what an agent says is folded before the next duty is chosen, so nothing is done twice;
- a dead engine or trainer is said first, then started again; a dead agent's successor says it;
- a world that failed is said when the peer's death is known, or when nobody has explained it;
- weights of a batch that could not be had are asked for again until its window closes;
- a trainer that waits for a peer which the log says is gone is ended, if nothing is lost with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gyre.adapters.eventlog.base import SequenceConflict, Stream
from gyre.adapters.journal import Fact, Journal
from gyre.adapters.logging import get_logger
from gyre.cell_agent.performer import Performer
from gyre.cell_agent.reports import ProcessLost, Report
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.core.cell import CellState, Duty, evolve_cell, next_duty
from gyre.core.cell.orders import FinishBatch, FormWorld, JoinBatch, ReportBroken

# An own event comes back within milliseconds; a log that takes this long is not there.
FOLD_DEADLINE_S = 60.0
# How long a dead peer's agent has to say so before we ask for a new world: were we faster, that
# world would count on the dead. A death is noticed and appended within milliseconds.
EXPLANATION_S = 5.0
# Before weights that could not be had are asked for again: doubled each time, up to the most. A
# batch lasts minutes, and a core that is asked in vain is asked by all cells that came late.
PULL_AGAIN_S = 1.0
PULL_AGAIN_MOST_S = 16.0
# A collective with a dead peer fails within milliseconds. One that has not by then waits for a peer
# that hangs, or never connected, and would wait for the world's whole time-out.
HANGING_S = 15.0


class CellAgent:
    """Runs one cell until cancelled. incarnation: unique to this life of the agent."""

    def __init__(
        self, *, cell: int, incarnation: str, journal: Journal, performer: Performer
    ) -> None:
        self._journal = journal
        self._performer = performer
        self._incarnation = incarnation
        self._incoming: asyncio.Queue[Fact] = asyncio.Queue(maxsize=4096)
        self._last_on: dict[str, int] = {}
        self._folded = 0
        self._num_said = 0
        self._noticed = ("", 0.0)
        self._peer_gone = asyncio.Event()
        self.state = CellState(cell=cell)

    async def run(self, online: cell_events.AgentOnline, ready: asyncio.Event) -> None:
        """Replay, take over from an earlier life, then serve."""
        head = await self._journal.head(Stream.FACTS)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pump(self._journal.follow(Stream.FACTS)))
            while self._folded < head:
                await self._fold_next()
            await self._take_over(online)
            ready.set()
            while True:
                await self._turn()

    async def _turn(self) -> None:
        """Everything that has come, then one duty, or wait for something to come."""
        while not self._incoming.empty():
            self._fold(self._incoming.get_nowait())
        lost = self._performer.processes.take_lost()
        if lost is not None:
            await self._say_lost(lost)
            return
        duty = next_duty(self.state, self._performer.held)
        if duty is None:
            await self._wait(None)
            return
        if (patience := self._patience(duty)) > 0:
            await self._wait(patience)
            return
        get_logger().debug("duty", duty=type(duty).__name__)
        try:
            reports = await self._perform(duty)
        except ProcessLost as lost_in_duty:
            await self._say_lost(lost_in_duty)
            return
        for report in reports:
            await self._say(report)

    async def _perform(self, duty: Duty) -> list[Report]:
        """Nothing is folded meanwhile; of what comes only a peer's end is noticed."""
        self._peer_gone.clear()
        if not isinstance(duty, FormWorld | FinishBatch) or not self._trainer_is_worth_little():
            return await self._performer.perform(duty, self.state)
        work = asyncio.create_task(self._performer.perform(duty, self.state))
        gone = asyncio.create_task(self._peer_gone.wait())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({work}, timeout=HANGING_S)
            if not work.done():
                get_logger().warning("trainer_ended", reason="it waits for a peer that is gone")
                self._performer.processes.kill_trainer()
            return await work
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    def _trainer_is_worth_little(self) -> bool:
        """It holds nothing that another does not: all but a core with unpublished weights."""
        state = self.state
        return not state.is_core or (state.batch is None and state.version == state.durable)

    def _patience(self, duty: Duty) -> float:
        """Seconds until it is to be done, counted from when it was noticed: those of a broken world
        that nobody has explained, or between two tries to have a batch's weights."""
        match duty:
            case ReportBroken(explained=False):
                noticed, wait_s = f"world {duty.epoch}", EXPLANATION_S
            case JoinBatch(num_missed=missed) if missed:
                noticed = f"batch {duty.batch.batch}, {missed} times"
                wait_s = min(PULL_AGAIN_S * 2 ** (missed - 1), PULL_AGAIN_MOST_S)
            case _:
                return 0.0
        now = asyncio.get_running_loop().time()
        if self._noticed[0] != noticed:
            self._noticed = (noticed, now)
        return self._noticed[1] + wait_s - now

    async def _wait(self, timeout_s: float | None) -> None:
        """Until a fact comes, a process ends, or the time is over."""
        arrival = asyncio.create_task(self._fold_next())
        death = asyncio.create_task(self._performer.processes.something_lost.wait())
        try:
            await asyncio.wait(
                {arrival, death}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in (arrival, death):
                task.cancel()
            await asyncio.wait({arrival, death})
        if arrival.done() and not arrival.cancelled():
            arrival.result()

    async def _take_over(self, online: cell_events.AgentOnline) -> None:
        """What an earlier life of this agent ran has ended with it."""
        subject = subjects.registration(self.state.cell)
        await self._append(subject, online, job=subjects.CLUSTER)
        if self.state.job is None or self.state.finished or self.state.gone:
            return
        if self.state.engine_reported:
            await self._say_lost(ProcessLost(process="engine", error="its agent was restarted"))
        if self.state.trainer_reported:
            await self._say_lost(ProcessLost(process="trainer", error="its agent was restarted"))

    async def _say_lost(self, lost: ProcessLost) -> None:
        get_logger().warning("process_lost", process=lost.process, error=lost.error)
        await self._performer.forget(lost)
        body: Body
        if lost.process == "engine":
            body = cell_events.EngineLost(cell=self.state.cell, error=lost.error)
        else:
            body = cell_events.TrainerLost(cell=self.state.cell, error=lost.error)
        await self._say(Report(body=body))

    async def _say(self, report: Report) -> None:
        """Append one fact and fold up to it; a claim that comes too late is no error."""
        job = self.state.job
        if job is None:
            raise RuntimeError("a cell without a job has nothing to say")
        subject = report.subject or subjects.cell(job, self.state.cell)
        try:
            await self._append(subject, report.body, job=job, expected=report.expected)
        except SequenceConflict as conflict:
            if report.expected is None:
                raise
            get_logger().info("claim_conflict", subject=subject)
            await self._fold_until(conflict.actual)

    async def _append(
        self, subject: str, body: Body, *, job: str, expected: int | None = None
    ) -> None:
        self._num_said += 1
        if expected is None:
            # This agent is the subject's only writer; an earlier life may have written last.
            expected = max(
                self._last_on.get(subject, 0), await self._journal.last_sequence(subject)
            )
        sequence = await self._journal.append(
            subject,
            body,
            job=job,
            cause=(self._incarnation, self._num_said),
            expected=expected,
        )
        self._last_on[subject] = sequence
        await self._fold_until(sequence)

    async def _fold_until(self, sequence: int) -> None:
        async with asyncio.timeout(FOLD_DEADLINE_S):
            while self._folded < sequence:
                await self._fold_next()

    async def _fold_next(self) -> None:
        self._fold(await self._incoming.get())

    def _fold(self, fact: Fact) -> None:
        envelope = fact.envelope
        self.state = evolve_cell(
            self.state, fact.sequence, envelope.job, envelope.aggregate, envelope.body
        )
        self._last_on[envelope.aggregate] = fact.sequence
        self._folded = fact.sequence

    async def _pump(self, facts: AsyncIterator[Fact]) -> None:
        async for fact in facts:
            if _is_a_peers_end(self.state, fact):
                self._peer_gone.set()
            await self._incoming.put(fact)


def _is_a_peers_end(state: CellState, fact: Fact) -> bool:
    body = fact.body
    if fact.job != state.job or not isinstance(body, sched.CellLost | cell_events.TrainerLost):
        return False
    return body.cell in state.world and body.cell != state.cell
