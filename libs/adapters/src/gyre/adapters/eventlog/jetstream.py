"""The event log on NATS JetStream.

Appends are pipelined: as many may be under way as there are tasks, on one connection. Each is
sent again, under the same message id, until the server has acknowledged it or its deadline has
passed, so a lost connection or a restarted server neither loses nor doubles an event.
The server knows message ids for the stream's duplicate window (two minutes); after it, the
expected sequence alone guards a repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from gyre.adapters.eventlog.base import (
    EventLogError,
    Recorded,
    SequenceConflict,
    Stream,
    check_event,
    stream_of,
)
from gyre.adapters.eventlog.jetstream_reader import JetStreamReader
from gyre.adapters.eventlog.link import ApiError, Link

APPEND_DEADLINE_S = 30.0
QUERY_DEADLINE_S = 15.0
# More would only queue in the server; each holds its event in memory.
MAX_IN_FLIGHT = 1024
_WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
_NO_MESSAGE = 10037


class JetStreamEventLog:
    """Implements EventLog. The streams must exist (`streams.ensure_streams`)."""

    def __init__(
        self, url: str, *, name: str = "gyre", append_deadline_s: float = APPEND_DEADLINE_S
    ) -> None:
        self._link = Link(url, name=name)
        self._append_deadline_s = append_deadline_s
        self._in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
        self.reader = JetStreamReader(url, name=f"{name}-reader")

    async def append(
        self, subject: str, data: bytes, *, event_id: str, expected: int | None
    ) -> int:
        stream = check_event(subject, data, event_id)
        headers = append_headers(event_id, expected)
        try:
            async with self._in_flight:
                ack = await self._link.api(
                    subject, data, headers=headers, deadline_s=self._append_deadline_s
                )
        except ApiError as error:
            if expected is None or error.err_code not in _WRONG_LAST_SEQUENCE:
                raise
            return await self._after_conflict(stream, subject, event_id, expected)
        if ack.get("stream") != stream.value:
            raise EventLogError(f"{subject} was stored in {ack.get('stream')}, not {stream.value}")
        return int(ack["seq"])

    async def _after_conflict(
        self, stream: Stream, subject: str, event_id: str, expected: int
    ) -> int:
        """A stale `expected` may be our own earlier append: then its sequence is the answer."""
        actual = 0
        async for event in self.read(stream, subjects=(subject,), after=expected):
            if event.event_id == event_id:
                return event.sequence
            actual = event.sequence
        actual = actual or await self.last_sequence(subject)
        raise SequenceConflict(subject=subject, expected=expected, actual=actual)

    async def last_sequence(self, subject: str) -> int:
        try:
            answer = await self._link.api(
                f"$JS.API.STREAM.MSG.GET.{stream_of(subject).value}",
                {"last_by_subj": subject},
                deadline_s=QUERY_DEADLINE_S,
            )
        except ApiError as error:
            if error.err_code == _NO_MESSAGE:
                return 0
            raise
        return int(answer["message"]["seq"])

    async def head(self, stream: Stream) -> int:
        answer = await self._link.api(
            f"$JS.API.STREAM.INFO.{stream.value}", deadline_s=QUERY_DEADLINE_S
        )
        return int(answer["state"]["last_seq"])

    def read(
        self,
        stream: Stream,
        *,
        subjects: Sequence[str] = (),
        after: int = 0,
        until: int | None = None,
    ) -> AsyncGenerator[Recorded, None]:
        return self.reader.read(stream, subjects=subjects, after=after, until=until)

    def follow(
        self, stream: Stream, *, subjects: Sequence[str] = (), after: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        return self.reader.follow(stream, subjects=subjects, after=after)

    async def close(self) -> None:
        await self._link.close()


def append_headers(event_id: str, expected: int | None) -> bytes:
    """The header block of an append."""
    guard = "" if expected is None else f"Nats-Expected-Last-Subject-Sequence: {expected}\r\n"
    return f"NATS/1.0\r\nNats-Msg-Id: {event_id}\r\n{guard}\r\n".encode()
