"""Typed facts over an event log: the one way services append and read events.

A service's loop is: follow the facts, fold each into its state, do what the state asks for, append
what came of it. Ids derive from the cause, so doing it twice appends it once.

A body that is too large for one event lies in the blob store, which all that write or read one log
share. It is stored and synced before the event that refers to it is appended, so an event's body is
there for whoever sees the event; a writer that dies in between leaves a blob that nothing names.

A fact that is lost is never passed over: in its place every reader is given a `FactLost`, made of
nothing but the event's place in the log, so that all of them fold the same, live and restarted. A
call that is lost is raised, or told of, by whoever reads it: the calls of others stay readable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from gyre.adapters.blobs import BlobError, BlobStore
from gyre.adapters.clock import Clock
from gyre.adapters.eventlog.base import (
    MAX_EVENT_BYTES,
    EventLog,
    EventLogError,
    EventTooLarge,
    Recorded,
    Stream,
    stream_of,
)
from gyre.adapters.failpoints import failpoint
from gyre.adapters.logging import get_logger
from gyre.contracts import subjects
from gyre.contracts.bodies import BodyReference, body_of, without_body
from gyre.contracts.codec import (
    BodyElsewhere,
    NewerEvent,
    UndecodableEvent,
    decode,
    decode_with_body,
    encode,
    make_envelope,
    type_of,
)
from gyre.contracts.envelope import Body, Envelope, event_id
from gyre.contracts.events.lost import FactLost

# A call of a million new tokens and 128 k sampled ones has 11 MB. Whoever reads an event holds it
# whole, several times over.
MAX_BODY_BYTES = 64 * 1024 * 1024
# Of what is wrong with an event, as much is told: who quarantines for it says it in an event.
MAX_REASON_CHARS = 400


class BodyUnstored(EventLogError):
    """A large body could not be written into the blob store; nothing was appended."""


class EventLost(EventLogError):
    """An event lies in the log and does not come back. subject: the event's."""

    def __init__(self, message: str, *, subject: str) -> None:
        super().__init__(message)
        self.subject = subject


class BodyLost(EventLost):
    """Its body lies not, or not whole, in the blob store. digest: names the body."""

    def __init__(self, message: str, *, subject: str, digest: str) -> None:
        super().__init__(message, subject=subject)
        self.digest = digest


class EventDamaged(EventLost):
    """Its bytes in the log are no event, or one of another subject; one of a later release is not
    meant (NewerEvent)."""


class BodyUnread(EventLogError):
    """The blob store failed to give an event's body; it may succeed another time."""


