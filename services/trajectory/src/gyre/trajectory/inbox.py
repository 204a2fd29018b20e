"""The facts and the calls as one queue of typed events, in the order of each stream."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gyre.adapters.eventlog import Stream
from gyre.adapters.journal import Fact, Journal, Told

# Events decoded ahead of the fold. Bounds memory while a slow append holds the fold up.
MOST_WAITING = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """One event and the stream it came from."""

    stream: Stream
    fact: Fact


class Inbox:
    """`pump` fills it, one task a stream; the fold takes from it. lost: told of calls' events whose
    bodies are lost."""

    def __init__(self, journal: Journal, lost: Told) -> None:
        self._journal = journal
        self._lost = lost
        self._queue: asyncio.Queue[Incoming] = asyncio.Queue(maxsize=MOST_WAITING)

    async def pump(self, stream: Stream, after: int) -> None:
        """Follows one stream for ever. Raises EventLogError when the log stays unreachable, or when
        a fact is lost: nothing is decided without it."""
        lost = self._lost if stream is Stream.CALLS else None
        async for fact in self._journal.follow(stream, after=after, lost=lost):
            await self._queue.put(Incoming(stream=stream, fact=fact))

    async def next(self) -> Incoming:
        """The next event; waits for it."""
        return await self._queue.get()

    def here(self) -> Incoming | None:
        """The next event if one is here already."""
        return None if self._queue.empty() else self._queue.get_nowait()
