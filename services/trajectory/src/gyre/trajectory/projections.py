"""Projections into Postgres: rows that people and tools query, made from the log, remade at will.

Each follows one stream by itself and commits rows and checkpoint in one transaction, so a kill
between two commits repeats nothing. A database that is slow, gone or not yet migrated holds up its
projection alone: it is tried again, the groups go on. A projection whose checkpoint is gone empties
its tables with its first commit and makes every row anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from gyre.adapters.eventlog import Stream
from gyre.adapters.journal import EventLost, Fact, Journal
from gyre.adapters.logging import get_logger
from gyre.adapters.postgres import DatabaseError, Projector

# Events in one commit: a commit costs more than a hundred rows.
MOST_IN_ONE_COMMIT = 256
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 10.0


class Writer(Protocol):
    """What one projection makes of its events. It may keep state beside its rows, as of the last
    commit: who calls `write` and could not commit calls `forget` before the next one."""

    async def clear(self, connection: AsyncConnection) -> None:
        """Removes all rows."""
        ...

    async def write(
        self, connection: AsyncConnection, facts: Sequence[Fact], lost: Sequence[EventLost]
    ) -> None:
        """Adds to the rows what `facts`, the next in the log, say; lost: what was among them."""
        ...

    def forget(self) -> None:
        """Drops what is kept beside the rows: they may be others by now."""
        ...


class Projection:
    """One stream into one set of rows, for ever."""

    def __init__(
        self,
        name: str,
        stream: Stream,
        subjects: Sequence[str],
        writer: Writer,
        *,
        journal: Journal,
        projector: Projector,
    ) -> None:
        self._name = name
        self._stream = stream
        self._subjects = subjects
        self._writer = writer
        self._journal = journal
        self._projector = projector
        self._pause_s = FIRST_PAUSE_S

    async def run(self) -> None:
        """Projects until it is cancelled; after a database error from its checkpoint, later."""
        while True:
            try:
                await self._follow(await self._projector.checkpoint(self._name))
            except (SQLAlchemyError, DatabaseError) as error:
                reason = str(error).splitlines()[0]
                get_logger().warning("projection_paused", projection=self._name, error=reason)
                await asyncio.sleep(self._pause_s)
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    async def _follow(self, after: int) -> None:
        """Raises what reading or the database raised; then the writer's state is void."""
        self._writer.forget()
        queue: asyncio.Queue[Fact] = asyncio.Queue(maxsize=MOST_IN_ONE_COMMIT)
        async with _Reader(self._journal, self._stream, self._subjects, after, queue) as reader:
            while True:
                facts = [await reader.next()]
                while len(facts) < MOST_IN_ONE_COMMIT and not queue.empty():
                    facts.append(queue.get_nowait())
                await self._commit(facts, reader.take_lost(), after)
                after = facts[-1].sequence

    async def _commit(self, facts: Sequence[Fact], lost: Sequence[EventLost], after: int) -> None:
        sequence = facts[-1].sequence
        async with self._projector.transaction(self._name, sequence, after=after) as connection:
            if after == 0:
                await self._writer.clear(connection)
            await self._writer.write(connection, facts, lost)
        self._pause_s = FIRST_PAUSE_S


class _Reader:
    """A task that fills a queue with a stream's events while the last ones are committed.

    An event whose body is lost is not in the queue. It is told of with the first events that are
    taken after it was met, so never later than those behind it; the checkpoint passes it then.
    """

    def __init__(
        self,
        journal: Journal,
        stream: Stream,
        subjects: Sequence[str],
        after: int,
        queue: asyncio.Queue[Fact],
    ) -> None:
        self._queue = queue
        self._lost: list[EventLost] = []
        self._reading = asyncio.create_task(self._read(journal, stream, subjects, after))

    async def next(self) -> Fact:
        """The next event. Raises what reading raised."""
        waiting = asyncio.ensure_future(self._queue.get())
        try:
            await asyncio.wait({waiting, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                self._reading.result()
        finally:
            if not waiting.done():
                waiting.cancel()
        return await waiting

    def take_lost(self) -> list[EventLost]:
        """What was lost since the last time."""
        lost, self._lost = self._lost, []
        return lost

    async def __aenter__(self) -> _Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})

    async def _read(
        self, journal: Journal, stream: Stream, subjects: Sequence[str], after: int
    ) -> None:
        events = journal.follow(stream, subjects, after, lost=self._lose)
        async with aclosing(events) as facts:  # type: ignore[type-var]
            async for fact in facts:
                await self._queue.put(fact)

    def _lose(self, error: EventLost) -> None:
        self._lost.append(error)
