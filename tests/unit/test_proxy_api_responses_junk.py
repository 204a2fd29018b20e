"""Requests of OpenAI's APIs with any one value replaced or missing."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import orjson
import pytest

from gyre.proxy.apis.base import Api
from gyre.proxy.apis.chat import Chat
from gyre.proxy.apis.responses import Responses
from gyre.proxy.apis.responses_reasoning import seal
from gyre.proxy.requests import Answer, AnswerCall, BadRequest, Sampling

SAMPLING = Sampling(temperature=1.0, max_new_tokens=64)
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: A"}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "d", "type": "custom", "custom": {"name": "g", "input": ""}},
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}},
        {"type": "custom", "custom": {"name": "g", "format": {"grammar": GRAMMAR}}},
    ],
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 1.0,
    "n": 1,
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "stop": ["a"],
    "logprobs": True,
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "i",
    "input": [
        {"role": "user", "content": "x"},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "s"}],
            "encrypted_content": seal("hm"),
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
        {
            "type": "function_call",
            "call_id": "a",
            "name": "f",
            "namespace": "n",
            "arguments": "{}",
        },
        {"type": "custom_tool_call", "call_id": "b", "name": "f", "input": "q"},
        {
            "type": "function_call_output",
            "call_id": "a",
            "output": [{"type": "input_text", "text": "t"}],
        },
    ],
    "tools": [
        {"type": "function", "name": "f", "strict": False},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
        {"type": "custom", "name": "p", "format": GRAMMAR},
        {"type": "web_search"},
    ],
    "reasoning": {"effort": None},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "include": ["reasoning.encrypted_content"],
    "store": False,
    "background": False,
}
MISSING = object()
JUNK: list[Any] = [
    None, 3, -1.5, True, "", "x", [], {}, [1], [[]], [{}], {"type": "x"}, {"a": {"b": []}}, "\x00",
    "x" * 100_000, MISSING,
]  # fmt: skip


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*place, key))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*place, index))


def spoiled(body: dict[str, Any], place: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    other = deepcopy(body)
    holder: Any = other
    for step in place[:-1]:
        holder = holder[step]
    if junk is MISSING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = junk
    return other


def refusal(api: Api, body: dict[str, Any]) -> BadRequest | None:
    try:
        api.parse(orjson.dumps(body), {}, SAMPLING)
    except BadRequest as error:
        return error
    return None


@pytest.mark.parametrize(("api", "body"), [(Chat(), CHAT), (Responses(), RESPONSES)])
def test_any_junk_is_served_or_refused_in_one_short_line(api: Api, body: dict[str, Any]) -> None:
    assert refusal(api, body) is None
    bodies = [spoiled(body, place, junk) for place in places(body) for junk in JUNK]
    refusals = [error for junk in bodies if (error := refusal(api, junk)) is not None]
    assert len(refusals) > 500
    assert {error.status for error in refusals} == {400}
    assert max(len(str(error)) for error in refusals) < 700
    assert not any("\n" in str(error) for error in refusals)


@pytest.mark.parametrize("api", [Chat(), Responses()])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"NaN",
        b'{"temperature": NaN}',
        b"[" * 100_000,
        b'{"input": ' + b"[" * 100_000,
        b'{"input": "\\ud800", "messages": "\\ud800"}',
    ],
)
def test_what_is_no_json_is_refused(api: Api, body: bytes) -> None:
    with pytest.raises(BadRequest):
        api.parse(body, {}, SAMPLING)


def nested_body(depth: int) -> tuple[bytes, bytes]:
    """A request with lists in lists in two fields that an answer repeats, and those lists."""
    tool = {"type": "function", "name": "f", "parameters": {"a": "HERE"}}
    body = orjson.dumps({"input": "hi", "tools": [tool], "metadata": {"a": "HERE"}})
    nested = b"[" * depth + b"]" * depth
    return body.replace(b'"HERE"', nested), nested


@pytest.mark.parametrize("depth", [10, 240, 250])
def test_what_is_nested_is_repeated(depth: int) -> None:
    body, nested = nested_body(depth)
    call = AnswerCall(id="call_1", name="f", arguments="{}")
    answer = Answer(
        call="c", created=1, content="", reasoning=None, tool_calls=(call,), finish_reason="stop",
        prompt_tokens=1, completion_tokens=1, cached_tokens=0,
    )  # fmt: skip
    exchange = Responses().parse(body, {}, SAMPLING)
    assert exchange.body(answer).count(nested) == 2
    assert b"".join(exchange.events(answer)).count(nested) == 2


@pytest.mark.parametrize("depth", [260, 500, 1000])
def test_what_is_nested_too_deeply_to_be_repeated_is_refused(depth: int) -> None:
    with pytest.raises(BadRequest, match="nested too deeply") as refused:
        Responses().parse(nested_body(depth)[0], {}, SAMPLING)
    assert refused.value.param == "metadata"
