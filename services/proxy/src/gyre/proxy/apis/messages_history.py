"""The history of a Messages request as canonical messages.

| the client's | canonical |
|---|---|
| system, a string or text blocks | one system message; the billing block is dropped |
| role system among the messages | a system message in that place |
| user text blocks next to each other | one user message |
| tool_result blocks, with text between and after | tool messages and user messages in that order |
| assistant messages next to each other | one turn, as the vendor reads them |
| thinking | the turn's reasoning; a redacted one holds nothing of ours |
| tool_use | a call with the id that it has in the log; its input as JSON text |

Empty text blocks and everything that is no content (cache_control, citations) are dropped. An
`is_error` result reads as its text, and as "Error" where it has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import orjson

from gyre.core.messages import Message, ToolCall
from gyre.proxy.requests import BadRequest

# The client's own block, not meant for the model: its hash differs from prompt to prompt.
_BILLING = "x-anthropic-billing-header:"
# Of a field in the request, from outside in. Made into text only for an error: most are none.
_Place: TypeAlias = tuple[str | int, ...]
# Claude Code takes out the block that such an error names, and goes on.
_NOT_TEXT = {
    "image": "Could not process image: this model reads text only",
    "document": "The PDF specified was not valid: this model reads text only",
}


def shown_tool_id(identity: str) -> str:
    """A call's id as this API's clients see it."""
    return "toolu_" + identity.removeprefix("call_")


def tool_id(shown: str) -> str:
    """The id in the log of a call that was shown as `shown`."""
    return "call_" + shown[6:] if shown.startswith("toolu_") else shown


def read_messages(
    messages: Any, num_before: int = 0, before: Sequence[Message] = ()
) -> tuple[tuple[Message, ...], Sequence[int]]:
    """The messages that the client's list makes, and how many the items up to each one make, -1
    where the next may belong to the same turn. num_before: items of the list that come first, and
    made `before`. Raises BadRequest, with the field at fault in its text."""
    if not isinstance(messages, list):
        raise _fault(("messages",), "Input should be a valid list")
    if not messages and not num_before:
        raise _fault(("messages",), "at least one message is required")
    history = _History(call.id for message in before for call in message.tool_calls)
    return tuple(history.read(messages, num_before)), history.closed


@dataclass(slots=True)
class _Turn:
    """An assistant's turn as far as it is read."""

    texts: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message:
        return Message.of_blocks(
            "assistant",
            filter(None, self.texts),
            tool_calls=tuple(self.calls),
            reasoning="\n".join(self.thinking) or None,
        )


