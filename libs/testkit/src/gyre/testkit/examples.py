"""One full example of every event type, each optional field set, derived from the types alone.

Values are plain and fixed: a new event type has an example without anybody writing one, and the
golden files of tests/contract show what it looks like on the wire.
"""

from __future__ import annotations

import types
import typing
from typing import Any, Literal, Union

from pydantic import BaseModel

import gyre.contracts.events  # noqa: F401  registers every event type
from gyre.contracts.codec import make_envelope
from gyre.contracts.envelope import Body, Envelope, event_id
from gyre.contracts.job import JobSpec
from gyre.contracts.registry import EVENT_TYPES
from gyre.testkit.specs import job_spec

_PLAIN: dict[Any, Any] = {bool: True, int: 7, float: 0.25, Any: "anything"}


def example_events() -> dict[str, Envelope]:
    """By type name, in the order of the names."""
    return {name: _envelope(EVENT_TYPES[name]) for name in sorted(EVENT_TYPES)}


def _envelope(kind: type[Body]) -> Envelope:
    return make_envelope(
        typing.cast(Body, _model(kind)),
        identity=event_id("example", kind.TYPE),
        job="job-1",
        aggregate=f"facts.job-1.{kind.TYPE}",
        time=1_700_000_000.5,
        causation=event_id("cause"),
    )


def _model(kind: type[BaseModel]) -> BaseModel:
    if kind is JobSpec:
        return job_spec()
    return kind.model_validate(
        {name: _value(name, field.annotation) for name, field in kind.model_fields.items()}
    )


def _value(name: str, annotation: Any) -> Any:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if annotation is str:
        return f"{name}-1"
    if origin is Literal:
        return arguments[0]
    if origin in (Union, types.UnionType):
        return _value(name, next(choice for choice in arguments if choice is not type(None)))
    if origin is tuple:
        return (_value(name, arguments[0]),)
    if origin is dict:
        return {f"{name}-key": _value(name, arguments[1])}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _model(annotation)
    raise TypeError(f"{name}: no example for {annotation!r}")
