"""An event log with the delays of a network: appends take time both ways, readers lag behind.

Each reader has its own lag, so services decide on different pasts; a task that is cancelled inside
`append` leaves its event appended or not, as a process killed at that moment would. Who is cut
off hears nothing until it is connected again, and its appends wait as the real client's do.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence

from gyre.adapters.eventlog.base import EventLog, EventLogError, Recorded, Stream
from gyre.adapters.eventlog.jetstream import APPEND_DEADLINE_S


class LaggingLog:
    """Implements EventLog over `inner`. lag_s: the most that one way takes. connected: cleared
    while its owner is cut off."""

    def __init__(
        self,
        inner: EventLog,
        source: random.Random,
        lag_s: float,
        connected: asyncio.Event | None = None,
    ) -> None:
        self._inner = inner
        self._source = source
        self._lag_s = lag_s
        self._connected = connected

    async def append(
        self, subject: str, data: bytes, *, event_id: str, expected: int | None
    ) -> int:
        await self._reach()
        await self._delay()
        sequence = await self._inner.append(subject, data, event_id=event_id, expected=expected)
        await self._delay()
        await self._reach()
        return sequence

    async def last_sequence(self, subject: str) -> int:
        await self._reach()
        return await self._inner.last_sequence(subject)

    async def head(self, stream: Stream) -> int:
        return await self._inner.head(stream)

    def read(
        self,
        stream: Stream,
        *,
        subjects: Sequence[str] = (),
        after: int = 0,
        until: int | None = None,
    ) -> AsyncGenerator[Recorded, None]:
        return self._inner.read(stream, subjects=subjects, after=after, until=until)

    async def follow(
        self, stream: Stream, *, subjects: Sequence[str] = (), after: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        head = await self._inner.head(stream)
        async for recorded in self._inner.follow(stream, subjects=subjects, after=after):
            if recorded.sequence > head:
                await self._delay()
            if self._connected is not None:
                await self._connected.wait()
            yield recorded

    async def close(self) -> None:
        return None

    async def _reach(self) -> None:
        """Raises EventLogError, as the real client does, when it is cut off for too long."""
        if self._connected is None:
            return
        try:
            async with asyncio.timeout(APPEND_DEADLINE_S):
                await self._connected.wait()
        except TimeoutError:
            raise EventLogError(f"given up after {APPEND_DEADLINE_S:g} s") from None

    async def _delay(self) -> None:
        """Mostly short; sometimes the whole lag, and sometimes none."""
        share = self._source.random() ** 3
        if share > 0.001:
            await asyncio.sleep(self._lag_s * share)
