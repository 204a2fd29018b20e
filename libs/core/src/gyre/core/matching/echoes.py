"""Keys of messages: equal for what a client may send differently and mean the same.

A client's history comes back re-serialised. Seen on the wire of unmodified agent programs:
- vendor marks come and go, a string becomes a list of one block, blocks are cut otherwise into
  messages: inputs are compared text by text, whatever message each sits in;
- a text that is merged with the next one gets a line break: those at a text's end do not count;
- a system message in mid-list is later a reminder, in tags within a user's message, before or after
  its other texts: a reminder is known by what is between the tags, and may move among the inputs
  that it stands with;
- arguments of tool calls lose their spacing, key order and number formats: a turn is known by the
  ids of its calls, one that was not sampled here by what its arguments mean;
- white space around a turn's text does not count.

Any other difference of any character is another message. Keys are 16 bytes and go to the log, so
what makes them never changes for what is in one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeAlias

import orjson

from gyre.core.messages import Message

KEY_BYTES = 16
# How an agent program marks what it says itself inside a user's message.
REMINDER_OPEN = "<system-reminder>\n"
REMINDER_CLOSE = "\n</system-reminder>"

Piece: TypeAlias = tuple[bytes, bool]


def input_pieces(message: Message) -> list[Piece]:
    """(key, whether it is a reminder) of each text of a message that is no assistant's."""
    if message.role == "tool":
        identity = message.tool_call_id or ""
        return [(_digest(f"tool {len(identity)} {identity} {message.content}"), False)]
    is_system = message.role == "system"
    if not message.blocks:
        return [_text_piece(message.content, is_system)]
    return [_text_piece(block, is_system) for block in message.blocks]


def input_keys(message: Message) -> tuple[bytes, ...]:
    """The keys of `input_pieces`."""
    if len(message.blocks) < 2:  # as in most of a long history
        return (input_pieces(message)[0][0],)
    return tuple([key for key, _ in input_pieces(message)])


def _text_piece(text: str, reminder: bool) -> Piece:
    text = text.rstrip("\n")
    if text.startswith(REMINDER_OPEN) and text.endswith(REMINDER_CLOSE):
        text = text[len(REMINDER_OPEN) : -len(REMINDER_CLOSE)].rstrip("\n")
        reminder = True
    return _digest("text " + text), reminder


def head_keys(tools: bytes, system: Message | None) -> tuple[bytes, bytes]:
    """Of what opens a conversation: the tools' key, and that of the system text."""
    return tools, _digest("no system" if system is None else "system " + system.content)


def turn_text_key(content: str) -> bytes:
    """Of an assistant's text without tool calls."""
    return _digest("turn " + content.strip())


def assistant_key(message: Message) -> bytes:
    """Of an assistant's turn that was not sampled here."""
    parts = ["assistant", message.content.strip(), (message.reasoning or "").strip()]
    for call in message.tool_calls:
        parts += [call.id, call.name, _meaning(call.arguments)]
    return _digest(" ".join(f"{len(part)} {part}" for part in parts))


def tools_key(tools: Sequence[Mapping[str, Any]]) -> bytes:
    """Of a request's tool list: plain JSON values. The tools' order matters: it is what the model
    reads; that of an object's keys does not."""
    return _hashed(b"tools " + orjson.dumps(list(tools), option=orjson.OPT_SORT_KEYS))


def _digest(text: str) -> bytes:
    return _hashed(text.encode("utf-8", "surrogatepass"))


def _hashed(data: bytes) -> bytes:
    # SHA-256: processors have instructions for it, which halves the time of BLAKE2.
    return sha256(data).digest()[:KEY_BYTES]


def _meaning(arguments: str) -> str:
    """JSON text in one form: sorted keys, 1.0 as 1. What is no JSON stays as it is."""
    try:
        return json.dumps(
            json.loads(arguments, parse_float=_number), sort_keys=True, ensure_ascii=False
        )
    except (ValueError, RecursionError):
        return arguments


def _number(text: str) -> int | float:
    """As programs that know only doubles write it: no fraction where there is none."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1e21 else value
