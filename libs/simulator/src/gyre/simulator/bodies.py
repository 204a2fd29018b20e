"""Event bodies by the hundred thousand: a validated one, again with other values.

Validation of a body costs more than folding it, and so does making one. A simulator's bodies differ
in two or three fields that it has made itself, so one of each kind is validated; the others are
copies of it where a log keeps them, else that one filled in again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gyre.contracts.envelope import Body, Part

Kind = TypeVar("Kind", Body, Part)

_set = object.__setattr__


def variants(pattern: Kind) -> Callable[..., Kind]:
    """Makes bodies like `pattern` with the values given by name, unchecked: the caller answers for
    names and types."""
    kind, values = type(pattern), pattern.__dict__
    new, given = kind.__new__, pattern.__pydantic_fields_set__

    def variant(**changes: Any) -> Kind:
        body = new(kind)
        _set(body, "__dict__", {**values, **changes})
        _set(body, "__pydantic_fields_set__", given)
        _set(body, "__pydantic_extra__", None)
        _set(body, "__pydantic_private__", None)
        return body

    return variant


def restamped(pattern: Kind) -> Callable[..., Kind]:
    """As `variants`, but it is one and the same body each time, with other values: for facts that
    are folded and forgotten."""
    body = variants(pattern)()
    values = body.__dict__

    def variant(**changes: Any) -> Kind:
        values.update(changes)
        return body

    return variant
