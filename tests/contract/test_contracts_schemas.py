"""The wire format of every event type, held by golden files: what is in a log stays readable.

After a deliberate change (a new type, or a new VERSION with its upcaster) write them anew with
`GYRE_UPDATE_GOLDENS=1 pytest tests/contract/test_contracts_schemas.py` and review the difference.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from gyre.contracts.codec import UndecodableEvent, decode, decode_trusted, encode, make_envelope
from gyre.contracts.envelope import Body, Envelope
from gyre.contracts.events import steps as step_events
from gyre.contracts.registry import EVENT_TYPES, event
from gyre.testkit.examples import example_events

GOLDENS = Path(__file__).parent / "schemas"
EXAMPLES = example_events()
every_type = pytest.mark.parametrize("name", sorted(EXAMPLES))

_SECRET = re.compile(r"secret|passw|credential|authorization|private|^(api_?)?(key|token)s?$")


def _pretty(data: bytes) -> str:
    return json.dumps(json.loads(data), indent=2) + "\n"


def _golden(name: str) -> str:
    path = GOLDENS / f"{name}.json"
    if os.environ.get("GYRE_UPDATE_GOLDENS") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(_pretty(encode(EXAMPLES[name])), encoding="utf-8")
    assert path.is_file(), f"no golden for {name}: write it with GYRE_UPDATE_GOLDENS=1"
    return path.read_text(encoding="utf-8")


def _raw(name: str) -> dict[str, Any]:
    return json.loads(_golden(name))


def _bytes(raw: object) -> bytes:
    return json.dumps(raw).encode()


@every_type
def test_an_event_is_written_as_its_golden_says(name: str) -> None:
    assert _pretty(encode(EXAMPLES[name])) == _golden(name)


@every_type
def test_a_golden_is_read_as_the_event_it_was_written_from(name: str) -> None:
    data = _bytes(_raw(name))
    assert decode(data) == EXAMPLES[name]
    assert decode_trusted(data) == EXAMPLES[name]
    assert type(decode(data).body) is EVENT_TYPES[name]


def test_every_golden_belongs_to_a_type_and_every_type_has_one() -> None:
    assert sorted(path.stem for path in GOLDENS.glob("*.json")) == sorted(EVENT_TYPES)


@every_type
def test_equal_events_are_equal_bytes(name: str) -> None:
    assert encode(decode(encode(EXAMPLES[name]))) == encode(EXAMPLES[name])


@every_type
def test_an_unknown_field_is_refused_in_the_body_and_in_the_head(name: str) -> None:
    raw = _raw(name)
    with pytest.raises(UndecodableEvent):
        decode(_bytes({**raw, "body": {**raw["body"], "surprise": 1}}))
    with pytest.raises(UndecodableEvent):
        decode(_bytes({**raw, "surprise": 1}))


@every_type
def test_a_missing_required_field_is_refused(name: str) -> None:
    raw = _raw(name)
    for field, info in EVENT_TYPES[name].model_fields.items():
        if info.is_required():
            body = {key: value for key, value in raw["body"].items() if key != field}
            with pytest.raises(UndecodableEvent):
                decode(_bytes({**raw, "body": body}))


@every_type
def test_another_schema_version_is_refused_and_named(name: str) -> None:
    raw = _raw(name)
    with pytest.raises(UndecodableEvent, match=rf"{name}.*version 99"):
        decode(_bytes({**raw, "version": 99}))


def test_an_unknown_type_is_refused_and_named() -> None:
    with pytest.raises(UndecodableEvent, match="no_such_event"):
        decode(_bytes({**_raw("started"), "type": "no_such_event"}))


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"{}", b'{"type": [], "version": 1}'],
)
def test_what_is_no_event_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(UndecodableEvent):
        decode(data)


@every_type
def test_no_event_has_a_field_for_a_secret(name: str) -> None:
    names = _field_names(EVENT_TYPES[name]) | _keys(_raw(name))
    assert not {field for field in names if _SECRET.search(field)}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_step_with_a_non_finite_gradient_can_be_read_again(value: float) -> None:
    """`skipped` steps report the norm that made them skip."""
    example = EXAMPLES["step_completed"].body
    assert isinstance(example, step_events.StepCompleted)
    statistics = example.statistics.model_copy(update={"grad_norm": value})
    body = example.model_copy(update={"statistics": statistics})
    read = decode(encode(_enveloped(body))).body
    assert isinstance(read, step_events.StepCompleted)
    assert repr(read.statistics.grad_norm) == repr(value)


def test_an_event_is_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        EXAMPLES["started"].body.execution = "other"  # type: ignore[attr-defined]


def test_two_types_of_one_name_are_an_error() -> None:
    with pytest.raises(TypeError, match="started"):

        @event
        class Again(Body):
            TYPE = "started"


def _enveloped(body: Body) -> Envelope:
    return make_envelope(body, identity="1", job="job", aggregate="facts.x", time=0.0, causation="")


def _field_names(model: type[BaseModel]) -> set[str]:
    schema = model.model_json_schema()
    parts = [schema, *schema.get("$defs", {}).values()]
    return {name for part in parts for name in part.get("properties", {})}


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(_keys, value.values())) if value else set()
    return set().union(*map(_keys, value)) if isinstance(value, list) and value else set()
