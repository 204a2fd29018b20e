"""Events of earlier schema versions are read as ones of the present, by both decoders."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gyre.contracts.codec import UndecodableEvent, decode, decode_trusted, encode
from gyre.contracts.envelope import Body, Envelope
from gyre.contracts.events.scheduling import JobSubmitted
from gyre.contracts.registry import EVENT_TYPES, event
from gyre.contracts.upcasters import UPCASTERS, upcaster
from gyre.testkit.examples import example_events

RECORDED = Path(__file__).parents[1] / "replay" / "runs" / "quickstart.jsonl.gz"

Decoder = Callable[[bytes], Envelope]
DECODERS = pytest.mark.parametrize("read", [decode, decode_trusted])


class Weighed(Body):
    """A made-up event in its third version."""

    TYPE: ClassVar[str] = "weighed"
    VERSION: ClassVar[int] = 3
    weight_g: int
    scale: str


@pytest.fixture(autouse=True)
def _weighed() -> Iterator[None]:
    event(Weighed)

    @upcaster("weighed", 1)
    def _kilograms_became_grams(body: dict[str, Any]) -> dict[str, Any]:
        return {"weight_g": 1000 * body["weight_kg"]}

    @upcaster("weighed", 2)
    def _the_scale_is_named(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "scale": "unknown"}

    yield
    del EVENT_TYPES["weighed"], UPCASTERS["weighed", 1], UPCASTERS["weighed", 2]


def _event(version: object, body: dict[str, object]) -> bytes:
    head = {"id": "i", "type": "weighed", "version": version, "job": "j", "aggregate": "facts.j.x"}
    return json.dumps({**head, "time": 1.0, "causation": "", "body": body}).encode()


@DECODERS
@pytest.mark.parametrize(
    ("version", "body", "expected"),
    [
        (1, {"weight_kg": 2}, Weighed(weight_g=2000, scale="unknown")),
        (2, {"weight_g": 7}, Weighed(weight_g=7, scale="unknown")),
        (3, {"weight_g": 7, "scale": "s"}, Weighed(weight_g=7, scale="s")),
    ],
)
def test_an_old_event_goes_up_the_chain_to_the_present_version(
    read: Decoder, version: int, body: dict[str, object], expected: Weighed
) -> None:
    envelope = read(_event(version, body))
    assert envelope.body == expected
    assert envelope.version == 3
    assert read(encode(envelope)) == envelope


@DECODERS
def test_an_event_newer_than_this_release_is_refused(read: Decoder) -> None:
    with pytest.raises(UndecodableEvent, match="schema version 4, this release reads up to 3"):
        read(_event(4, {"weight_g": 7, "scale": "s"}))


@DECODERS
@pytest.mark.parametrize("version", [0, -1])
def test_a_version_that_never_was_is_refused(read: Decoder, version: int) -> None:
    with pytest.raises(UndecodableEvent, match="schema version"):
        read(_event(version, {"weight_g": 7}))


@DECODERS
def test_an_old_body_that_does_not_fit_its_version_is_refused(read: Decoder) -> None:
    with pytest.raises(UndecodableEvent, match="weight_kg"):
        read(_event(1, {"weight_g": 7}))


@DECODERS
def test_a_hole_in_the_chain_is_refused(read: Decoder) -> None:
    function = UPCASTERS.pop(("weighed", 2))
    try:
        with pytest.raises(UndecodableEvent, match="no upcaster from schema version 2 to 3"):
            read(_event(1, {"weight_kg": 2}))
    finally:
        UPCASTERS["weighed", 2] = function


def test_two_upcasters_of_one_step_are_an_error() -> None:
    with pytest.raises(TypeError, match="two upcasters"):
        upcaster("weighed", 1)(lambda body: body)


@DECODERS
@pytest.mark.parametrize("recorded", [{}, {"max_skipped_steps": 2}])
def test_a_job_submitted_without_a_bound_on_skipped_steps_has_none(
    read: Decoder, recorded: dict[str, int]
) -> None:
    raw = json.loads(encode(example_events()["job_submitted"]))
    del raw["body"]["spec"]["objective"]["max_skipped_steps"]
    raw["body"]["spec"]["objective"] |= recorded
    body = read(json.dumps({**raw, "version": 1}).encode()).body
    assert isinstance(body, JobSubmitted)
    assert body.spec.objective.max_skipped_steps == recorded.get("max_skipped_steps")


@DECODERS
def test_a_recorded_job_of_an_earlier_release_goes_on_however_many_steps_it_skips(
    read: Decoder,
) -> None:
    with gzip.open(RECORDED, "rt", encoding="utf-8") as lines:
        events = (json.loads(line).get("event", {}) for line in lines)
        event = next(event for event in events if event.get("type") == "job_submitted")
    assert event["version"] == 1
    body = read(json.dumps(event).encode()).body
    assert isinstance(body, JobSubmitted)
    assert body.spec.objective.max_skipped_steps is None


def test_every_version_an_event_ever_had_can_still_be_read() -> None:
    for name, body_type in EVENT_TYPES.items():
        for version in range(1, body_type.VERSION):
            assert (name, version) in UPCASTERS
