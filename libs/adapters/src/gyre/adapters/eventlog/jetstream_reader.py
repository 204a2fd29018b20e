"""Reads a stream at the speed of the server: an ordered push consumer over a Wire.

Loop of a reader: open a consumer after the last event handed out; take its events; on a lost
connection, a missing consumer sequence or silence, open again at the same place. The caller
sees each event once, in order.

- Consumer sequences must be contiguous: a hole means that a message got lost on its way to us;
  the reader repairs it by opening again.
- Stream sequences must be contiguous too when nothing is filtered: a hole there means that the
  log itself lost events, and is raised as GapDetected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from gyre.adapters.eventlog.base import EventLogError, Recorded, Stream
from gyre.adapters.eventlog.consumer import Consumer, ConsumerBroken
from gyre.adapters.eventlog.link import FIRST_PAUSE_S, LAST_PAUSE_S, Link
from gyre.adapters.eventlog.wire import Unavailable
from gyre.adapters.logging import get_logger

# How long a reader keeps trying to reach the log before it gives up with an error.
PATIENCE_S = 60.0


@dataclass(slots=True, kw_only=True)
class ReaderStats:
    """What a reader went through. Mutated by the reader only."""

    opened: int = 0
    gaps: int = 0
    interruptions: int = 0

    def count(self, error: Unavailable) -> None:
        """One interruption, which may be a gap."""
        self.interruptions += 1
        self.gaps += isinstance(error, ConsumerBroken) and error.is_gap


class JetStreamReader:
    """`read` and `follow` of the event log's port. Each call has a connection of its own."""

    def __init__(self, url: str, *, name: str, patience_s: float = PATIENCE_S) -> None:
        self._url = url
        self._name = name
        self._patience_s = patience_s
        self.stats = ReaderStats()

    async def read(
        self,
        stream: Stream,
        *,
        subjects: Sequence[str] = (),
        after: int = 0,
        until: int | None = None,
    ) -> AsyncGenerator[Recorded, None]:
        """Finite: to min(until, the head when the reading begins)."""
        async with aclosing(self._batches(stream, subjects, after, until, live=False)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def follow(
        self, stream: Stream, *, subjects: Sequence[str] = (), after: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        """Replay, then live."""
        async with aclosing(self._batches(stream, subjects, after, None, live=True)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def _batches(
        self,
        stream: Stream,
        subjects: Sequence[str],
        after: int,
        until: int | None,
        *,
        live: bool,
    ) -> AsyncGenerator[list[Recorded], None]:
        if stream is Stream.WORK:
            raise EventLogError("GYRE_WORK is a queue: take from it, it cannot be replayed")
        link = Link(self._url, name=self._name)
        log = get_logger()
        loop = asyncio.get_running_loop()
        last, pause = after, FIRST_PAUSE_S
        give_up = loop.time() + self._patience_s
        try:
            while True:
                consumer = None
                try:
                    wire = await link.wire()
                    consumer = await Consumer.open(
                        wire, stream, subjects, after=last, until=until, live=live
                    )
                    self.stats.opened += 1
                    until = consumer.limit
                    async with aclosing(consumer.batches()) as batches:
                        async for batch in batches:
                            last = batch[-1].sequence
                            pause, give_up = FIRST_PAUSE_S, loop.time() + self._patience_s
                            yield batch
                    return
                except Unavailable as error:
                    self.stats.count(error)
                    log.warning(
                        "reader_interrupted", stream=stream.value, after=last, error=str(error)
                    )
                    # Events may be rare: what counts is how long there was no sign of the log.
                    if consumer is not None and consumer.heard + self._patience_s > give_up:
                        pause, give_up = FIRST_PAUSE_S, consumer.heard + self._patience_s
                    if loop.time() > give_up:
                        raise EventLogError(
                            f"{stream.value}: {error}, for {self._patience_s:g} s"
                        ) from None
                link.drop()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE_S)
        finally:
            await link.close()
