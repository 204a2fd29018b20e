"""Chat messages in one canonical form, and the keys that tell whether two of them are the same.

A client's history comes back re-serialised: parts collapse to strings, vendor marks move, argument
JSON loses its spacing. What a key leaves out (unknown fields, spacing and key order of arguments,
white space around assistant text) is what such a client may change without meaning it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]

_KEY_BYTES = 16


class InvalidMessage(ValueError):
    """A message that is not one of the chat format; the text says which part and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """id: as the assistant's turn carried it. arguments: JSON text, verbatim."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """content: the text, "" for none. blocks: the text blocks that it is made of, joined by line
    breaks, where a client sent several. reasoning: the assistant's, if it was sent."""

    role: Role
    content: str
    blocks: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


def parse_message(raw: Any, position: int) -> Message:
    """The canonical form of one chat-completions message. Raises InvalidMessage."""
    where = f"messages[{position}]"
    if not isinstance(raw, Mapping):
        raise InvalidMessage(f"{where} is not an object")
    role: Role
    match raw.get("role"):
        case "system" | "developer":
            role = "system"
        case "user":
            role = "user"
        case "tool":
            role = "tool"
        case "assistant":
            return Message(
                role="assistant",
                content=_text(raw.get("content"), where),
                tool_calls=_tool_calls(raw.get("tool_calls"), where),
                reasoning=_optional_text(
                    raw.get("reasoning_content"), f"{where}.reasoning_content"
                ),
            )
        case other:
            raise InvalidMessage(f"{where}.role is {other!r}: use system, user, assistant or tool")
    return Message(
        role=role,
        content=_text(raw.get("content"), where),
        tool_call_id=_optional_text(raw.get("tool_call_id"), f"{where}.tool_call_id"),
    )


def input_key(message: Message) -> bytes:
    """Key of any message as plain context: equal for messages that read the same, 16 bytes."""
    parts = [message.role, message.content, message.tool_call_id or ""]
    for call in message.tool_calls:
        parts += [call.id, call.name, _canonical_json(call.arguments)]
    return _digest(parts)


def turn_text_key(content: str) -> bytes:
    """Key of an assistant turn without tool calls, 16 bytes: clients strip or drop white space."""
    return _digest(["turn", content.strip()])


def tools_key(tools: Sequence[Mapping[str, Any]]) -> bytes:
    """Key of a request's tool list, 16 bytes. Order matters: it is what the model reads."""
    return _digest([json.dumps(tool, sort_keys=True, ensure_ascii=False) for tool in tools])


def _digest(parts: Sequence[str]) -> bytes:
    """Each part's length goes in before it, so that ("a", "bc") and ("ab", "c") differ."""
    digest = blake2b(digest_size=_KEY_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def _canonical_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _text(content: Any, where: str) -> str:
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "".join(
                _part(part, f"{where}.content[{index}]") for index, part in enumerate(content)
            )
        case _:
            raise InvalidMessage(f"{where}.content: use a string or a list of text parts")


def _part(part: Any, where: str) -> str:
    if isinstance(part, Mapping) and part.get("type") in ("text", "refusal"):
        text = part.get(part["type"])
        if isinstance(text, str):
            return text
    raise InvalidMessage(f"{where}: only text parts are served")


def _optional_text(value: Any, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidMessage(f"{where} is not a string")


def _tool_calls(raw: Any, where: str) -> tuple[ToolCall, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise InvalidMessage(f"{where}.tool_calls is not a list")
    return tuple(_tool_call(item, f"{where}.tool_calls[{index}]") for index, item in enumerate(raw))


def _tool_call(item: Any, where: str) -> ToolCall:
    function = item.get("function") if isinstance(item, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidMessage(f"{where}: expected a function with a name")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        raise InvalidMessage(f"{where}.function.arguments is not a string")
    identity = item.get("id")
    if not isinstance(identity, str):
        raise InvalidMessage(f"{where}.id is not a string")
    return ToolCall(id=identity, name=function["name"], arguments=arguments)
