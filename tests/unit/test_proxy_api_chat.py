"""OpenAI's chat format, in and out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

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
        {"tools": [{"type": "function"}]},
        {"tools": {}},
    ],
)
def test_what_cannot_be_served_is_a_bad_request(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        parse(**fields)


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
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_logprobs_come_when_they_were_asked_for() -> None:
    given = answer(logprobs=(TokenLogprob(token="é", logprob=-0.5),))
    body = answered(given)
    [entry] = body["choices"][0]["logprobs"]["content"]
    assert entry == {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}
    assert answered(answer())["choices"][0]["logprobs"] is None


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


def test_a_full_context_is_told_in_openais_words() -> None:
    reply = Chat().error(ContextFull(num_tokens=9, context_tokens=8))
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (400, "context_length_exceeded")
    assert error["message"].startswith("This model's maximum context length is 8 tokens.")
