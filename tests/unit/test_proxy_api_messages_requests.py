"""Requests to Anthropic's Messages API, and the errors that refuse them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.apis.base import Reply
from gyre.proxy.apis.messages import Messages, MessagesExchange
from gyre.proxy.requests import BadRequest, ContextFull, Fault, Request, Sampling

USER = [{"role": "user", "content": "hi"}]
SAMPLING = Sampling(temperature=1.0, max_new_tokens=64)
THINKING = {"type": "adaptive"}
TOOL = {"name": "run", "description": "Runs.", "input_schema": {"type": "object"}}


def exchange(**fields: Any) -> MessagesExchange:
    body = orjson.dumps({"model": "m", "max_tokens": 64, "messages": USER} | fields)
    return Messages().parse(body, {}, SAMPLING)


def parse(**fields: Any) -> Request:
    return exchange(**fields).request


def test_sampling_parameters_of_the_client_are_named_not_obeyed() -> None:
    kept = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    obeyed = parse(
        temperature=1.0, top_p=1, top_k=0, stop_sequences=[], thinking=THINKING,
        tool_choice={"type": "auto"}, context_management=kept, metadata={"user_id": "{}"},
    )  # fmt: skip
    assert obeyed.overridden == ()
    asked = parse(
        temperature=0.0, top_p=0.9, top_k=20, max_tokens=32000, stop_sequences=["x"],
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": {}}},
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )  # fmt: skip
    assert set(asked.overridden) == {
        "temperature", "top_p", "top_k", "max_tokens", "stop_sequences", "thinking",
        "output_config.effort", "output_config.format", "context_management", "tool_choice",
        "disable_parallel_tool_use",
    }  # fmt: skip
    assert asked.json_schema
    assert not obeyed.json_schema


def test_tools_are_functions_without_the_vendors_marks() -> None:
    marked = TOOL | {"type": "custom", "cache_control": {"type": "ephemeral"}, "strict": True}
    expected = {"name": "run", "description": "Runs.", "parameters": {"type": "object"}}
    for tool in (TOOL, marked):
        assert parse(tools=[tool]).tools == ({"type": "function", "function": expected},)
    bare = {"name": "run", "input_schema": {}}
    assert parse(tools=[bare]).tools[0]["function"] == {"name": "run", "parameters": {}}


def test_no_tools_are_called_if_the_client_wants_none() -> None:
    assert not parse(tools=[TOOL], tool_choice={"type": "none"}).tool_calls
    assert parse(tools=[TOOL], tool_choice={"type": "tool", "name": "run"}).tool_calls


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": {}}, "tools: Input should be a valid list"),
        ({"tools": [3]}, "tools.0: Input should be an object"),
        ({"tools": [{"name": "x"}]}, "tools.0.custom.input_schema: "),
        ({"tools": [{"input_schema": {}}]}, "tools.0.custom.name: "),
        ({"tools": [TOOL, TOOL]}, "tools: Tool names must be unique."),
        (
            {"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]},
            "tools.1: 'm' does not support tool types: web_search_20250305.",
        ),
        ({"tool_choice": "auto"}, "tool_choice: Input should be an object"),
        ({"thinking": True}, "thinking: Input should be an object"),
        ({"model": 3}, "model: Input should be a valid string"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers: not served here"),
        ({"system": 3}, "system: Input should be"),
    ],
)
def test_what_cannot_be_served_is_a_bad_request(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(**fields)
    assert str(refused.value).startswith(words)


def test_a_body_that_is_no_json_object_is_a_bad_request() -> None:
    for body in (b"", b"[]", b"{", b'"x"', b'{"a": "\xff"}', b'{"a": "\\ud800"}', b'{"a": NaN}'):
        with pytest.raises(BadRequest, match="The request body is not valid JSON"):
            Messages().parse(body, {}, SAMPLING)


VALID: dict[str, Any] = {
    "model": "m", "max_tokens": 9, "stream": True, "temperature": 1.0, "stop_sequences": ["x"],
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "tool_use", "id": "toolu_1", "name": "run", "input": {"a": 1}},
        ]},
        {"role": "system", "content": "r"},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True,
             "content": [{"type": "text", "text": "b"}]},
        ]},
    ],
    "tools": [TOOL], "tool_choice": {"type": "auto"}, "thinking": THINKING,
    "output_config": {"format": {"type": "json_schema"}},
    "context_management": {"edits": [{"type": "clear", "keep": "all"}]},
}  # fmt: skip


def places(value: Any, *at: str | int) -> Iterator[tuple[str | int, ...]]:
    """Of everything in `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*at, key)
        if isinstance(inner, dict | list):
            yield from places(inner, *at, key)


wild = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.sampled_from(list(places(VALID))), wild)
def test_any_value_in_any_place_is_read_or_refused(at: tuple[str | int, ...], value: Any) -> None:
    body = json.loads(json.dumps(VALID))
    around = body
    for step in at[:-1]:
        around = around[step]
    around[at[-1]] = value
    with suppress(BadRequest):
        read = Messages().parse(json.dumps(body).encode(), {}, SAMPLING).request
        assert read.messages[-1].role != "assistant"


def test_a_body_of_every_field_is_read() -> None:
    read = parse(**VALID)
    assert [message.role for message in read.messages] == [
        "system", "user", "assistant", "system", "tool",
    ]  # fmt: skip


def test_the_key_is_an_api_key_or_a_bearer_token() -> None:
    assert Messages().key({"x-api-key": "k"}) == "k"
    assert Messages().key({"authorization": "Bearer k"}) == "k"
    assert Messages().key({"x-api-key": "k", "authorization": "Bearer other"}) == "k"
    assert Messages().key({}) is None


def error(fault: Fault) -> tuple[Reply, dict[str, Any]]:
    reply = Messages().error(fault)
    return reply, orjson.loads(reply.body)


@pytest.mark.parametrize(
    ("status", "shown", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (401, 401, "authentication_error"),
        (403, 403, "permission_error"),
        (404, 404, "not_found_error"),
        (405, 405, "invalid_request_error"),
        (408, 408, "timeout_error"),
        (409, 409, "conflict_error"),
        (413, 413, "request_too_large"),
        (429, 429, "rate_limit_error"),
        (500, 500, "api_error"),
        (503, 529, "overloaded_error"),
    ],
)
def test_errors_have_the_vendors_shape(status: int, shown: int, kind: str) -> None:
    reply, body = error(Fault("no", status=status, code="c"))
    assert reply.status == shown
    assert body.keys() == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == reply.headers["request-id"]
    assert reply.body.endswith(b'"}}')


def test_an_overload_is_worth_a_retry_within_a_minute() -> None:
    for wait_s, told in ((0.1, "1"), (2.5, "3"), (500.0, "60")):
        reply, _ = error(Fault("busy", status=429, code="overloaded", retry_after_s=wait_s))
        assert (reply.status, reply.headers["retry-after"]) == (529, told)


def test_a_full_context_is_told_in_the_words_that_make_clients_compact() -> None:
    for num_tokens in (200_000, 210_000):
        reply, body = error(ContextFull(num_tokens=num_tokens, context_tokens=200_000))
        assert reply.status == 400
        assert body["error"] == {
            "type": "invalid_request_error",
            "message": f"prompt is too long: {num_tokens} tokens > 199999 maximum",
        }


def test_an_error_in_a_stream_is_an_event() -> None:
    event = exchange(stream=True).error_event(Fault("busy", status=503, code="no_engine"))
    name, data, *rest = event.decode().split("\n")
    assert (name, rest) == ("event: error", ["", ""])
    body = json.loads(data.removeprefix("data: "))
    assert body["error"] == {"type": "overloaded_error", "message": "busy"}


def test_more_tools_than_a_context_holds_are_refused_as_the_vendor_refuses_a_list() -> None:
    tools = [TOOL | {"name": f"run{number}"} for number in range(1025)]
    assert len(parse(tools=tools[:1024]).tools) == 1024
    with pytest.raises(BadRequest, match=r"tools: List should have at most 1024 items"):
        parse(tools=tools * 10)
