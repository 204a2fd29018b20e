"""Messages to tokens and sampled tokens to an answer, with the renderer of the job's model family.

Qwen3's template is local to a message: each is framed by special tokens that no text merges across.
So a message renders alone as it renders in its place, and encoding is O(new content). Only the
thinking of earlier turns depends on the place; here it is always kept (`thinking_retention="all"`),
because history stays as it was sampled.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import orjson
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer

from gyre.core.matching import Tokens, Tools
from gyre.core.messages import Message
from gyre.proxy.tokenizer import FastTokenizer, ModelFilesError

# Executions of a job share their tools and system text; a handful of variants is the rule.
_HEADS = 64

_DUMMY: dict[str, Any] = {"role": "user", "content": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A tool call that a client can execute: `arguments` is JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """Sampled tokens as an answer. content holds the raw text of malformed tool calls too."""

    content: str
    reasoning: str | None
    tool_calls: tuple[ParsedCall, ...]
    num_malformed_tool_calls: int


class Codec(Protocol):
    """An Encoder (gyre.core.matching) that can also read what was sampled."""

    def head(self, tools: Tools, system: Message | None) -> Tokens: ...
    def inputs(self, messages: Sequence[Message]) -> list[Tokens]: ...
    def inputs_after_turn(self, turn: Tokens, messages: Sequence[Message]) -> list[Tokens]: ...
    def turn_end(self, turn: Tokens) -> Tokens: ...
    def assistant(self, message: Message) -> Tokens: ...
    def generation(self) -> Tokens: ...
    def parse(self, output: Sequence[int], *, tool_calls: bool = True) -> ParsedTurn:
        """tool_calls=False: the client wants none, so they are all text."""
        ...

    def token_text(self, token: int) -> str: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...


def load_codec(path: str, family: str) -> Codec:
    """The codec of the model at `path`, from local files only. Raises ModelFilesError."""
    if family != "qwen3":
        raise ModelFilesError(f"model family {family!r} has no renderer here")
    return QwenCodec(FastTokenizer(Path(path)))


class QwenCodec:
    """Qwen3 over `renderers`. Holds no state but caches; equal inputs give equal tokens."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        self._tokenizer = tokenizer
        config = Qwen3RendererConfig(thinking_retention="all")
        try:
            renderer = Qwen3Renderer(tokenizer, config)
        except AssertionError as error:
            raise ModelFilesError(f"{tokenizer.name_or_path}: not Qwen3's: {error}") from error
        self._renderer = renderer
        self._stop = tuple(renderer.get_stop_token_ids())
        self._close = self._stop[0]
        rendered = renderer.render([_DUMMY], add_generation_prompt=True)
        self._generation = array("i", rendered.token_ids[_end(rendered.message_indices, 0) :])
        bridged = renderer.bridge_to_next_turn(list(self._generation), [self._close], [_DUMMY])
        assert bridged is not None
        after = len(self._generation) + 1
        start = bridged.message_indices.index(0)
        self._separator = array("i", bridged.token_ids[after:start])
        self._head = lru_cache(maxsize=_HEADS)(self._render_head)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stop

    def head(self, tools: Tools, system: Message | None) -> Tokens:
        text = orjson.dumps(tools)
        return self._head(text, None if system is None else system.content)

    def inputs(self, messages: Sequence[Message]) -> list[Tokens]:
        rendered = self._renderer.render([_DUMMY, *map(_raw, messages)])
        return _split(rendered.token_ids, rendered.message_indices, range(1, len(messages) + 1))

    def inputs_after_turn(self, turn: Tokens, messages: Sequence[Message]) -> list[Tokens]:
        bridged = self._bridge(turn, messages)
        if bridged is not None:
            return bridged
        encoded = self.inputs(messages)
        encoded[0] = self.turn_end(turn) + encoded[0]
        return encoded

    def turn_end(self, turn: Tokens) -> Tokens:
        closed = len(turn) > 0 and turn[-1] in self._stop
        return self._separator if closed else array("i", [self._close]) + self._separator

    def assistant(self, message: Message) -> Tokens:
        rendered = self._renderer.render([_DUMMY, _raw(message), {"role": "tool", "content": ""}])
        [tokens] = _split(rendered.token_ids, rendered.message_indices, range(1, 2))
        return tokens[: len(tokens) - len(self._separator)]

    def generation(self) -> Tokens:
        return self._generation

    def parse(self, output: Sequence[int], *, tool_calls: bool = True) -> ParsedTurn:
        ids = list(output)
        try:
            parsed = self._renderer.parse_response(ids, prompt_ids=list(self._generation))
        except RecursionError:  # a JSON bomb in a tool call: nothing in it can be executed
            text = self._decode([i for i in ids if i not in self._stop])
            return ParsedTurn(
                content=text, reasoning=None, tool_calls=(), num_malformed_tool_calls=1
            )
        good: list[ParsedCall] = []
        texts = [parsed.content]
        malformed = 0
        for attempt in parsed.tool_calls:
            call = _executable(attempt.name, attempt.arguments) if tool_calls else None
            if call is not None:
                good.append(call)
                continue
            malformed += tool_calls
            texts.append(f"<tool_call>\n{attempt.raw}\n</tool_call>")
        return ParsedTurn(
            content="\n".join(filter(None, texts)),
            reasoning=parsed.reasoning_content,
            tool_calls=tuple(good),
            num_malformed_tool_calls=malformed,
        )

    def token_text(self, token: int) -> str:
        return self._decode([token])

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids)

    def _bridge(self, turn: Tokens, messages: Sequence[Message]) -> list[Tokens] | None:
        """By the renderer's own bridge. None where it would not keep the turn as it is."""
        generation = self._generation
        carried = turn[: len(generation)] == generation
        output = list(turn[len(generation) :] if carried else turn)
        bridged = self._renderer.bridge_to_next_turn(
            list(generation), output, [_raw(message) for message in messages]
        )
        before = len(generation) + len(output)
        if bridged is None or bridged.token_ids[:before] != [*generation, *output]:
            return None
        ids, indices = bridged.token_ids[before:], bridged.message_indices[before:]
        encoded = _split(ids, indices, range(len(messages)))
        encoded[0] = array("i", ids[: indices.index(0)]) + encoded[0]
        return encoded

    def _render_head(self, tools_json: bytes, system: str | None) -> Tokens:
        tools = orjson.loads(tools_json)
        messages = [] if system is None else [{"role": "system", "content": system}]
        rendered = self._renderer.render([*messages, _DUMMY], tools=tools or None)
        return array("i", rendered.token_ids[: rendered.message_indices.index(len(messages))])


def _raw(message: Message) -> dict[str, Any]:
    """As the renderers take it."""
    raw: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_call_id is not None:
        raw["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        raw["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.reasoning is not None:
        raw["reasoning_content"] = message.reasoning
    return raw


def _end(indices: Sequence[int], message: int) -> int:
    """Position after the last token of `message`."""
    return len(indices) - indices[::-1].index(message)


def _split(ids: Sequence[int], indices: Sequence[int], messages: range) -> list[Tokens]:
    """Each message's tokens; a message's tokens lie together."""
    found = {message: array("i") for message in messages}
    for token, message in zip(ids, indices, strict=True):
        if message in found:
            found[message].append(token)
    return list(found.values())


def _executable(name: Any, arguments: Any) -> ParsedCall | None:
    """None for what no client could run: `llm` crashes on a name that is no string and on
    arguments that are no object."""
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + text).encode()
    except (ValueError, RecursionError):  # NaN, lone surrogates
        return None
    return ParsedCall(name=name, arguments=text)
