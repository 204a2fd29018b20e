"""Old events made new: what a body of an earlier schema version would say in the present one.

A change of an event's meaning or of a field raises the class's VERSION by one and adds one upcaster
from the version before, beside the class:

    @upcaster("cell_lost", 1)
    def _reason_was_a_code(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "reason": f"code {body['reason']}"}

- Both decoders apply the chain from the recorded version to the present one before they validate,
  so nothing past the codec ever sees an old body. The log itself is never rewritten.
- An upcaster is pure and gets the raw body, as parsed from JSON; it may change it in place.
- A new field with a default needs neither: the old body validates as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTERS: dict[tuple[str, int], Upcaster] = {}


class MissingUpcaster(LookupError):
    """An event's schema version is older than this release's, and no upcaster leads on from it."""


def upcaster(event_type: str, version: int) -> Callable[[Upcaster], Upcaster]:
    """Decorator: this function turns `event_type` of schema `version` into that of `version` + 1.
    Two for one step are an error."""

    def register(function: Upcaster) -> Upcaster:
        if (event_type, version) in UPCASTERS:
            raise TypeError(f"event type {event_type!r}: two upcasters from version {version}")
        UPCASTERS[event_type, version] = function
        return function

    return register


def upcast(event_type: str, version: int, current: int, body: dict[str, Any]) -> dict[str, Any]:
    """`body` of schema `version` as one of `current`. Raises MissingUpcaster for a broken chain."""
    for step in range(version, current):
        function = UPCASTERS.get((event_type, step))
        if function is None:
            raise MissingUpcaster(
                f"event type {event_type!r}: no upcaster from schema version {step} to {step + 1}"
            )
        body = function(body)
    return body
