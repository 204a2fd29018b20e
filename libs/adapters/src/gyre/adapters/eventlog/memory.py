"""The event log in one process's memory, for tests and simulation. Nothing is durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from gyre.adapters.clock import Clock, SystemClock
from gyre.adapters.eventlog.base import (
    EventLogError,
    GapDetected,
    Recorded,
    SequenceConflict,
    Stream,
    check_event,
    matches,
    stream_of,
)


@dataclass(slots=True)
class _Tape:
    """One stream: events by sequence - 1, and the two indexes an append asks."""

    events: list[Recorded] = field(default_factory=list)
    last_by_subject: dict[str, int] = field(default_factory=dict)
    sequence_by_id: dict[str, int] = field(default_factory=dict)


class MemoryEventLog:
    """Implements EventLog. Safe between the tasks of one event loop."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._tapes = {stream: _Tape() for stream in Stream}
        self._grown = asyncio.Condition()

    async def append(
        self, subject: str, data: bytes, *, event_id: str, expected: int | None
    ) -> int:
        tape = self._tapes[check_event(subject, data, event_id)]
        async with self._grown:
            first = tape.sequence_by_id.get(event_id)
            if first is not None:
                return first
            actual = tape.last_by_subject.get(subject, 0)
            if expected is not None and expected != actual:
                raise SequenceConflict(subject=subject, expected=expected, actual=actual)
            sequence = len(tape.events) + 1
            tape.events.append(
                Recorded(
                    sequence=sequence,
                    subject=subject,
                    event_id=event_id,
                    data=bytes(data),
                    time=self._clock.now(),
                )
            )
            tape.last_by_subject[subject] = sequence
            tape.sequence_by_id[event_id] = sequence
            self._grown.notify_all()
            return sequence

    async def last_sequence(self, subject: str) -> int:
        return self._tapes[stream_of(subject)].last_by_subject.get(subject, 0)

    async def head(self, stream: Stream) -> int:
        return len(self._tapes[stream].events)

    async def read(
        self,
        stream: Stream,
        *,
        subjects: Sequence[str] = (),
        after: int = 0,
        until: int | None = None,
    ) -> AsyncGenerator[Recorded, None]:
        tape = self._readable(stream)
        head = len(tape.events)
        for event in tape.events[after : head if until is None else min(until, head)]:
            if _wanted(event.subject, subjects):
                yield event

    async def follow(
        self, stream: Stream, *, subjects: Sequence[str] = (), after: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        tape = self._readable(stream)
        if after > len(tape.events):
            raise GapDetected(f"{stream.value} ends at {len(tape.events)}, asked for after {after}")
        position = after
        while True:
            async with self._grown:
                while len(tape.events) <= position:
                    await self._grown.wait()
            while position < len(tape.events):
                event = tape.events[position]
                position += 1
                if _wanted(event.subject, subjects):
                    yield event

    async def close(self) -> None:
        return None

    def _readable(self, stream: Stream) -> _Tape:
        if stream is Stream.WORK:
            raise EventLogError("GYRE_WORK is a queue: take from it, it cannot be replayed")
        return self._tapes[stream]


def _wanted(subject: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(matches(pattern, subject) for pattern in patterns)
