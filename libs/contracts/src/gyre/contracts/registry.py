"""Event types by name. Importing the `events` package fills it."""

from __future__ import annotations

from typing import TypeVar

from gyre.contracts.envelope import Body

BodyType = TypeVar("BodyType", bound=type[Body])

EVENT_TYPES: dict[str, type[Body]] = {}


def event(cls: BodyType) -> BodyType:
    """Class decorator: make `cls` known under its TYPE. Two classes of one name are an error."""
    if cls.TYPE in EVENT_TYPES:
        raise TypeError(f"event type {cls.TYPE!r} is declared twice")
    EVENT_TYPES[cls.TYPE] = cls
    return cls
