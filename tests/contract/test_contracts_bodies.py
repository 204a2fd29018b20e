"""Events whose body lies elsewhere: the head as it was, the body named by its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from gyre.contracts.bodies import BodyReference, body_of, with_body, without_body
from gyre.contracts.codec import (
    BodyElsewhere,
    UndecodableEvent,
    decode,
    decode_trusted,
    decode_with_body,
    encode,
    type_of,
)
from gyre.contracts.envelope import Envelope
from gyre.testkit.examples import example_events

EXAMPLES = example_events()
each_type = pytest.mark.parametrize("name", list(EXAMPLES))
each_decoder = pytest.mark.parametrize("read", [decode, decode_trusted])


def apart(event: Envelope) -> tuple[bytes, BodyReference, bytes]:
    """The event without its body, what it says of the body, the body."""
    data = encode(event)
    body = body_of(data)
    reference = BodyReference(digest=hashlib.sha256(body).hexdigest(), size=len(body))
    return without_body(data, reference), reference, body


def test_an_event_without_its_body_looks_like_this_for_ever() -> None:
    event = EXAMPLES["calls_sealed"]
    data, reference, body = apart(event)
    head = encode(event).decode().partition(',"body":')[0]
    digest = hashlib.sha256(body).hexdigest()
    assert data.decode() == f'{head},"blob":{{"digest":"{digest}","size":{len(body)}}}}}'
    assert reference.size == len(body)


@each_type
def test_head_and_body_together_are_the_event_byte_for_byte(name: str) -> None:
    data, reference, body = apart(EXAMPLES[name])
    assert body.startswith(b"{")
    assert with_body(data, reference, body) == encode(EXAMPLES[name])
    assert decode_with_body(data, reference, body) == EXAMPLES[name]


@each_type
def test_the_type_is_told_from_the_head_wherever_the_body_lies(name: str) -> None:
    data, _, _ = apart(EXAMPLES[name])
    assert type_of(data) == type_of(encode(EXAMPLES[name])) == EXAMPLES[name].type


def test_what_has_no_head_has_no_type() -> None:
    for data in (b"", b"{}", b'{"type":"x"}', b'[1,"body":2]', b'{"id":1,"body":{}}'):
        with pytest.raises(UndecodableEvent):
            type_of(data)


@each_type
@each_decoder
def test_a_decoder_says_where_the_body_lies(name: str, read: Callable[[bytes], Envelope]) -> None:
    data, reference, _ = apart(EXAMPLES[name])
    with pytest.raises(
        BodyElsewhere, match=f"{EXAMPLES[name].id}.*{reference.digest}"
    ) as elsewhere:
        read(data)
    assert elsewhere.value.reference == reference


@pytest.mark.parametrize(
    "reference",
    [
        b'{"digest":"short","size":5}',
        b'{"digest":"' + b"0" * 64 + b'","size":-1}',
        b'{"digest":"' + b"0" * 64 + b'"}',
        b'{"digest":"' + b"0" * 64 + b'","size":5,"more":1}',
        b"7",
    ],
)
def test_a_reference_that_is_none_is_no_event(reference: bytes) -> None:
    data, known, _ = apart(EXAMPLES["calls_sealed"])
    head = data.partition(b',"blob":')[0]
    with pytest.raises(UndecodableEvent) as refused:
        decode(head + b',"blob":' + reference + b"}")
    assert not isinstance(refused.value, BodyElsewhere)
    with pytest.raises(UndecodableEvent):
        decode_with_body(head + b',"blob":' + reference + b"}", known, b"{}")


def test_an_event_has_one_body() -> None:
    data, reference, body = apart(EXAMPLES["calls_sealed"])
    both = encode(EXAMPLES["calls_sealed"])[:-1] + b',"blob":' + data.partition(b',"blob":')[2]
    with pytest.raises(UndecodableEvent) as refused:
        decode(both)
    assert not isinstance(refused.value, BodyElsewhere)
    with pytest.raises(UndecodableEvent, match="cannot be read"):
        decode_with_body(data, reference, body + b',"blob":{}')


def test_a_body_of_another_event_does_not_fit() -> None:
    data, reference, _ = apart(EXAMPLES["calls_sealed"])
    with pytest.raises(UndecodableEvent):
        decode_with_body(data, reference, body_of(encode(EXAMPLES["started"])))
