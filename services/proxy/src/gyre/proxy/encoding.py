"""Messages to tokens and sampled tokens to an answer, with the renderer of the job's model family.

The templates that are served are local to a message: each is framed by special tokens that no text
merges across. So a message renders alone as it renders in its place, and encoding is O(new
content). Only the thinking of earlier turns depends on the place; here it is always kept, because
history stays as it was sampled.

What clients send is literal: no text of theirs becomes a control token (`FastTokenizer.literal`).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count, groupby
from pathlib import Path
from typing import Any, Protocol

import orjson

from gyre.core.matching import Tokens, Tools
from gyre.core.messages import Message, ToolCall
from gyre.proxy.families import FAMILIES, Family
from gyre.proxy.parsing import ParsedCall, ParsedTurn, executable, is_object, read_turn
from gyre.proxy.requests import BadRequest
from gyre.proxy.tokenizer import FastTokenizer, ModelFilesError

__all__ = ["Codec", "FamilyCodec", "ParsedCall", "ParsedTurn", "load_codec"]

# Executions of a job share their tools and system text; a handful of variants is the rule.
_HEADS = 64

_USER: dict[str, Any] = {"role": "user", "content": ""}
_TOOL: dict[str, Any] = {"role": "tool", "content": "", "name": "x"}
_TURN: dict[str, Any] = {"role": "assistant", "content": "x", "reasoning_content": "x"}


class Codec(Protocol):
    """An Encoder (gyre.core.matching) that can also read what was sampled."""

    def head(self, tools: Tools, system: Message | None) -> Tokens: ...
    def inputs(self, messages: Sequence[Message]) -> list[Tokens]: ...
    def inputs_after_turn(self, turn: Tokens, messages: Sequence[Message]) -> list[Tokens]: ...
    def turn_end(self, turn: Tokens) -> Tokens: ...
    def assistant(self, message: Message) -> Tokens: ...
    def generation(self) -> Tokens: ...
    def parse(
        self, output: Sequence[int], *, tool_calls: bool = True, tools: Tools = ()
    ) -> ParsedTurn:
        """tool_calls=False: the client wants none, so they are all text. tools: of the request;
        some families write arguments without quotes, so that their schema tells "1" from 1."""
        ...

    def token_text(self, token: int) -> str: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...


def load_codec(path: str, family: str) -> Codec:
    """The codec of the model at `path`, from local files only. Raises ModelFilesError."""
    if family not in FAMILIES:
        raise ModelFilesError(f"model family {family!r} has no renderer here")
    return FamilyCodec(FastTokenizer(Path(path)), FAMILIES[family])


class FamilyCodec:
    """One family over `renderers`. Holds no state but caches; equal inputs give equal tokens."""

    def __init__(self, tokenizer: FastTokenizer, family: Family) -> None:
        self._tokenizer = tokenizer
        self._family = family
        self._renderer = renderer = family.build(tokenizer)
        self._stop: tuple[int, ...] = tuple(renderer.get_stop_token_ids())
        opened = renderer.render([_USER], add_generation_prompt=True)
        self._generation = array("i", opened.token_ids[_end(opened.message_indices, 0) :])
        self._close, self._separator = array("i"), array("i")
        if family.close is not None:
            turn = self._second([_USER, _TURN, _USER])
            after = _end(turn, tokenizer.convert_tokens_to_ids(family.close))
            self._close, self._separator = turn[after - 1 : after], turn[after:]
        # A closed turn, its thinking too, that the renderer's bridge can go on from.
        self._closed = [*self._second([_USER, _TURN, _TOOL]), self._stop[0]]
        self._head = lru_cache(maxsize=_HEADS)(self._render_head)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stop

    def head(self, tools: Tools, system: Message | None) -> Tokens:
        """Raises BadRequest for tools that the family's template has no form for."""
        return self._head(orjson.dumps(tools), None if system is None else system.content)

    def inputs(self, messages: Sequence[Message]) -> list[Tokens]:
        return self._inputs([self._raw(message) for message in messages])

    def inputs_after_turn(self, turn: Tokens, messages: Sequence[Message]) -> list[Tokens]:
        raw = [self._raw(message) for message in messages]
        if self._family.tool_ids or self._family.tool_names:
            self._name_results(turn, messages, raw)
        first, *rest = self._inputs(raw)
        if not self._close and turn[-1:] and turn[-1:] == first[:1]:
            first = first[1:]  # the turn ended with what opens the message
        return [self.turn_end(turn) + first, *rest]

    def turn_end(self, turn: Tokens) -> Tokens:
        if len(turn) > 0 and turn[-1] in self._stop:
            return self._separator
        bridged = None if self._is_told(turn) else self._bridge(turn, [_USER])
        if bridged is None:
            return self._close + self._separator
        [opening] = self._inputs([_USER])
        return bridged[0][: len(bridged[0]) - len(opening)]

    def assistant(self, message: Message) -> Tokens:
        raw = self._raw(message)
        if not self._has_form(message.tool_calls):
            # No policy wrote such calls, a client did.
            told = [raw["content"], *map(_as_text, raw.pop("tool_calls"))]
            raw["content"] = "\n".join(filter(None, told))
        tokens = self._second([_USER, raw, _TOOL])
        if self._close:
            return tokens[: len(tokens) - len(self._separator)]
        return tokens[:-1] if tokens[-1] in self._stop else tokens

    def generation(self) -> Tokens:
        return self._generation

    def parse(
        self, output: Sequence[int], *, tool_calls: bool = True, tools: Tools = ()
    ) -> ParsedTurn:
        ids = list(output)
        parsed = self._parsed(ids, tools)
        if parsed is None:
            text = self._decode([i for i in ids if i not in self._stop])
            return ParsedTurn(
                content=text, reasoning=None, tool_calls=(), num_malformed_tool_calls=1
            )
        return read_turn(parsed, ids, self._decode, tool_calls=tool_calls)

    def token_text(self, token: int) -> str:
        return self._decode([token])

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def _parsed(self, ids: list[int], tools: Tools = ()) -> Any:
        """The renderer's reading. None for a JSON bomb in a tool call: nothing in it can be
        executed. Whether a call is whole does not depend on the tools, only its arguments do."""
        opening = list(self._generation)
        try:
            bare = self._renderer.parse_response(ids, prompt_ids=opening)
        except RecursionError:
            return None
        if not tools or not bare.tool_calls:
            return bare
        try:
            typed = self._renderer.parse_response(ids, tools=list(tools), prompt_ids=opening)
        except (TypeError, AttributeError, ValueError, KeyError):  # a schema that is none
            return bare
        for call, it in zip(bare.tool_calls, typed.tool_calls, strict=True):
            call.arguments = it.arguments
        return bare

    def _is_told(self, turn: Tokens) -> bool:
        """Whether the turn begins with its opening: it was told here, or carried over."""
        return turn[:1] == self._generation[:1]

    def _has_form(self, calls: Sequence[ToolCall]) -> bool:
        """Whether a template can tell the calls: some drop arguments that are no JSON object."""
        if len(calls) > 1 and self._family.one_call:
            return False
        return self._family.verbatim or all(is_object(call.arguments) for call in calls)

    def _inputs(self, raw: Sequence[dict[str, Any]]) -> list[Tokens]:
        """Messages that are not the assistant's, as they follow a closed one. Results that stand
        together may share a frame, so they are told together; nothing else depends on what is
        beside it, since a client may leave that out later."""
        found: list[Tokens] = []
        for is_result, several in groupby(raw, key=lambda it: it["role"] == "tool"):
            for group in [list(several)] if is_result else [[it] for it in several]:
                bridged = self._bridge(self._closed, [_USER, *group])
                assert bridged is not None
                found += bridged[1:]
        return found

    def _bridge(self, turn: Sequence[int], raw: Sequence[dict[str, Any]]) -> list[Tokens] | None:
        """What `raw` adds after `turn`, by the renderer's own bridge, without the next turn's
        opening. None where it would not keep the turn as it is."""
        opening = list(self._generation)
        before = [*opening, *turn]
        bridged = self._renderer.bridge_to_next_turn(opening, list(turn), list(raw))
        if bridged is None or bridged.token_ids[: len(before)] != before:
            return None
        added = slice(len(before), len(bridged.token_ids) - len(opening))
        return _split(bridged.token_ids[added], bridged.message_indices[added], len(raw))

    def _second(self, raw: list[dict[str, Any]]) -> Tokens:
        """The second message's tokens, in the place it has."""
        rendered = self._renderer.render(raw)
        return _split(rendered.token_ids, rendered.message_indices, len(raw))[1]

    def _name_results(
        self, turn: Tokens, messages: Sequence[Message], raw: Sequence[dict[str, Any]]
    ) -> None:
        """Tells results of the turn's calls by what the model called these."""
        output = turn[len(self._generation) :] if self._is_told(turn) else turn
        parsed = self._parsed(list(output))
        calls = [] if parsed is None else [call for call in parsed.tool_calls if executable(call)]
        order = count()
        for message, result in zip(messages, raw, strict=True):
            if message.role != "tool":
                continue
            place = next(order) if message.call is None else message.call
            if place >= len(calls):
                continue
            if self._family.tool_ids and calls[place].id:
                result["tool_call_id"] = self._tokenizer.literal(calls[place].id)
            if self._family.tool_names:
                result["name"] = self._tokenizer.literal(calls[place].name)

    def _render_head(self, tools_json: bytes, system: str | None) -> Tokens:
        tools = self._literal(orjson.loads(tools_json))
        messages = []
        if system is not None:
            messages.append({"role": "system", "content": self._tokenizer.literal(system)})
        try:
            rendered = self._renderer.render([*messages, _USER], tools=tools or None)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            message = f"the model's template cannot tell the tools: {error}"
            raise BadRequest(message, param="tools") from error
        return array("i", rendered.token_ids[: rendered.message_indices.index(len(messages))])

    def _literal(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._tokenizer.literal(value)
        if isinstance(value, list):
            return [self._literal(item) for item in value]
        if isinstance(value, dict):
            return {self._literal(key): self._literal(item) for key, item in value.items()}
        return value

    def _raw(self, message: Message) -> dict[str, Any]:
        """As the renderers take it."""
        literal = self._tokenizer.literal
        late = message.role == "system" and not self._family.late_system
        raw: dict[str, Any] = {
            "role": "user" if late else message.role,
            "content": literal(message.content),
        }
        if message.tool_call_id is not None:
            raw["tool_call_id"] = literal(message.tool_call_id)
        if message.role == "tool" and self._family.tool_names:
            raw["name"] = "tool"
        if message.tool_calls:
            raw["tool_calls"] = [self._raw_call(at, it) for at, it in enumerate(message.tool_calls)]
        if message.reasoning is not None:
            raw["reasoning_content"] = literal(message.reasoning)
        return raw

    def _raw_call(self, place: int, call: ToolCall) -> dict[str, Any]:
        literal = self._tokenizer.literal
        name, arguments = literal(call.name), literal(call.arguments or "{}")
        return {
            "id": f"functions.{name}:{place}" if self._family.tool_ids else literal(call.id),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }


def _as_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return f"{function['name']}({function['arguments']})"


def _end(values: Sequence[int], value: int | None) -> int:
    """Position after the last `value`."""
    return max(position for position, it in enumerate(values) if it == value) + 1


def _split(ids: Sequence[int], indices: Sequence[int], num_messages: int) -> list[Tokens]:
    """Each message's tokens. What belongs to none goes to the one before it, at first to the
    first."""
    found = [array("i") for _ in range(num_messages)]
    current = 0
    for token, message in zip(ids, indices, strict=True):
        current = max(current, message)
        found[current].append(token)
    return found
