"""Typed facts over an event log: the one way services append and read events.

A service's loop is: follow the facts, fold each into its state, do what the state asks for, append
what came of it. Ids derive from the cause, so doing it twice appends it once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from gyre.adapters.clock import Clock
from gyre.adapters.eventlog.base import EventLog, Recorded, Stream
from gyre.contracts.codec import decode, encode, make_envelope
from gyre.contracts.envelope import Body, Envelope, event_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """An event and its place in the stream. sequence: the stream's, rising, not contiguous."""

    sequence: int
    envelope: Envelope

    @property
    def body(self) -> Body:
        return self.envelope.body

    @property
    def job(self) -> str:
        return self.envelope.job


class Journal:
    """Events in, events out. Mutates nothing but the log."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock

    async def append(
        self,
        subject: str,
        body: Body,
        *,
        job: str,
        cause: tuple[str | int, ...],
        expected: int | None,
        causation: str = "",
    ) -> int:
        """Append `body` and return its stream sequence; once for each (cause, type).

        expected: stream sequence of the subject's last event, 0 for none, None to append unguarded.
        Raises SequenceConflict when somebody else appended to the subject meanwhile.
        """
        envelope = make_envelope(
            body,
            identity=event_id(*cause, body.TYPE),
            job=job,
            aggregate=subject,
            time=self._clock.now(),
            causation=causation,
        )
        return await self._log.append(
            subject, encode(envelope), event_id=envelope.id, expected=expected
        )

    async def last_sequence(self, subject: str) -> int:
        """Stream sequence of the subject's last event, 0 if it has none."""
        return await self._log.last_sequence(subject)

    async def head(self, stream: Stream) -> int:
        """The stream's last sequence, 0 when it is empty."""
        return await self._log.head(stream)

    async def read(
        self,
        stream: Stream,
        subjects: Sequence[str] = (),
        after: int = 0,
        until: int | None = None,
    ) -> AsyncIterator[Fact]:
        """What lies in the log now, in order."""
        async for recorded in self._log.read(stream, subjects=subjects, after=after, until=until):
            yield _fact(recorded)

    async def follow(
        self, stream: Stream, subjects: Sequence[str] = (), after: int = 0
    ) -> AsyncIterator[Fact]:
        """What lies in the log, then what is appended, for ever."""
        async for recorded in self._log.follow(stream, subjects=subjects, after=after):
            yield _fact(recorded)


def _fact(recorded: Recorded) -> Fact:
    return Fact(sequence=recorded.sequence, envelope=decode(recorded.data))
