"""Projections into Postgres: rows that people and tools query, made from the log, remade at will.

Each follows one stream by itself and commits rows and checkpoint in one transaction, so a kill
between two commits repeats nothing. A database that is slow, gone or not yet migrated holds up its
projection alone: it is tried again, the groups go on. Rows are upserts: setting a checkpoint back
to 0 builds them anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from gyre.adapters.eventlog import Stream
from gyre.adapters.journal import BodyLost, Fact, Journal
from gyre.adapters.logging import get_logger
from gyre.adapters.postgres import DatabaseError, Projector

# Events in one commit: a commit costs more than a hundred rows.
MOST_IN_ONE_COMMIT = 256
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0


class Writer(Protocol):
    """What one projection makes of its events."""

    async def write(self, connection: AsyncConnection, facts: Sequence[Fact]) -> None:
        """Upserts the rows of `facts`; may be given the same facts again after a failure."""
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

    async def run(self) -> None:
        """Projects until it is cancelled; after a database error from its checkpoint, later."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                after = await self._projector.checkpoint(self._name)
                pause_s = FIRST_PAUSE_S
                await self._follow(after)
            except (SQLAlchemyError, DatabaseError) as error:
                reason = str(error).splitlines()[0]
                get_logger().warning("projection_paused", projection=self._name, error=reason)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _follow(self, after: int) -> None:
        queue: asyncio.Queue[Fact] = asyncio.Queue(maxsize=MOST_IN_ONE_COMMIT)
        async with _Reader(self._journal, self._stream, self._subjects, after, queue) as reader:
            while True:
                facts = [await reader.next()]
                while len(facts) < MOST_IN_ONE_COMMIT and not queue.empty():
                    facts.append(queue.get_nowait())
                sequence = facts[-1].sequence
                async with self._projector.transaction(self._name, sequence) as connection:
                    await self._writer.write(connection, facts)


class _Reader:
    """A task that fills a queue with a stream's events while the last ones are committed."""

    def __init__(
        self,
        journal: Journal,
        stream: Stream,
        subjects: Sequence[str],
        after: int,
        queue: asyncio.Queue[Fact],
    ) -> None:
        self._queue = queue
        self._reading = asyncio.create_task(self._read(journal, stream, subjects, after))

    async def next(self) -> Fact:
        """The next event. Raises what reading raised."""
        waiting = asyncio.ensure_future(self._queue.get())
        await asyncio.wait({waiting, self._reading}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            self._reading.result()
        return await waiting

    async def __aenter__(self) -> _Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})

    async def _read(
        self, journal: Journal, stream: Stream, subjects: Sequence[str], after: int
    ) -> None:
        events = journal.follow(stream, subjects, after, lost=_passed_over)
        async with aclosing(events) as facts:  # type: ignore[type-var]
            async for fact in facts:
                await self._queue.put(fact)


def _passed_over(error: BodyLost) -> None:
    """Rows that hang on the lost event's are not made either, and said to be damaged."""
    get_logger().error("event_lost", error=str(error))
