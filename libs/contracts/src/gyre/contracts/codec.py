"""Envelopes to bytes and back. Two readers: `decode` validates everything, `decode_trusted` takes
the head on trust, for logs that this code wrote."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json

import gyre.contracts.events  # noqa: F401  registers every event type
from gyre.contracts.envelope import Body, Envelope
from gyre.contracts.registry import EVENT_TYPES


class UndecodableEvent(ValueError):
    """Bytes in the log that are no event this release knows."""


def encode(envelope: Envelope) -> bytes:
    """JSON, UTF-8, keys in the order of declaration: equal events are equal bytes."""
    head = envelope.model_dump(mode="json", exclude={"body"})
    head["body"] = envelope.body.model_dump(mode="json")
    return _DUMP.dump_json(head)


_DUMP: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def make_envelope(
    body: Body, *, id: str, job: str, aggregate: str, time: float, causation: str
) -> Envelope:
    return Envelope.model_construct(
        id=id,
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
        body = _type_of(raw).model_validate(raw["body"])
        return Envelope.model_validate({**raw, "body": body})
    except (ValueError, KeyError, TypeError) as error:
        raise UndecodableEvent(f"event cannot be read: {error}") from error


def decode_trusted(data: bytes) -> Envelope:
    """As `decode`, for a log this code wrote: the head is taken as it is, the body is still typed.

    A body that does not fit raises pydantic's ValidationError, an unknown type UndecodableEvent.
    """
    raw = from_json(data)
    body = _type_of(raw).model_validate(raw["body"])
    raw["body"] = body
    return Envelope.model_construct(**raw)


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
