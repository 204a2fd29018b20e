"""Envelopes to bytes and back. Two readers: `decode` validates everything, `decode_trusted` takes
the head on trust, for logs that this code wrote."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json, to_json

import gyre.contracts.events  # noqa: F401  registers every event type
from gyre.contracts.envelope import Body, Envelope
from gyre.contracts.registry import EVENT_TYPES


class UndecodableEvent(ValueError):
    """Bytes in the log that are no event this release knows."""


class _Head(BaseModel):
    """The envelope without a typed body, for validation only."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str
    type: str
    version: int
    job: str
    aggregate: str
    time: float
    causation: str
    body: dict[str, Any]


def encode(envelope: Envelope) -> bytes:
    """JSON, UTF-8, keys in the order of declaration: equal events are equal bytes."""
    return to_json(
        {
            "id": envelope.id,
            "type": envelope.type,
            "version": envelope.version,
            "job": envelope.job,
            "aggregate": envelope.aggregate,
            "time": envelope.time,
            "causation": envelope.causation,
            "body": envelope.body,
        }
    )


def make_envelope(
    body: Body, *, identity: str, job: str, aggregate: str, time: float, causation: str
) -> Envelope:
    """`body` in its envelope: type and schema version are the body's own."""
    return Envelope(
        id=identity,
        type=body.TYPE,
        version=body.VERSION,
        job=job,
        aggregate=aggregate,
        time=time,
        causation=causation,
        body=body,
    )


def decode(data: bytes) -> Envelope:
    """Parse and validate one event.

    Raises UndecodableEvent for broken JSON, an unknown type or a body that does not fit.
    """
    try:
        raw = from_json(data)
        _Head.model_validate(raw)
        return _envelope(raw)
    except (ValueError, TypeError) as error:
        raise UndecodableEvent(f"event cannot be read: {error}") from error


def decode_trusted(data: bytes) -> Envelope:
    """As `decode`, for a log this code wrote: the head is taken as it is, the body is still typed.

    A body that does not fit raises pydantic's ValidationError, an unknown type UndecodableEvent.
    """
    return _envelope(from_json(data))


def _envelope(raw: dict[str, Any]) -> Envelope:
    raw["body"] = _type_of(raw).__pydantic_validator__.validate_python(raw["body"])
    return Envelope(**raw)


def _type_of(raw: dict[str, Any]) -> type[Body]:
    body_type = EVENT_TYPES.get(raw["type"])
    if body_type is None:
        raise UndecodableEvent(f"event type {raw['type']!r} is not known to this release")
    if raw["version"] != body_type.VERSION:
        raise UndecodableEvent(
            f"event type {raw['type']!r} has schema version {raw['version']}, "
            f"this release reads {body_type.VERSION}"
        )
    return body_type
