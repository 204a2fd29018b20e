"""Events read in one pass are those that are read the slow way, for every type there is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_core import from_json

from gyre.contracts.codec import UndecodableEvent, decode, decode_trusted, encode
from gyre.contracts.envelope import Envelope
from gyre.contracts.readers import read_whole
from gyre.contracts.registry import EVENT_TYPES
from gyre.testkit.examples import example_events

EXAMPLES = example_events()
each_type = pytest.mark.parametrize("name", list(EXAMPLES))


def slowly(data: bytes) -> Envelope:
    """Parsed to a dictionary first, body and head put together by hand."""
    raw = from_json(data)
    body = EVENT_TYPES[raw["type"]].model_validate(raw["body"])
    return Envelope(**{**raw, "body": body})


@each_type
def test_one_pass_gives_the_same_event(name: str) -> None:
    data = encode(EXAMPLES[name])
    whole = read_whole(data)
    assert whole == slowly(data) == EXAMPLES[name]
    assert type(whole) is Envelope
    assert type(whole.body) is EVENT_TYPES[name]
    assert encode(whole) == data
    assert decode(data) == decode_trusted(data) == whole


@each_type
def test_what_does_not_fit_is_left_to_the_slow_way(name: str) -> None:
    raw = json.loads(encode(EXAMPLES[name]))
    for changed in (
        {**raw, "version": raw["version"] + 1},
        {**raw, "version": str(raw["version"])},
        {**raw, "type": "no_such_type"},
        {**raw, "body": {**raw["body"], "no_such_field": 1}},
        {**raw, "no_such_field": 1},
        {**raw, "job": 7},
        {**raw, "time": "now"},
        {key: raw[key] for key in raw if key != "aggregate"},
    ):
        assert read_whole(_bytes(changed)) is None
        with pytest.raises(UndecodableEvent):
            decode(_bytes(changed))


def test_keys_in_another_order_are_read_all_the_same() -> None:
    event = EXAMPLES["started"]
    raw = json.loads(encode(event))
    data = _bytes(dict(reversed(raw.items())))
    assert read_whole(data) is None
    assert decode(data) == decode_trusted(data) == event


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"x" * 100, b'{"id":"' + b"0" * 60])
def test_what_is_no_event_is_undecodable(data: bytes) -> None:
    assert read_whole(data) is None
    with pytest.raises(UndecodableEvent):
        decode(data)


def _bytes(raw: dict[str, Any]) -> bytes:
    return json.dumps(raw, separators=(",", ":")).encode()
