"""A turn in the Responses API's form: whole, streamed, and back again as Codex echoes it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import orjson
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gyre.core.messages import Message, ToolCall
from gyre.proxy.apis.base import Opened
from gyre.proxy.apis.responses import Responses, ResponsesExchange
from gyre.proxy.requests import Answer, AnswerCall, Sampling, TokenLogprob

SAMPLING = Sampling(temperature=0.7, max_new_tokens=64)
TOOLS = [
    {"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "apply_patch"},
    {
        "type": "namespace",
        "name": "agents",
        "description": "",
        "tools": [{"type": "function", "name": "spawn"}, {"type": "custom", "name": "tell"}],
    },
]
CALLS = (
    AnswerCall(id="call_0", name="run", arguments='{"cmd":  "é", "n": 1.0}'),
    AnswerCall(id="call_1", name="apply_patch", arguments='{"input": "*** Begin\\n"}'),
    AnswerCall(id="call_2", name="agents.spawn", arguments="{}"),
    AnswerCall(id="call_3", name="agents.tell", arguments='{"input": ""}'),
    AnswerCall(id="call_4", name="no.such", arguments="{}"),
)
THOUGHT_AND_CALLS = {
    "reasoning": "hm\n",
    "tool_calls": CALLS,
    "finish_reason": "tool_calls",
}
TURNS: list[dict[str, Any]] = [
    {},
    THOUGHT_AND_CALLS,
    THOUGHT_AND_CALLS | {"content": ""},
    {"content": "", "tool_calls": CALLS[:1], "finish_reason": "tool_calls"},
    {"content": "", "reasoning": "only this"},
    {"content": ""},
    {"content": "half a sen", "finish_reason": "length"},
]


def exchange(**fields: Any) -> ResponsesExchange:
    body = {"model": "m", "input": "hi", "tools": TOOLS} | fields
    return Responses().parse(orjson.dumps(body), {}, SAMPLING)


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


def whole(given: Answer, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(exchange(**fields).body(given))
    return body


def decoded(stream: bytes) -> list[dict[str, Any]]:
    events = []
    for frame in stream.decode().split("\n\n")[:-1]:
        kind, data = frame.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        events.append(event)
    return events


def streamed(given: Answer, num_idle: int = 0) -> list[dict[str, Any]]:
    asked = exchange(stream=True)
    opened = Opened(call=given.call, created=given.created, num_input_tokens=3)
    stream = asked.opening(opened)
    for _ in range(num_idle):
        stream += asked.idle(opened)
    return decoded(stream + b"".join(asked.events(given)))


def echo_of(items: list[dict[str, Any]]) -> tuple[Message, ...]:
    """What becomes of output items that come back as Codex sends them."""
    echoed = [{"type": "message", "role": "user", "content": "hi"}, *deepcopy(items)]
    for item in echoed:
        if item["type"] == "reasoning":
            item.pop("status")
    return exchange(input=echoed).request.messages[1:]


@pytest.mark.parametrize("fields", TURNS)
def test_an_answer_comes_back_as_one_message_with_its_ids(fields: dict[str, Any]) -> None:
    given = answer(**fields)
    [turn] = echo_of(whole(given)["output"])
    assert turn.role == "assistant"
    assert (turn.content, turn.reasoning) == (given.content, given.reasoning)
    assert [(call.id, call.name) for call in turn.tool_calls] == [
        (call.id, call.name) for call in given.tool_calls
    ]
    for echoed, sent in zip(turn.tool_calls, given.tool_calls, strict=True):
        assert orjson.loads(echoed.arguments) == orjson.loads(sent.arguments)


def test_a_functions_arguments_come_back_byte_for_byte() -> None:
    given = answer(tool_calls=CALLS[:1])
    [turn] = echo_of(whole(given)["output"])
    sent = CALLS[0]
    assert turn.tool_calls == (ToolCall(id=sent.id, name="run", arguments=sent.arguments),)


def test_calls_go_out_in_their_tools_own_form() -> None:
    calls = whole(answer(tool_calls=CALLS, content=""))["output"]
    assert [(item["type"], item["name"], item.get("namespace")) for item in calls] == [
        ("function_call", "run", None),
        ("custom_tool_call", "apply_patch", None),
        ("function_call", "spawn", "agents"),
        ("custom_tool_call", "tell", "agents"),
        ("function_call", "no.such", None),
    ]
    assert calls[1]["input"] == "*** Begin\n"
    assert len({item["id"] for item in calls}) == len(calls)


@pytest.mark.parametrize("arguments", ['{"text": "x"}', '{"input": 3}', '{"input": "x", "y": 1}'])
def test_a_custom_call_that_the_model_made_otherwise_is_not_repaired(arguments: str) -> None:
    call = AnswerCall(id="call_1", name="apply_patch", arguments=arguments)
    [item] = whole(answer(tool_calls=(call,), content=""))["output"]
    assert item["input"] == arguments


@pytest.mark.parametrize("fields", TURNS)
def test_a_stream_says_the_same_as_the_whole_answer(fields: dict[str, Any]) -> None:
    given = answer(**fields)
    events = streamed(given, num_idle=2)
    expected = whole(given)
    assert events[-1]["response"] == expected
    assert events[-1]["type"] == f"response.{expected['status']}"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == expected["output"]
    texts = {"output_text": "message", "reasoning_text": "reasoning"}
    for name, kind in texts.items():
        deltas = [e["delta"] for e in events if e["type"] == f"response.{name}.delta"]
        parts = [i["content"][0]["text"] for i in expected["output"] if i["type"] == kind]
        assert "".join(deltas) == "".join(parts)
    payloads = [
        e["delta"] for e in events if e["type"].endswith(("arguments.delta", "input.delta"))
    ]
    assert payloads == [
        item.get("arguments", item.get("input"))
        for item in expected["output"]
        if item["type"].endswith("_call")
    ]


def test_events_come_in_the_vendors_order_and_are_numbered() -> None:
    events = streamed(answer(reasoning="hm", tool_calls=CALLS[:2]), num_idle=1)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]

    def item(name: str, middle: list[str]) -> list[str]:
        steps = ["output_item.added", *middle, "output_item.done"]
        return [f"response.{step.format(name)}" for step in steps]

    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.in_progress",
        *item("reasoning_text", text),
        *item("output_text", text),
        *item("function_call_arguments", ["{}.delta", "{}.done"]),
        *item("custom_tool_call_input", ["{}.delta", "{}.done"]),
        "response.completed",
    ]


@pytest.mark.parametrize("fields", TURNS)
def test_the_vendors_own_models_take_every_event_and_answer(fields: dict[str, Any]) -> None:
    events = TypeAdapter(ResponseStreamEvent)
    for event in streamed(answer(**fields), num_idle=1):
        events.validate_python(event)
    Response.model_validate(whole(answer(**fields)))


def test_added_items_are_empty_and_of_the_same_id() -> None:
    events = streamed(answer(reasoning="hm", tool_calls=CALLS[:2]))
    added = [e["item"] for e in events if e["type"] == "response.output_item.added"]
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert [item["id"] for item in added] == [item["id"] for item in done]
    for item in added:
        assert item["status"] == "in_progress"
        assert not any(item.get(field) for field in ("content", "arguments", "input"))


def test_ids_derive_from_the_call_alone() -> None:
    first, again = whole(answer()), whole(answer(content="other"))
    other = whole(answer(call="job-g0-e0-c00001"))
    assert first["id"] == again["id"] != other["id"]
    assert first["output"][0]["id"] == again["output"][0]["id"] != other["output"][0]["id"]
    assert streamed(answer())[0]["response"]["id"] == first["id"]


def test_a_cut_turn_is_incomplete_and_says_why() -> None:
    body = whole(answer(finish_reason="length"))
    assert (body["status"], body["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert body["output"][0]["status"] == "incomplete"


def test_usage_counts_cached_tokens() -> None:
    usage = whole(answer())["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (3, 2, 5)
    assert usage["input_tokens_details"]["cached_tokens"] == 1


def test_an_answer_repeats_what_was_asked_and_what_was_done() -> None:
    body = whole(answer(), instructions="be brief", metadata={"a": "b"}, temperature=0.1)
    assert (body["instructions"], body["metadata"]) == ("be brief", {"a": "b"})
    assert (body["temperature"], body["store"], body["tools"]) == (0.7, False, TOOLS)


def test_logprobs_are_with_the_text() -> None:
    given = answer(logprobs=(TokenLogprob(token="é", logprob=-0.5),))
    expected = [{"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}]
    assert whole(given)["output"][0]["content"][0]["logprobs"] == expected
    delta = next(e for e in streamed(given) if e["type"] == "response.output_text.delta")
    assert delta["logprobs"] == expected
