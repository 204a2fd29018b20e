"""Any model family over its renderer: messages to tokens, sampled tokens to an answer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import count, groupby
from typing import Any, ClassVar

import orjson

from gyre.core.matching import Tokens, Tools
from gyre.core.messages import Message
from gyre.proxy.codecs.families import Family
from gyre.proxy.codecs.parsing import ParsedTurn, executable, read_turn
from gyre.proxy.codecs.raw_messages import Raw, RawMessages
from gyre.proxy.codecs.tokenizer import FastTokenizer
from gyre.proxy.requests import BadRequest

# Executions of a job share their tools and system text; a handful of variants is the rule.
_HEADS = 64

_USER: Raw = {"role": "user", "content": ""}
_TOOL: Raw = {"role": "tool", "content": "", "name": "x"}
_TURN: Raw = {"role": "assistant", "content": "x", "reasoning_content": "x"}
_CALL = {"id": "x", "type": "function", "function": {"name": "x", "arguments": "{}"}}
_CALLED: Raw = {"role": "assistant", "content": "", "tool_calls": [_CALL]}


class FamilyCodec:
    """One family over `renderers`. Holds no state but caches; equal inputs give equal tokens."""

    # What a told turn needs behind it, so that its thinking is told and it is closed.
    _behind: ClassVar[tuple[Raw, ...]] = (_TOOL,)

    def __init__(self, tokenizer: FastTokenizer, family: Family) -> None:
        self._tokenizer = tokenizer
        self._family = family
        self._raw = RawMessages(tokenizer, family)
        self._renderer = renderer = family.build(tokenizer)
        self._stop: tuple[int, ...] = tuple(renderer.get_stop_token_ids())
        self._generation = self._opens([_USER])
        self._resuming = (
            self._opens([_USER, _CALLED, _TOOL]) if family.resumes else self._generation
        )
        self._close, self._separator = array("i"), array("i")
        if family.close is not None:
            turn = self._place([_USER, _TURN, _USER], 1)
            after = _end(turn, tokenizer.convert_tokens_to_ids(family.close))
            self._close, self._separator = turn[after - 1 : after], turn[after:]
        # A closed turn, its thinking too, that the renderer's bridge can go on from: its first
        # token stands for the prompt, so that no thinking is open before the turn.
        told = self._told(_TURN)
        self._prompt, self._closed = told[:1], array("i", [*told[1:], self._stop[0]])
        self._head = lru_cache(maxsize=_HEADS)(self._render_head)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stop

    def head(self, tools: Tools, system: Message | None) -> Tokens:
        """Raises BadRequest for tools that the family's template has no form for."""
        return self._head(orjson.dumps(tools), None if system is None else system.content)

    def inputs(self, messages: Sequence[Message], *, after: str = "user") -> list[Tokens]:
        return self._inputs(self._raw.inputs(messages), after)

    def inputs_after_turn(
        self, turn: Tokens, messages: Sequence[Message], *, opening: Tokens | None = None
    ) -> list[Tokens]:
        raw = self._raw.inputs(messages)
        if self._family.tool_ids or self._family.tool_names:
            self._name_results(turn, messages, raw, opening)
        first, *rest = self._inputs(raw)
        return [self._joined(turn, raw[0], first, opening), *rest]

    def turn_end(self, turn: Tokens, *, opening: Tokens | None = None) -> Tokens:
        if turn[-1:] and (turn[-1] in self._stop or turn[-1:] == self._close):
            return self._separator
        # A told turn is closed as it is; one that was sampled behind no opening has no thinking.
        is_told = opening is not None and not opening
        bridged = None if is_told else self._bridge(turn, [_USER], self._opened(opening))
        if bridged is None:
            return self._close + self._separator
        [message] = self._inputs([_USER])
        return bridged[0][: len(bridged[0]) - len(message)]

    def assistant(self, message: Message, *, after: str = "user") -> Tokens:
        tokens = self._told(self._raw.turn(message), after)
        if not self._close:
            return tokens[:-1] if tokens[-1] in self._stop else tokens
        start = len(tokens) - len(self._separator)
        return tokens[:start] if tokens[start:] == self._separator else tokens

    def generation(self, *, after: str = "user", carried: Tokens | None = None) -> Tokens:
        return self._resuming if after == "tool" else self._generation

    def parse(
        self,
        output: Sequence[int],
        *,
        tool_calls: bool = True,
        tools: Tools = (),
        opening: Tokens | None = None,
    ) -> ParsedTurn:
        ids = list(output)
        parsed = self._parsed(ids, tools, opening)
        if parsed is None:
            text = self._decode([i for i in ids if i not in self._stop])
            return ParsedTurn(
                content=text, reasoning=None, tool_calls=(), num_malformed_tool_calls=1
            )
        return read_turn(parsed, ids, self._decode, tool_calls=tool_calls)

    def text(self, ids: Sequence[int]) -> str:
        return self._decode(ids)

    def token_text(self, token: int) -> str:
        return self._decode([token])

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def _parsed(self, ids: list[int], tools: Tools = (), opening: Tokens | None = None) -> Any:
        """The renderer's reading. None for a JSON bomb in a tool call: nothing in it can be
        executed. Whether a call is whole does not depend on the tools, only its arguments do."""
        opened = list(self._opened(opening))
        try:
            bare = self._renderer.parse_response(ids, prompt_ids=opened)
        except (RecursionError, ValueError):  # a number of too many digits, too
            return None
        if not tools or not bare.tool_calls:
            return bare
        try:
            typed = self._renderer.parse_response(ids, tools=list(tools), prompt_ids=opened)
        except (TypeError, AttributeError, ValueError, KeyError):  # a schema that is none
            return bare
        for call, it in zip(bare.tool_calls, typed.tool_calls, strict=True):
            call.arguments = it.arguments
        return bare

    def _opened(self, opening: Tokens | None) -> Tokens:
        """The family's opening at the end of what a turn was sampled after."""
        if opening is None or not self._family.resumes:
            return self._generation
        is_usual = opening[-len(self._generation) :] == self._generation
        return self._generation if is_usual else self._resuming

    def _opens(self, raw: Sequence[Raw]) -> Tokens:
        """What opens a turn behind `raw`."""
        opened = self._renderer.render(list(raw), add_generation_prompt=True)
        return array("i", opened.token_ids[_end(opened.message_indices, len(raw) - 1) :])

    def _inputs(self, raw: Sequence[Raw], after: str = "user") -> list[Tokens]:
        """Messages that are not the assistant's, as they follow a closed one. Results that stand
        together may share a frame, so they are told together; nothing else depends on what is
        behind it, since a client may leave that out later."""
        if self._family.one_text:
            rendered = self._renderer.render([_USER, _TURN, *raw])
            whole = array("i", rendered.token_ids[rendered.message_indices.index(2) :])
            return [whole, *(array("i") for _ in raw[1:])]
        found: list[Tokens] = []
        for results, several in groupby(raw, key=is_result):
            for group in [list(several)] if results else [[it] for it in several]:
                bridged = self._bridge(self._closed, [_USER, *group], self._prompt)
                assert bridged is not None
                found += bridged[1:]
        return found

    def _joined(self, turn: Tokens, raw: Raw, tokens: Tokens, opening: Tokens | None) -> Tokens:
        """The first input after a turn, `tokens` where it stands alone, with the turn's end."""
        if not self._close and turn[-1:] and turn[-1:] == tokens[:1]:
            tokens = tokens[1:]  # the turn ended with what opens the message
        return self.turn_end(turn, opening=opening) + tokens

    def _bridge(
        self, turn: Sequence[int], raw: Sequence[Raw], opening: Tokens
    ) -> list[Tokens] | None:
        """What `raw` adds after `turn`, by the renderer's own bridge, without the next turn's
        opening. None where it would not keep the turn as it is."""
        before = [*opening, *turn]
        bridged = self._renderer.bridge_to_next_turn(list(opening), list(turn), list(raw))
        if bridged is None or bridged.token_ids[: len(before)] != before:
            return None
        behind = self.generation(after=raw[-1]["role"])
        added = slice(len(before), len(bridged.token_ids) - len(behind))
        return _split(bridged.token_ids[added], bridged.message_indices[added], len(raw))

    def _told(self, turn: Raw, after: str = "user") -> Tokens:
        """An assistant's message in the place it has, with what closes it."""
        before = [_USER, _CALLED, _TOOL] if self._family.resumes and after == "tool" else [_USER]
        return self._place([*before, turn, *self._behind], len(before))

    def _place(self, raw: Sequence[Raw], place: int) -> Tokens:
        """One message's tokens, in the place it has."""
        rendered = self._renderer.render(list(raw))
        return _split(rendered.token_ids, rendered.message_indices, len(raw))[place]

    def _name_results(
        self,
        turn: Tokens,
        messages: Sequence[Message],
        raw: Sequence[Raw],
        opening: Tokens | None,
    ) -> None:
        """Tells results of the turn's calls by what the model called these."""
        own = len(self._generation)
        output = turn[own:] if turn[:own] == self._generation else turn  # told with its opening
        parsed = self._parsed(list(output), opening=opening or None)
        calls = [] if parsed is None else [call for call in parsed.tool_calls if executable(call)]
        order = count()
        for message, result in zip(messages, raw, strict=True):
            if message.role != "tool":
                continue
            place = next(order) if message.call is None else message.call
            if place >= len(calls):
                continue
            if self._family.tool_ids and calls[place].id:
                result["tool_call_id"] = self._raw.literal(calls[place].id)
            if self._family.tool_names:
                result["name"] = self._raw.literal(calls[place].name)

    def _render_head(self, tools_json: bytes, system: str | None) -> Tokens:
        tools = self._raw.literals(orjson.loads(tools_json))
        texts = [] if system is None else [self._raw.literal(system)]
        if tools and self._family.tools_text is not None:
            texts.append(self._family.tools_text(tools))
            tools = []
        messages = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
        try:
            rendered = self._renderer.render([*messages, _USER], tools=tools or None)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            reason = " ".join(str(error).split())
            message = f"the model's template cannot tell the tools: {reason}"
            raise BadRequest(message, param="tools") from error
        return array("i", rendered.token_ids[: rendered.message_indices.index(len(messages))])


def is_result(raw: Raw) -> bool:
    return bool(raw["role"] == "tool")


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
