"""The input items of the Responses API in their canonical form.

A turn comes back as several items (reasoning, message, calls), which become one assistant message
again: a turn ends where input follows it, or where an item comes that stands before the last one in
every turn. Calls that two turns make one after the other without results between them cannot be
told from parallel ones of one turn; no client keeps such a history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gyre.core.messages import Message, Role, ToolCall
from gyre.proxy.apis.openai import (
    invalid_value,
    missing,
    read_list,
    read_text,
    text_blocks,
    unsupported,
    wrong_type,
)
from gyre.proxy.apis.openai_tools import custom_call, function_call
from gyre.proxy.apis.responses_reasoning import read_reasoning
from gyre.proxy.requests import BadRequest

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user"}
_ITEMS = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)


def read_instructions(raw: Mapping[str, Any]) -> tuple[Message, ...]:
    """The system message of `instructions`, if there are any. Raises BadRequest."""
    instructions = raw.get("instructions") or ""
    if not isinstance(instructions, str):
        raise wrong_type("instructions", "a string")
    return (Message.of_blocks("system", (instructions,)),) if instructions else ()


def read_input(
    raw: Mapping[str, Any], num_before: int = 0
) -> tuple[tuple[Message, ...], Sequence[int]]:
    """`input` as messages, and how many of them the items up to each one make, -1 where the turn
    may go on. num_before: items of the client's list that come first, and are read. Raises
    BadRequest, also for no input at all."""
    history = _History()
    closed: list[int] = []
    given = raw.get("input")
    if given is None:
        raise missing("input")
    if isinstance(given, str):
        history.add(Message.of_blocks("user", (given,)))
    else:
        items = read_list(raw, "input")
        if not items and not num_before:
            raise BadRequest("Invalid 'input': empty array.", code="empty_array", param="input")
        for index, item in enumerate(items, num_before):
            _read_item(history, item, f"input[{index}]")
            closed.append(history.num_closed)
    return history.messages(), closed


class _History:
    """Messages so far, and the assistant's turn that may go on."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._is_open = False
        self._reasoning: list[str] = []
        self._blocks: tuple[str, ...] | None = None
        self._calls: list[ToolCall] = []

    def add(self, message: Message) -> None:
        """What the assistant did not say."""
        self._close()
        self._messages.append(message)

    def reasoning(self, text: str | None) -> None:
        if self._blocks is not None or self._calls:
            self._close()
        self._is_open = True
        if text is not None:
            self._reasoning.append(text)

    def text(self, blocks: tuple[str, ...]) -> None:
        if self._blocks is not None or self._calls:
            self._close()
        self._is_open = True
        self._blocks = blocks

    def call(self, call: ToolCall, where: str) -> None:
        if any(call.id == other.id for other in self._calls):
            raise BadRequest(
                f"Duplicate value for 'call_id' in '{where}'.",
                code="invalid_value",
                param=f"{where}.call_id",
            )
        self._is_open = True
        self._calls.append(call)

    @property
    def num_closed(self) -> int:
        """The messages so far; -1 while the last one may go on."""
        return -1 if self._is_open else len(self._messages)

    def messages(self) -> tuple[Message, ...]:
        self._close()
        return tuple(self._messages)

    def _close(self) -> None:
        if self._is_open:
            turn = Message.of_blocks(
                "assistant",
                self._blocks or (),
                tool_calls=tuple(self._calls),
                reasoning="\n".join(self._reasoning) if self._reasoning else None,
            )
            self._messages.append(turn)
        self._is_open = False
        self._reasoning, self._blocks, self._calls = [], None, []


def _read_item(history: _History, item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise wrong_type(where, "an object")
    kind = item.get("type") or ("message" if "role" in item else None)
    match kind:
        case "message":
            _read_message(history, item, where)
        case "reasoning":
            history.reasoning(read_reasoning(item, where))
        case "function_call" | "custom_tool_call":
            history.call(_call(item, where), where)
        case "function_call_output" | "custom_tool_call_output":
            blocks = text_blocks(_present(item, "output", where), f"{where}.output")
            call = read_text(item, "call_id", where)
            history.add(Message.of_blocks("tool", blocks, tool_call_id=call))
        case "item_reference" | None if "id" in item:
            raise unsupported(
                where, f"{where}: item references are not served, responses are not stored here."
            )
        case _:
            raise invalid_value(f"{where}.type", kind, *_ITEMS)


def _read_message(history: _History, item: Mapping[str, Any], where: str) -> None:
    blocks = text_blocks(_present(item, "content", where), f"{where}.content")
    role = item.get("role")
    if role == "assistant":
        history.text(blocks)
    elif isinstance(role, str) and role in _ROLES:
        history.add(Message.of_blocks(_ROLES[role], blocks))
    else:
        raise invalid_value(f"{where}.role", role, "assistant", "system", "developer", "user")


def _call(item: Mapping[str, Any], where: str) -> ToolCall:
    identity = read_text(item, "call_id", where)
    name = read_text(item, "name", where)
    namespace = None
    if item.get("namespace") is not None:
        namespace = read_text(item, "namespace", where)
    if item["type"] == "custom_tool_call":
        return custom_call(identity, name, namespace, read_text(item, "input", where))
    return function_call(identity, name, namespace, read_text(item, "arguments", where))


def _present(item: Mapping[str, Any], name: str, where: str) -> Any:
    if item.get(name) is None:
        raise missing(f"{where}.{name}")
    return item[name]
