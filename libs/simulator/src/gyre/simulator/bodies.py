"""Event bodies by the hundred thousand: a validated one, again with other values.

Validation of a body costs more than folding it. A simulator's bodies differ in two or three fields
that it has made itself, so one of each kind is validated and the others are copies of it.
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
