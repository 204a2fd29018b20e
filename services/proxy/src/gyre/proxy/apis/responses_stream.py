"""The stream events of the Responses API, in the vendor's order.

| item | after `output_item.added` | before `output_item.done` |
|---|---|---|
| reasoning, message | `content_part.added`, its delta | its done, `content_part.done` |
| function call | `function_call_arguments.delta` | `function_call_arguments.done` |
| custom tool call | `custom_tool_call_input.delta` | `custom_tool_call_input.done` |

A turn is whole when it goes out, so each text is one delta.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

# Where a call holds what it was made with, by its type, and its events' name.
_PAYLOADS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
_TEXTS = {"reasoning": "response.reasoning_text", "message": "response.output_text"}


class EventWriter:
    """Numbers the events of one stream."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, kind: str, **fields: Any) -> bytes:
        event = {**fields, "type": kind, "sequence_number": self._next}
        self._next += 1
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


def item_events(write: EventWriter, index: int, item: Mapping[str, Any]) -> Iterator[bytes]:
    """All events of the output item at `index`."""
    where = {"item_id": item["id"], "output_index": index}
    yield write("response.output_item.added", output_index=index, item=_begun(item))
    if item["type"] in _PAYLOADS:
        field, name = _PAYLOADS[item["type"]]
        yield write(f"{name}.delta", **where, delta=item[field])
        yield write(f"{name}.done", **where, **{field: item[field]})
    else:
        yield from _text_events(write, where, item)
    yield write("response.output_item.done", output_index=index, item=item)


def _text_events(
    write: EventWriter, where: Mapping[str, Any], item: Mapping[str, Any]
) -> Iterator[bytes]:
    name = _TEXTS[item["type"]]
    [part] = item["content"]
    place = {**where, "content_index": 0}
    marks = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
    empty = part | {"text": ""} | {mark: [] for mark in marks}
    yield write("response.content_part.added", **place, part=empty)
    if part["text"]:
        yield write(f"{name}.delta", **place, delta=part["text"], **marks)
    yield write(f"{name}.done", **place, text=part["text"], **marks)
    yield write("response.content_part.done", **place, part=part)


def _begun(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item before there is anything in it."""
    begun = dict(item) | {"status": "in_progress"}
    if item["type"] in _PAYLOADS:
        begun[_PAYLOADS[item["type"]][0]] = ""
    else:
        begun["content"] = []
    if "encrypted_content" in begun:
        begun["encrypted_content"] = None
    return begun
