"""OpenAI's chat format, in and out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gyre.core.messages import Message, ToolCall
from gyre.proxy.apis.base import Opened
from gyre.proxy.apis.chat import Chat, ChatExchange, completion_id
from gyre.proxy.requests import (
    Answer,
    AnswerCall,
    BadRequest,
    ContextFull,
    Fault,
    Request,
    Sampling,
    TokenLogprob,
)

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "run", "arguments": '{"a":  1}'},
}
USER = [{"role": "user", "content": "hi"}]
SAMPLING = Sampling(temperature=1.0, max_new_tokens=64)


def exchange(**fields: Any) -> ChatExchange:
    body = orjson.dumps({"model": "m", "messages": USER} | fields)
    return Chat().parse(body, {}, SAMPLING)


def parse(**fields: Any) -> Request:
    return exchange(**fields).request


def answered(given: Answer) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(exchange().body(given))
    return found


def answer(**fields: Any) -> Answer:
    given: dict[str, Any] = {
        "call": "job-g0-e0-c00000",
        "created": 1,
        "content": "hello",
        "reasoning": None,
        "tool_calls": (),
        "finish_reason": "stop",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 1,
    }
    return Answer(**(given | fields))


def test_sampling_parameters_of_the_client_are_named_not_obeyed() -> None:
    assert parse(temperature=1.0, top_p=1, max_tokens=64, presence_penalty=0).overridden == ()
    asked = parse(
        temperature=0.0, top_p=0.9, top_k=20, max_completion_tokens=5, stop=["x"], seed=3,
        tool_choice="required", logit_bias={"3": 1}, top_logprobs=5,
    )  # fmt: skip
    assert set(asked.overridden) == {
        "temperature", "top_p", "top_k", "max_completion_tokens", "stop", "seed", "tool_choice",
        "logit_bias", "top_logprobs",
    }  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"guided_regex": "a+"},
        {"functions": [{"name": "f"}]},
        {"n": 3},
        {"messages": "hi"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
        {"messages": [{"role": "user", "content": 3}]},
        {"function_call": "auto"},
        {"modalities": ["audio"]},
        {"audio": {"voice": "v"}},
        {"messages": []},
        {"messages": [{"role": "function", "name": "f", "content": ""}]},
        {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": ""}}]},
        {"messages": [{"role": "tool", "content": "no id"}]},
        {"messages": [{"role": "assistant", "tool_calls": [CALL, CALL]}]},
        {"messages": [{"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f"}}]}]},
        {"messages": [{"role": "assistant", "content": "", "reasoning_content": 3}]},
        {"tools": [{"type": "function"}]},
        {"tools": [{"type": "function", "function": {"name": "x" * 200}}]},
        {"tools": {}},
        {"stream": "yes"},
        {"logprobs": 1},
        {"temperature": "hot"},
        {"stream_options": []},
        {"model": 3},
    ],
)
def test_what_cannot_be_served_is_a_bad_request(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(**fields)
    assert refused.value.status == 400
    assert refused.value.param is not None


def test_images_are_refused_in_openais_words() -> None:
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(BadRequest, match="only supported by certain models") as refused:
        parse(messages=[{"role": "user", "content": content}])
    assert refused.value.param == "messages[0].content[1].type"


def test_messages_keep_their_text_blocks_and_a_developer_is_the_system() -> None:
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert parse(
        messages=[
            {"role": "developer", "content": "rules"},
            {"role": "user", "content": blocks, "name": "u"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": None, "refusal": "never"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": blocks[:1]},
        ]
    ).messages == (
        Message(role="system", content="rules"),
        Message(role="user", content="one\ntwo", blocks=("one", "two")),
        Message(role="assistant", content="no"),
        Message(role="assistant", content="never"),
        Message(
            role="assistant",
            content="",
            tool_calls=(ToolCall(id="call_1", name="run", arguments='{"a":  1}'),),
        ),
        Message(role="tool", content="one", tool_call_id="call_1"),
    )


def test_tools_are_shown_with_name_description_and_parameters() -> None:
    function = {"strict": True, "parameters": {"type": "object"}, "name": "f", "description": "d"}
    asked = parse(tools=[{"type": "function", "function": function}])
    assert [list(tool["function"]) for tool in asked.tools] == [
        ["name", "description", "parameters"]
    ]
    assert asked.overridden == ("tools.strict",)


def test_custom_tools_go_in_as_functions_and_out_as_themselves() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
    tool = {"type": "custom", "custom": {"name": "sh", "description": "d", "format": grammar}}
    asked = exchange(tools=[tool])
    [shown] = asked.request.tools
    parameter = shown["function"]["parameters"]["properties"]["input"]
    assert parameter["description"].endswith("regex grammar:\na+")
    call = AnswerCall(id="call_1", name="sh", arguments='{"input": "ls\\n"}')
    body = orjson.loads(asked.body(answer(content="", tool_calls=(call,))))
    message = body["choices"][0]["message"]
    assert message["tool_calls"] == [
        {"id": "call_1", "type": "custom", "custom": {"name": "sh", "input": "ls\n"}}
    ]
    [echo] = parse(messages=[message]).messages
    assert echo.tool_calls == (ToolCall(id="call_1", name="sh", arguments='{"input":"ls\\n"}'),)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"content": ""},
        {"content": "é\n ", "reasoning": "hm"},
        {
            "content": "",
            "tool_calls": (
                AnswerCall(id="call_1", name="run", arguments='{"a":  1.0}'),
                AnswerCall(id="call_2", name="no.such", arguments="{}"),
            ),
        },
    ],
)
def test_an_answer_comes_back_as_the_turn_that_it_was(fields: dict[str, Any]) -> None:
    given = answer(**fields)
    [turn] = parse(messages=[answered(given)["choices"][0]["message"]]).messages
    assert turn == Message(
        role="assistant",
        content=given.content,
        reasoning=given.reasoning,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.name, arguments=call.arguments)
            for call in given.tool_calls
        ),
    )


def test_a_body_that_is_no_json_object_is_a_bad_request() -> None:
    for body in (b"", b"[]", b"{", b'"x"'):
        with pytest.raises(BadRequest):
            Chat().parse(body, {}, SAMPLING)


def test_text_response_format_is_the_default_and_served() -> None:
    assert parse(response_format={"type": "text"}).messages[0].content == "hi"


def test_an_answer_with_tool_calls_has_null_content() -> None:
    calls = (AnswerCall(id="call_1", name="run", arguments='{"a": 1}'),)
    given = answer(content="", tool_calls=calls, finish_reason="tool_calls")
    body = answered(given)
    message = body["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "run", "arguments": '{"a": 1}'}
    assert body["usage"]["total_tokens"] == 5
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_an_empty_answer_is_an_empty_string() -> None:
    body = answered(answer(content=""))
    assert body["choices"][0]["message"]["content"] == ""


def test_a_stream_says_the_same_as_the_whole_answer() -> None:
    calls = (
        AnswerCall(id="call_1", name="run", arguments="{}"),
        AnswerCall(id="call_2", name="walk", arguments="{}"),
    )
    given = answer(tool_calls=calls, reasoning="hm", finish_reason="tool_calls")
    asked = exchange(stream=True, stream_options={"include_usage": True})
    opened = Opened(call=given.call, created=given.created, num_input_tokens=3)
    events = [asked.opening(opened), asked.idle(opened), *asked.events(given)]
    assert events[-1] == b"data: [DONE]\n\n"
    chunks = [orjson.loads(event.removeprefix(b"data: ")) for event in events[:-1]]
    assert {chunk["id"] for chunk in chunks} == {completion_id(given.call)}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "hello"
    assert [call["id"] for d in deltas for call in d.get("tool_calls", ())] == ["call_1", "call_2"]
    assert [call["index"] for d in deltas for call in d.get("tool_calls", ())] == [0, 1]
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert {chunk["usage"] for chunk in chunks[:-1]} == {None}
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_logprobs_come_when_they_were_asked_for() -> None:
    given = answer(logprobs=(TokenLogprob(token="é", logprob=-0.5),))
    body = answered(given)
    [entry] = body["choices"][0]["logprobs"]["content"]
    assert entry == {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}
    assert answered(answer())["choices"][0]["logprobs"] is None
    for content in ("é", ""):
        asked = exchange(stream=True, logprobs=True)
        first, *_ = asked.events(answer(content=content, logprobs=given.logprobs))
        chunk = orjson.loads(first.removeprefix(b"data: "))
        assert chunk["choices"][0]["logprobs"]["content"] == [entry]
        assert "usage" not in chunk


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (503, "server_error")],
)
def test_errors_have_openais_shape(status: int, kind: str) -> None:
    reply = Chat().error(Fault("no", status=status, code="c"))
    assert reply.status == status
    assert orjson.loads(reply.body) == {
        "error": {"message": "no", "type": kind, "param": None, "code": "c"}
    }


def test_overload_is_a_503_that_says_when_to_ask_again() -> None:
    reply = Chat().error(Fault("busy", status=529, code="overloaded", retry_after_s=1.2))
    assert (reply.status, reply.headers) == (503, {"retry-after": "2"})


def test_a_full_context_is_told_in_openais_words() -> None:
    reply = Chat().error(ContextFull(num_tokens=9, context_tokens=8))
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (400, "context_length_exceeded")
    assert error["message"].startswith("This model's maximum context length is 8 tokens.")
