"""Events from bytes in one pass: parsed, validated and built by one validator for each event type.

No dictionary is made on the way, which is most of what reading an event costs. A reader answers for
its own type in the present schema version; all else is the codec's slow path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from pydantic import ValidationError
from pydantic_core import SchemaValidator, core_schema

import gyre.contracts.events  # noqa: F401  registers every event type
from gyre.contracts.envelope import Body, Envelope
from gyre.contracts.registry import EVENT_TYPES

# How `encode` begins every event: {"id":"<32 hex digits>","type":"
_BEFORE_TYPE = len('{"id":"') + 32 + len('","type":"')


def read_whole(data: bytes) -> Envelope | None:
    """The event that `data` is, validated; None when it must be read the slow way: it was written
    by somebody else's writer, has another schema version, or is broken."""
    reader = _READERS.get(data[_BEFORE_TYPE : data.find(b'"', _BEFORE_TYPE)])
    if reader is None:
        return None
    try:
        return reader(data)
    except ValidationError:
        return None


def _reader_of(kind: type[Body]) -> Callable[[bytes], Envelope]:
    text = core_schema.str_schema(strict=True)
    fields: dict[str, core_schema.CoreSchema] = {
        "id": text,
        "type": core_schema.literal_schema([kind.TYPE]),
        "version": core_schema.int_schema(strict=True, ge=kind.VERSION, le=kind.VERSION),
        "job": text,
        "aggregate": text,
        "time": core_schema.float_schema(strict=True),
        "causation": text,
        "body": kind.__pydantic_core_schema__,
    }
    schema = core_schema.dataclass_schema(
        Envelope,
        core_schema.dataclass_args_schema(
            "Envelope",
            [core_schema.dataclass_field(n, s, kw_only=True) for n, s in fields.items()],
        ),
        list(fields),
        slots=True,
        frozen=True,
        config=core_schema.CoreConfig(extra_fields_behavior="forbid"),
    )
    return cast(Callable[[bytes], Envelope], SchemaValidator(schema).validate_json)


_READERS = {name.encode(): _reader_of(kind) for name, kind in EVENT_TYPES.items()}
