"""The evaluator's loops.

| loop | consumes | produces | waits for |
|---|---|---|---|
| facts | facts.*.sched, facts.*.exec.> | executions that became ready, into the queue | the log |
| seals | calls_sealed in calls.> | the same | the log |
| workers (2) | the queue | the events of facts.*.exec.*.score | a scorer |

An execution is ready when `terminated` and `calls_sealed` are both in, in either order; a record
among its calls that is no event may have been the seal, and counts as one. Both follows start where
the catch-up ended; nothing is scored before the whole log is folded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from gyre.adapters.eventlog import EventLog, Recorded, Stream
from gyre.adapters.journal import Journal, damaged, newer
from gyre.adapters.logging import get_logger
from gyre.contracts import subjects
from gyre.contracts.codec import NewerEvent, UndecodableEvent, decode, type_of
from gyre.contracts.events.calls import CallsSealed
from gyre.core.evaluation import Pending
from gyre.evaluator.handlers import Handler
from gyre.evaluator.registry import Registry

FACT_SUBJECTS = ("facts.*.sched", "facts.*.exec.>")

Key = tuple[str, str]


class Evaluator:
    """Owns the queue between the follows and the workers."""

    def __init__(
        self,
        *,
        log: EventLog,
        journal: Journal,
        registry: Registry,
        handler: Handler,
        concurrency: int,
    ) -> None:
        self._log = log
        self._journal = journal
        self._registry = registry
        self._handler = handler
        self._concurrency = concurrency
        self._queue: asyncio.Queue[Key] = asyncio.Queue()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Evaluates until it is cancelled; `on_ready` is called once the log is folded."""
        after_facts, after_calls = await self._catch_up()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_facts(after_facts))
            group.create_task(self._follow_seals(after_calls))
            for _ in range(self._concurrency):
                group.create_task(self._work())
            on_ready()

    async def _catch_up(self) -> tuple[int, int]:
        """Folds what is in the log; the sequences of facts and calls from which to follow.

        The head of the calls is taken first: a seal up to it belongs to an execution whose
        `terminated` was in the facts by then, so looking at those is enough.
        """
        calls_head = await self._journal.head(Stream.CALLS)
        facts_head = await self._journal.head(Stream.FACTS)
        async for fact in self._journal.read(Stream.FACTS, FACT_SUBJECTS, until=facts_head):
            self._registry.fold(fact.envelope, fact.sequence)
        for state in self._registry.unsealed():
            subject = subjects.calls(state.job, state.execution)
            async for recorded in self._log.read(
                Stream.CALLS, subjects=(subject,), until=calls_head
            ):
                self._fold_seal(recorded)
        self._enqueue(self._registry.closed())
        get_logger().info("caught_up", sequence=facts_head, num_pending=self._queue.qsize())
        return facts_head, calls_head

    async def _follow_facts(self, after: int) -> None:
        async for fact in self._journal.follow(Stream.FACTS, FACT_SUBJECTS, after=after):
            self._enqueue(self._registry.fold(fact.envelope, fact.sequence))

    async def _follow_seals(self, after: int) -> None:
        async for recorded in self._log.follow(Stream.CALLS, after=after):
            self._enqueue(self._fold_seal(recorded))

    async def _work(self) -> None:
        while True:
            job, execution = await self._queue.get()
            state = self._registry.get(job, execution)
            if state is None:
                continue
            wait_s = await self._handler.handle(state)
            if wait_s > 0:
                asyncio.get_running_loop().call_later(
                    wait_s, self._queue.put_nowait, (job, execution)
                )

    def _fold_seal(self, recorded: Recorded) -> tuple[Pending, ...]:
        """Raises NewerEvent."""
        # Calls with their tokens need not be decoded.
        try:
            if type_of(recorded.data) != CallsSealed.TYPE:
                return ()
            return self._registry.fold(decode(recorded.data), recorded.sequence)
        except NewerEvent as error:
            raise newer(recorded, error) from error
        except UndecodableEvent as error:
            lost = damaged(recorded, error)
            get_logger().error("event_damaged", error=str(lost))
            job, execution = subjects.owner_of(recorded.subject)
            return () if execution is None else self._registry.lose(job, execution, str(lost))

    def _enqueue(self, states: Iterable[Pending]) -> None:
        for state in states:
            self._queue.put_nowait((state.job, state.execution))
