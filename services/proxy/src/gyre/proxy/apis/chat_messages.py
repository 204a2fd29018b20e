"""The messages of chat completions in their canonical form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gyre.core.messages import Message, Role, ToolCall
from gyre.proxy.apis.openai import (
    invalid_value,
    missing,
    read_list,
    read_text,
    refuse,
    text_blocks,
    wrong_type,
)
from gyre.proxy.apis.openai_tools import custom_call, function_call
from gyre.proxy.requests import BadRequest

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user"}


def read_messages(items: Sequence[Any], num_before: int = 0) -> tuple[Message, ...]:
    """num_before: items of the client's list that come first, and are read. Raises BadRequest, also
    for no messages at all."""
    if not items and not num_before:
        raise BadRequest(
            "Invalid 'messages': empty array. Expected at least 1 message.",
            code="empty_array",
            param="messages",
        )
    return tuple(
        [
            _plain(item) or _message(item, f"messages[{index}]")
            for index, item in enumerate(items, num_before)
        ]
    )


def _plain(raw: Any) -> Message | None:
    """The message in the form that almost all of a long history has, read without making names for
    errors on the way. None for any other one, which `_message` reads."""
    if not isinstance(raw, dict) or not isinstance(content := raw.get("content"), str):
        return None
    role, identity = raw.get("role"), raw.get("tool_call_id")
    if role == "tool" and isinstance(identity, str):
        return Message(role="tool", content=content, tool_call_id=identity)
    if role == "user":
        return Message(role="user", content=content)
    return None


def _message(raw: Any, where: str) -> Message:
    if not isinstance(raw, dict):
        raise wrong_type(where, "an object")
    role = raw.get("role")
    if role == "assistant":
        return _assistant(raw, where)
    blocks = text_blocks(raw.get("content"), f"{where}.content")
    if role == "tool":
        return Message.of_blocks("tool", blocks, tool_call_id=read_text(raw, "tool_call_id", where))
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid_value(
            f"{where}.role", role, "system", "assistant", "user", "tool", "developer"
        )
    return Message.of_blocks(_ROLES[role], blocks)


def _assistant(raw: Mapping[str, Any], where: str) -> Message:
    refuse(raw, "function_call", "audio")
    blocks = text_blocks(raw.get("content"), f"{where}.content")
    if not blocks and raw.get("refusal") is not None:
        blocks = (read_text(raw, "refusal", where),)
    calls = tuple(
        _call(item, f"{where}.tool_calls[{index}]")
        for index, item in enumerate(read_list(raw, "tool_calls"))
    )
    if len({call.id for call in calls}) < len(calls):
        raise BadRequest(
            f"Duplicate value for 'id' in '{where}.tool_calls'.",
            code="invalid_value",
            param=f"{where}.tool_calls",
        )
    reasoning = raw.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise wrong_type(f"{where}.reasoning_content", "a string")
    return Message.of_blocks("assistant", blocks, tool_calls=calls, reasoning=reasoning)


def _call(item: Any, where: str) -> ToolCall:
    if not isinstance(item, dict):
        raise wrong_type(where, "an object")
    identity = read_text(item, "id", where)
    kind = "custom" if item.get("type") == "custom" else "function"
    named = item.get(kind)
    if not isinstance(named, dict):
        raise missing(f"{where}.{kind}")
    name = read_text(named, "name", f"{where}.{kind}")
    if kind == "custom":
        return custom_call(identity, name, None, read_text(named, "input", f"{where}.{kind}"))
    return function_call(identity, name, None, read_text(named, "arguments", f"{where}.{kind}"))