Told = Callable[[EventLost], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What is known of an event without its body. type: "" where its bytes are no event."""

    sequence: int
    subject: str
    type: str


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
    """Events in, events out. Mutates nothing but the log and the blob store; remembers which lost
    facts it has logged.

    blobs: where bodies lie that one event does not hold; without it such an append is refused and
    such an event cannot be read.
    """

    def __init__(self, log: EventLog, clock: Clock, blobs: BlobStore | None = None) -> None:
        self._log = log
        self._clock = clock
        self._blobs = blobs
        self._logged: set[int] = set()

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
        Raises SequenceConflict when somebody else appended to the subject meanwhile, EventTooLarge
        above MAX_BODY_BYTES (without a blob store above MAX_EVENT_BYTES), BodyUnstored.
        """
        envelope = make_envelope(
            body,
            identity=event_id(*cause, body.TYPE),
            job=job,
            aggregate=subject,
            time=self._clock.now(),
            causation=causation,
        )
        data = encode(envelope)
        if len(data) > MAX_EVENT_BYTES and self._blobs is not None:
            data = await _set_aside(self._blobs, subject, data)
        return await self._log.append(subject, data, event_id=envelope.id, expected=expected)

    async def last_sequence(self, subject: str) -> int:
        """Stream sequence of the subject's last event, 0 if it has none."""
        return await self._log.last_sequence(subject)

    async def head(self, stream: Stream) -> int:
        """The stream's last sequence, 0 when it is empty."""
        return await self._log.head(stream)

    def read(
        self,
        stream: Stream,
        subjects: Sequence[str] = (),
        after: int = 0,
        until: int | None = None,
        *,
        lost: Told | None = None,
    ) -> AsyncIterator[Fact]:
        """What lies in the log now, in order. A lost fact is given as `FactLost`. lost: told of
        each call that is lost, and none of these is given; without it EventLost is raised. Raises
        BodyUnread, NewerEvent."""
        events = self._log.read(stream, subjects=subjects, after=after, until=until)
        return self._facts(events, lost)

    async def outlines(
        self, stream: Stream, subjects: Sequence[str] = ()
    ) -> AsyncIterator[Outline]:
        """Each event in the log now, in order, without its body: none is fetched."""
        async with aclosing(self._log.read(stream, subjects=subjects)) as events:
            async for recorded in events:
                yield Outline(
                    sequence=recorded.sequence,
                    subject=recorded.subject,
                    type=_type_of(recorded.data),
                )

    def follow(
        self,
        stream: Stream,
        subjects: Sequence[str] = (),
        after: int = 0,
        *,
        lost: Told | None = None,
    ) -> AsyncIterator[Fact]:
        """What lies in the log, then what is appended, for ever. lost, and what is raised: as of
        `read`."""
        return self._facts(self._log.follow(stream, subjects=subjects, after=after), lost)

    async def _facts(
        self, events: AsyncGenerator[Recorded, None], lost: Told | None
    ) -> AsyncIterator[Fact]:
        async with aclosing(events):
            async for recorded in events:
                try:
                    envelope = await self._envelope(recorded)
                except EventLost as error:
                    if stream_of(recorded.subject) is Stream.FACTS:
                        envelope = self._in_its_place(recorded, error)
                    elif lost is not None:
                        lost(error)
                        continue
                    else:
                        raise
                yield Fact(sequence=recorded.sequence, envelope=envelope)

    def _in_its_place(self, recorded: Recorded, error: EventLost) -> Envelope:
        """Its id and its time are those that the log has of the event itself."""
        if isinstance(error, BodyLost) and self._blobs is None:
            raise error  # another reader has it
        job, execution = subjects.owner_of(recorded.subject)
        if recorded.sequence not in self._logged:
            self._logged.add(recorded.sequence)
            get_logger().error("fact_lost", job=job, execution=execution, error=str(error))
        body = FactLost(execution=execution, error=str(error))
        return make_envelope(
            body,
            identity=recorded.event_id,
            job=job,
            aggregate=recorded.subject,
            time=recorded.time,
            causation="",
        )

    async def _envelope(self, recorded: Recorded) -> Envelope:
        try:
            envelope = await self._decoded(recorded)
        except NewerEvent as error:
            raise newer(recorded, error) from error
        except UndecodableEvent as error:
            raise damaged(recorded, error) from error
        if envelope.aggregate != recorded.subject:
            why = f"{_place(recorded)}: it is an event of {envelope.aggregate}"
            raise EventDamaged(why, subject=recorded.subject)
        return envelope

    async def _decoded(self, recorded: Recorded) -> Envelope:
        try:
            return decode(recorded.data)
        except BodyElsewhere as elsewhere:
            body = await self._fetch(recorded, elsewhere)
            return decode_with_body(recorded.data, elsewhere.reference, body)

    async def _fetch(self, recorded: Recorded, elsewhere: BodyElsewhere) -> bytes:
        place = f"{_place(recorded)}, {elsewhere}"
        digest = elsewhere.reference.digest
        if self._blobs is None:
            why = f"{place}: this process reads without a blob store"
            raise BodyLost(why, subject=recorded.subject, digest=digest)
        try:
            return await asyncio.to_thread(self._blobs.get, digest)
        except BlobError as error:
            why = f"{place}: {error}"
            raise BodyLost(why, subject=recorded.subject, digest=digest) from error
        except OSError as error:
            raise BodyUnread(f"{place}: {error}") from error


def damaged(recorded: Recorded, error: UndecodableEvent) -> EventDamaged:
    """What is said of an event that `error` was met in."""
    return EventDamaged(f"{_place(recorded)}: {_in_a_line(error)}", subject=recorded.subject)


def newer(recorded: Recorded, error: NewerEvent) -> NewerEvent:
    """The same, with the event's place."""
    return NewerEvent(f"{_place(recorded)}: {error}")


def _place(recorded: Recorded) -> str:
    stream = stream_of(recorded.subject)
    return f"{stream.value} event {recorded.sequence} on {recorded.subject}"


def _type_of(data: bytes) -> str:
    try:
        return type_of(data)
    except UndecodableEvent:
        return ""


def _in_a_line(error: Exception) -> str:
    """A validator's message has many, with the values that it met."""
    return " ".join(str(error).split())[:MAX_REASON_CHARS]


async def _set_aside(blobs: BlobStore, subject: str, data: bytes) -> bytes:
    """Store the body of an encoded event durably; the event that refers to it."""
    body = body_of(data)
    if len(body) > MAX_BODY_BYTES:
        raise EventTooLarge(f"{subject}: a body of {len(body)} bytes, at most {MAX_BODY_BYTES}")
    try:
        # Synced to disk: milliseconds that others need not wait.
        digest = await asyncio.to_thread(blobs.put, body)
    except OSError as error:
        raise BodyUnstored(f"{subject}: a body of {len(body)} bytes: {error}") from error
    failpoint("journal.body_stored")
    return without_body(data, BodyReference(digest=digest, size=len(body)))
