"""The facts and the calls as one queue of typed events, in the order of each stream; a call's event
that is lost has its place among them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gyre.adapters.eventlog import Stream
from gyre.adapters.journal import EventLost, Fact, Journal

# Events decoded ahead of the fold. Bounds memory while a slow append holds the fold up.
MOST_WAITING = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """One event and the stream it came from."""

    stream: Stream
    fact: Fact


class Inbox:
    """`pump` fills it, one task a stream; the fold takes from it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        # Bounded by the room, which a lost event does not take: who tells of one cannot wait.
        self._queue: asyncio.Queue[Incoming | EventLost] = asyncio.Queue()
        self._room = asyncio.Semaphore(MOST_WAITING)

    async def pump(self, stream: Stream, after: int) -> None:
        """Follows one stream for ever. Raises EventLogError when the log stays unreachable."""
        events = self._journal.follow(stream, after=after, lost=self._queue.put_nowait)
        async for fact in events:
            await self._room.acquire()
            self._queue.put_nowait(Incoming(stream=stream, fact=fact))

    async def next(self) -> Incoming | EventLost:
        """The next event; waits for it."""
        return self._taken(await self._queue.get())

    def here(self) -> Incoming | EventLost | None:
        """The next event if one is here already."""
        return None if self._queue.empty() else self._taken(self._queue.get_nowait())

    def _taken(self, news: Incoming | EventLost) -> Incoming | EventLost:
        if isinstance(news, Incoming):
            self._room.release()
        return news
