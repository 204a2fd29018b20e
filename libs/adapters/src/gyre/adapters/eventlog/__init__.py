"""The event log: one port (`base`), one file per implementation."""

from __future__ import annotations

from gyre.adapters.eventlog.base import (
    MAX_EVENT_BYTES,
    EventLog,
    EventLogError,
    EventTooLarge,
    GapDetected,
    Recorded,
    SequenceConflict,
    Stream,
    stream_of,
)

__all__ = [
    "MAX_EVENT_BYTES",
    "EventLog",
    "EventLogError",
    "EventTooLarge",
    "GapDetected",
    "Recorded",
    "SequenceConflict",
    "Stream",
    "stream_of",
]
