"""Events whose body lies elsewhere, because the log would not take it: their form on the wire.

    {"id":...,"type":...,...,"causation":...,"blob":{"digest":"<64 hex digits>","size":<bytes>}}

`blob` stands where `body` stood and names the body's JSON by its SHA-256. The head is as it was, so
who looks at the head alone needs no body, and head and body together are the very bytes that
`codec.encode` made.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gyre.contracts.envelope import Part

_BODY, _BLOB = b',"body":', b',"blob":'


class BodyReference(Part):
    """What a body is known by. digest: lower-case hex SHA-256; size: bytes."""

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0)]


def body_of(data: bytes) -> bytes:
    """The body's JSON out of an encoded event."""
    # A quote inside a text is escaped, so the first mark is the key's own.
    return data[data.index(_BODY) + len(_BODY) : -1]


def head_of(data: bytes) -> bytes:
    """The JSON of an encoded event without its body, wherever that lies. Raises ValueError."""
    mark = data.find(_BODY)
    return data[: mark if mark >= 0 else data.index(_BLOB)] + b"}"


def without_body(data: bytes, reference: BodyReference) -> bytes:
    """The encoded event with `reference` for its body."""
    return _referring(data[: data.index(_BODY)], reference)


def with_body(data: bytes, reference: BodyReference, body: bytes) -> bytes:
    """What `without_body` was made from. Raises ValueError for an event that it did not make."""
    head = data[: data.rfind(_BLOB)]
    if _referring(head, reference) != data:
        raise ValueError("an event that refers to its body, but not as this release writes it")
    return head + _BODY + body + b"}"


def _referring(head: bytes, reference: BodyReference) -> bytes:
    return head + _BLOB + reference.model_dump_json().encode() + b"}"
