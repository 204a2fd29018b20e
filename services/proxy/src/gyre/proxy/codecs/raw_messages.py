"""Canonical messages as `renderers` takes them, with what clients wrote marked as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gyre.core.messages import Message, ToolCall
from gyre.proxy.codecs.families import Family
from gyre.proxy.codecs.parsing import read_object
from gyre.proxy.codecs.tokenizer import FastTokenizer

Raw = dict[str, Any]


class RawMessages:
    """One family's. Holds no state."""

    def __init__(self, tokenizer: FastTokenizer, family: Family) -> None:
        self._family = family
        self.literal: Callable[[str], str] = tokenizer.literal if family.marked else str

    def literals(self, value: Any) -> Any:
        """JSON values with every text in them marked."""
        if isinstance(value, str):
            return self.literal(value)
        if isinstance(value, list):
            return [self.literals(item) for item in value]
        if isinstance(value, dict):
            return {self.literals(key): self.literals(item) for key, item in value.items()}
        return value

    def inputs(self, messages: Sequence[Message]) -> list[Raw]:
        """What stands between two turns."""
        raw = [self.of(message) for message in messages]
        if self._family.one_text:
            # Its template has results in the order of the calls, in the places that results have.
            places = [place for place, it in enumerate(messages) if it.role == "tool"]
            ordered = [raw[place] for place in sorted(places, key=lambda it: _order(messages[it]))]
            for place, result in zip(places, ordered, strict=True):
                raw[place] = result
        return raw

    def of(self, message: Message) -> Raw:
        """One message, whichever its role."""
        late = message.role == "system" and not self._family.late_system
        raw: Raw = {
            "role": "user" if late else message.role,
            "content": self.literal(message.content),
        }
        if message.tool_call_id is not None:
            raw["tool_call_id"] = self.literal(message.tool_call_id)
        if message.role == "tool" and self._family.tool_names:
            raw["name"] = "tool"
        if message.tool_calls:
            raw["tool_calls"] = [self._call(at, it) for at, it in enumerate(message.tool_calls)]
        if message.reasoning is not None:
            raw["reasoning_content"] = self.literal(message.reasoning)
        return raw

    def turn(self, message: Message) -> Raw:
        """An assistant's message that was not sampled here. Calls that the template has no form
        for are text: no policy wrote them, a client did."""
        raw = self.of(message)
        if message.tool_calls and not self._tell(message.tool_calls, raw["tool_calls"]):
            told = [raw["content"], *map(_as_text, raw.pop("tool_calls"))]
            raw["content"] = "\n".join(filter(None, told))
        return raw

    def _tell(self, calls: Sequence[ToolCall], raw: Sequence[Raw]) -> bool:
        """Whether a template can tell the calls: some drop arguments that are no JSON object. Those
        that are told by what they mean are read here, since JSON has other ways to write the name
        of a control token."""
        if len(calls) > 1 and self._family.one_call:
            return False
        if self._family.verbatim:
            return True
        objects = [read_object(call.arguments) for call in calls]
        if None in objects:
            return False
        for call, found in zip(raw, objects, strict=True):
            call["function"]["arguments"] = self.literals(found)
        return True

    def _call(self, place: int, call: ToolCall) -> Raw:
        name, arguments = self.literal(call.name), self.literal(call.arguments or "{}")
        return {
            "id": f"functions.{name}:{place}" if self._family.tool_ids else self.literal(call.id),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }


def _as_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return f"{function['name']}({function['arguments']})"


def _order(result: Message) -> int:
    return 0 if result.call is None else result.call
