"""The event log's port. It moves bytes: it knows streams and subjects, not event types.

Invariants (each is a test of the contract suite):
- one stream has one total order; its sequences start at 1 and have no holes;
- an acknowledged append is never lost and never stored twice;
- `expected` compares with the last *stream* sequence on the subject, not with a version count;
- a reader sees every event once, in order, or an error: never a silent gap.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Protocol

# Larger bodies go to the blob store before the event that names them.
MAX_EVENT_BYTES = 256 * 1024


class Stream(Enum):
    """The three streams; the value is the JetStream name."""

    FACTS = "GYRE_FACTS"
    CALLS = "GYRE_CALLS"
    WORK = "GYRE_WORK"

    @property
    def prefix(self) -> str:
        """First part of every subject in this stream, with its dot."""
        return self.value.removeprefix("GYRE_").lower() + "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One stored event. `sequence` is the stream sequence, `time` the log's unix seconds."""

    sequence: int
    subject: str
    event_id: str
    data: bytes
    time: float


class EventLogError(Exception):
    """The event log could not do what it was asked."""


class EventTooLarge(EventLogError):
    """An event's body is over MAX_EVENT_BYTES: put it into the blob store and name its digest."""


class GapDetected(EventLogError):
    """Events that the reader must see are no longer (or not yet) in the log."""


class SequenceConflict(EventLogError):
    """Somebody else appended to the subject first. `expected` and `actual` are stream sequences."""

    def __init__(self, *, subject: str, expected: int, actual: int) -> None:
        super().__init__(f"{subject}: expected last sequence {expected}, found {actual}")
        self.subject = subject
        self.expected = expected
        self.actual = actual


class EventLog(Protocol):
    """Append-only streams with optimistic concurrency per subject."""

    async def append(
        self, subject: str, data: bytes, *, event_id: str, expected: int | None
    ) -> int:
        """Stores one event durably and returns its stream sequence.

        `expected`: last stream sequence on `subject` (0 = none yet), None = unguarded. A repeat
        of `event_id` returns the first sequence, also when `expected` is stale by then.
        Raises SequenceConflict, EventTooLarge, EventLogError.
        """
        ...

    async def last_sequence(self, subject: str) -> int:
        """Stream sequence of the newest event on `subject`, 0 if it has none."""
        ...

    def read(
        self,
        stream: Stream,
        *,
        subjects: Sequence[str] = (),
        after: int = 0,
        until: int | None = None,
    ) -> AsyncGenerator[Recorded, None]:
        """Events with sequence in (after, until], oldest first, up to the head at call time.

        `subjects` are filters with NATS wildcards (`*` one part, `>` the rest); none = all.
        """
        ...

    def follow(
        self, stream: Stream, *, subjects: Sequence[str] = (), after: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        """Events with sequence > after, then every new one as it comes. Does not end by itself.

        Outlives a server's restart. Raises GapDetected when `after` is past the log's head or
        events after it are gone, EventLogError when the log stays unreachable.
        """
        ...

    async def head(self, stream: Stream) -> int:
        """The stream's last sequence, 0 if it is empty."""
        ...

    async def close(self) -> None:
        """Releases connections. Afterwards nothing else may be called."""
        ...


def stream_of(subject: str) -> Stream:
    """The stream that stores `subject`. Raises EventLogError for a subject of no stream."""
    for stream in Stream:
        if subject.startswith(stream.prefix) and len(subject) > len(stream.prefix):
            return stream
    raise EventLogError(f"{subject!r} begins with none of facts., calls., work.")


def check_event(subject: str, data: bytes, event_id: str) -> Stream:
    """Refuses what no implementation may store; returns the subject's stream."""
    stream = _appendable(subject)
    if not event_id or not event_id.isprintable():
        raise EventLogError(f"{subject}: event id {event_id!r} is empty or not printable")
    if len(data) > MAX_EVENT_BYTES:
        raise EventTooLarge(
            f"{subject}: {len(data)} bytes, at most {MAX_EVENT_BYTES}; use the blob store"
        )
    return stream


@lru_cache(maxsize=4096)
def _appendable(subject: str) -> Stream:
    """The stream of a subject that names one place."""
    stream = stream_of(subject)
    if any(part in ("", "*", ">") for part in subject.split(".")) or not subject.isprintable():
        raise EventLogError(f"{subject!r} is not a subject one can append to")
    if " " in subject:
        raise EventLogError(f"{subject!r} holds a space")
    return stream


def matches(pattern: str, subject: str) -> bool:
    """NATS wildcard match: `*` is one part, a final `>` one part or more."""
    wanted, parts = pattern.split("."), subject.split(".")
    for position, part in enumerate(wanted):
        if part == ">":
            return len(parts) > position
        if position >= len(parts) or part not in ("*", parts[position]):
            return False
    return len(wanted) == len(parts)
