"""Envelopes to bytes and back. What this release wrote is read, validated, in one pass (`readers`);
of all else `decode` validates everything, `decode_trusted` takes the head on trust."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json, to_json

import gyre.contracts.events  # noqa: F401  registers every event type
from gyre.contracts.bodies import BodyReference, head_of, with_body
from gyre.contracts.envelope import Body, Envelope
from gyre.contracts.readers import read_whole
from gyre.contracts.registry import EVENT_TYPES
from gyre.contracts.upcasters import upcast


class UndecodableEvent(ValueError):
    """Bytes in the log that are no event this release knows."""


class NewerEvent(UndecodableEvent):
    """An event of a later release: its type or its schema version is not known to this one."""


class BodyElsewhere(UndecodableEvent):
    """An event without its body, which lies where `reference` says: see `decode_with_body`."""

    def __init__(self, head: dict[str, Any], reference: BodyReference) -> None:
        super().__init__(
            f"{head.get('type')} {head.get('id')}: its body of {reference.size} bytes is not in "
            f"the log but in blob {reference.digest}"
        )
        self.reference = reference


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

    Raises UndecodableEvent for broken JSON or a body that does not fit, NewerEvent for a type or a
    schema version that this release does not know, BodyElsewhere for an event that came without
    its body.
    """
    envelope = read_whole(data)
    if envelope is not None:
        return envelope
    try:
        raw = _parsed(data)
        _Head.model_validate(raw)
        return _envelope(raw)
    except (BodyElsewhere, NewerEvent):
        raise
    except (ValueError, TypeError) as error:
        raise UndecodableEvent(f"event cannot be read: {error}") from error


def decode_trusted(data: bytes) -> Envelope:
    """As `decode`, for a log of ours: what is not read in one pass keeps its head as it is.

    A body that does not fit raises pydantic's ValidationError, an unknown type UndecodableEvent, an
    event without its body BodyElsewhere.
    """
    return read_whole(data) or _envelope(_parsed(data))


def decode_with_body(data: bytes, reference: BodyReference, body: bytes) -> Envelope:
    """The event that `data` is without its body, and `body`, which lay elsewhere.

    Raises UndecodableEvent, as `decode`.
    """
    try:
        whole = with_body(data, reference, body)
    except ValueError as error:
        raise UndecodableEvent(f"event cannot be read: {error}") from error
    return decode(whole)


def type_of(data: bytes) -> str:
    """The type of an encoded event, known to this release or not; its body is not looked at.

    Raises UndecodableEvent.
    """
    try:
        return str(from_json(head_of(data))["type"])
    except (ValueError, KeyError, TypeError) as error:
        raise UndecodableEvent(f"event cannot be read: {error}") from error


def _parsed(data: bytes) -> dict[str, Any]:
    raw: dict[str, Any] = from_json(data)
    if "blob" in raw and "body" not in raw:
        raise BodyElsewhere(raw, BodyReference.model_validate(raw["blob"]))
    return raw


def _envelope(raw: dict[str, Any]) -> Envelope:
    body_type = _type_of(raw)
    if raw["version"] != body_type.VERSION:
        _bring_up_to_date(raw, body_type)
    raw["body"] = body_type.__pydantic_validator__.validate_python(raw["body"])
    return Envelope(**raw)


def _type_of(raw: dict[str, Any]) -> type[Body]:
    body_type = EVENT_TYPES.get(raw["type"])
    if body_type is None:
        raise NewerEvent(f"event type {raw['type']!r} is not known to this release")
    return body_type


def _bring_up_to_date(raw: dict[str, Any], body_type: type[Body]) -> None:
    """Change a raw envelope of an earlier schema version into one of the present. Mutates `raw`."""
    version, current = raw["version"], body_type.VERSION
    if not isinstance(version, int) or not 1 <= version <= current:
        newer = isinstance(version, int) and version > current
        raise (NewerEvent if newer else UndecodableEvent)(
            f"event type {raw['type']!r} has schema version {version}, "
            f"this release reads up to {current}"
        )
    try:
        raw["body"] = upcast(raw["type"], version, current, raw["body"])
    except (LookupError, TypeError) as error:
        raise UndecodableEvent(f"event type {raw['type']!r}: {error}") from error
    raw["version"] = current