class _History:
    """One list of messages. Mutated by `read`, once. closed: see `read_messages`."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.closed: list[int] = []
        self._ids = set(ids)

    def read(self, messages: Sequence[Any], num_before: int) -> list[Message]:
        turn: _Turn | None = None
        found: list[Message] = []
        for index, raw in enumerate(messages, num_before):
            if not isinstance(raw, dict):
                raise _fault(("messages", index), "Input should be an object")
            role, content, where = (
                raw.get("role"),
                raw.get("content"),
                ("messages", index, "content"),
            )
            if role == "assistant":
                turn = turn or _Turn()
                self._extend(turn, content, where)
                self.closed.append(-1)
                continue
            if role not in ("user", "system"):
                raise _fault(
                    (*where[:2], "role"), "Input should be 'user', 'assistant' or 'system'"
                )
            if turn is not None:
                found.append(turn.message())
                turn = None
            if isinstance(content, str):
                found.append(Message(role=role, content=content))
            else:
                found += self._said(role, content, where)
            self.closed.append(len(found))
        if turn is not None:
            raise _fault(
                (),
                "This model does not support assistant message prefill. The conversation must end "
                "with a user message.",
            )
        return found

    def _said(
        self, role: Literal["user", "system"], content: Any, where: _Place
    ) -> Iterator[Message]:
        """A user's or system's message: results and text in their order."""
        texts: list[str] = []
        num_results = 0
        for index, block in enumerate(_blocks(content, where)):
            if block["type"] == "tool_result" and role == "user":
                if any(texts):
                    yield _of_texts(role, texts)
                texts = []
                num_results += 1
                yield self._result(block, (*where, index))
            else:
                texts.append(_text(block, (*where, index)))
        if any(texts) or num_results == 0:
            yield _of_texts(role, texts)

    def _result(self, block: Mapping[str, Any], where: _Place) -> Message:
        identity = tool_id(_string(block, "tool_use_id", where))
        content = block.get("content")
        if isinstance(content, str):
            texts = [content]
        elif content is None:
            texts = []
        else:
            inner = (*where, "tool_result", "content")
            texts = [
                _text(part, (*inner, index)) for index, part in enumerate(_blocks(content, inner))
            ]
        if block.get("is_error") is True and not "".join(texts).strip():
            texts = ["Error"]
        return _of_texts("tool", texts, identity)

    def _extend(self, turn: _Turn, content: Any, where: _Place) -> None:
        """Adds an assistant message to the turn."""
        if isinstance(content, str):
            turn.texts.append(content)
            return
        for index, block in enumerate(_blocks(content, where)):
            match block["type"]:
                case "tool_use":
                    turn.calls.append(self._call(block, (*where, index)))
                case "thinking":
                    turn.thinking.append(_string(block, "thinking", (*where, index)))
                case "redacted_thinking":
                    continue
                case _:
                    turn.texts.append(_text(block, (*where, index)))

    def _call(self, block: Mapping[str, Any], where: _Place) -> ToolCall:
        identity = tool_id(_string(block, "id", where))
        if identity in self._ids:
            raise _fault(where, "`tool_use` ids must be unique")
        self._ids.add(identity)
        name = _string(block, "name", where)
        return ToolCall(id=identity, name=name, arguments=_arguments(block.get("input"), where))


def read_system(system: Any) -> tuple[Message, ...]:
    """The one system message, if anything is left of it. Raises BadRequest."""
    if system is None:
        return ()
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
    texts = [
        _without_billing(_text(block, ("system", index)))
        for index, block in enumerate(_blocks(blocks, ("system",)))
    ]
    return (_of_texts("system", texts),) if any(texts) else ()


def _without_billing(text: str) -> str:
    """The text without the line that it opens with, if that is the billing one."""
    return text.partition("\n")[2].lstrip("\n") if text.startswith(_BILLING) else text


def _of_texts(
    role: Literal["user", "system", "tool"], texts: Sequence[str], tool_call_id: str | None = None
) -> Message:
    """Vendors take no empty texts, and they say nothing."""
    if len(texts) == 1:
        return Message(role=role, content=texts[0], tool_call_id=tool_call_id)
    return Message.of_blocks(role, filter(None, texts), tool_call_id=tool_call_id)


def _blocks(content: Any, where: _Place) -> list[dict[str, Any]]:
    """Each is an object and has a type."""
    if not isinstance(content, list):
        raise _fault(where, "Input should be a valid string or list")
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            raise _fault((*where, index), "Input should be an object")
        if not isinstance(block.get("type"), str):
            raise _fault((*where, index, "type"), "Field required")
    return content


def _text(block: Mapping[str, Any], where: _Place) -> str:
    kind = block["type"]
    if kind == "text":
        return _string(block, "text", where)
    raise _fault((*where, kind), _NOT_TEXT.get(kind, "this type of block is not served"))


def _string(block: Mapping[str, Any], name: str, where: _Place) -> str:
    value = block.get(name)
    if isinstance(value, str):
        return value
    why = "Field required" if value is None else "Input should be a valid string"
    raise _fault((*where, block["type"], name), why)


def _arguments(value: Any, where: _Place) -> str:
    """JSON text as the model writes it: a client's spacing says nothing."""
    if not isinstance(value, dict):
        raise _fault((*where, "tool_use", "input"), "Input should be an object")
    try:
        pretty = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    except orjson.JSONEncodeError as error:
        raise _fault((*where, "tool_use", "input"), "Input is nested too deeply") from error
    # In one line, with a blank after each comma and colon. No string has a line break in it.
    lines = [line.lstrip(" ") for line in pretty.split("\n")]
    return "".join([f"{line} " if line[-1] == "," else line for line in lines])


def _fault(where: _Place, why: str) -> BadRequest:
    place = ".".join(map(str, where))
    return BadRequest(f"{place}: {why}" if place else why, param="messages")
