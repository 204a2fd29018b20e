"""Answers of Anthropic's Messages API, whole and as streams, and their way back."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.core.messages import Message
from gyre.proxy.apis.base import Opened
from gyre.proxy.apis.messages import Messages, MessagesExchange, counted, message_id
from gyre.proxy.requests import Answer, AnswerCall, Sampling

USER = [{"role": "user", "content": "hi"}]
SAMPLING = Sampling(temperature=1.0, max_new_tokens=64)
THINKING = {"type": "adaptive"}
CALL_ID = "call_0123456789abcdef01234567"


def exchange(**fields: Any) -> MessagesExchange:
    body = orjson.dumps({"model": "m", "max_tokens": 64, "messages": USER} | fields)
    return Messages().parse(body, {}, SAMPLING)


def answer(**fields: Any) -> Answer:
    given: dict[str, Any] = {
        "call": "job-g0-e0-c00000",
        "created": 1,
        "content": "hello",
        "reasoning": None,
        "tool_calls": (),
        "finish_reason": "stop",
        "prompt_tokens": 30,
        "completion_tokens": 2,
        "cached_tokens": 10,
    }
    return Answer(**(given | fields))


def called(arguments: str = '{"a": 1}', identity: str = CALL_ID) -> AnswerCall:
    return AnswerCall(id=identity, name="run", arguments=arguments)


def whole(given: Answer, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(exchange(**fields).body(given))
    return found


def streamed(given: Answer, *, num_idle: int = 0, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream that was idle so many times, each named as its data says."""
    asked = exchange(stream=True, **fields)
    opened = Opened(call=given.call, created=given.created, num_input_tokens=given.prompt_tokens)
    idle = [asked.idle(opened) for _ in range(num_idle)]
    data = b"".join([asked.opening(opened), *idle, *asked.events(given)])
    events = []
    for event in data.decode().removesuffix("\n\n").split("\n\n"):
        name, _, line = event.partition("\n")
        events.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a strict client makes of a stream: one open block at a time, indices in order."""
    first, *middle, ending, last = events
    assert (first["type"], ending["type"], last["type"]) == (
        "message_start", "message_delta", "message_stop",
    )  # fmt: skip
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    is_open, inputs = False, ""
    for event in middle:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                is_open, inputs = True, ""
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(message["content"]) - 1
                if message["content"][-1]["type"] == "tool_use":
                    message["content"][-1]["input"] = json.loads(inputs)
                is_open = False
            case _:
                assert is_open
                assert event["index"] == len(message["content"]) - 1
                block, delta = message["content"][-1], event["delta"]
                kind, _, suffix = delta["type"].rpartition("_")
                assert suffix == "delta"
                if kind == "input_json":
                    inputs += delta["partial_json"]
                else:
                    block[kind] += delta[kind]
    assert not is_open
    message |= ending["delta"]
    message["usage"] |= ending["usage"]
    return message


def test_an_answer_is_a_message() -> None:
    found = whole(answer(tool_calls=(called(),), finish_reason="tool_calls"))
    assert found == {
        "id": message_id("job-g0-e0-c00000"),
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "text", "text": "hello"},
            {
                "type": "tool_use",
                "id": "toolu_0123456789abcdef01234567",
                "name": "run",
                "input": {"a": 1},
            },
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 20,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 10,
            "output_tokens": 2,
        },
    }


def test_every_call_has_a_message_id_of_its_own() -> None:
    ids = {whole(answer(call=f"job-g0-e0-c{index:05d}"))["id"] for index in range(50)}
    assert len(ids) == 50
    assert all(identity.startswith("msg_") for identity in ids)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("tool_calls", "tool_use")],
)
def test_a_turns_end_has_the_vendors_name(finish: str, reason: str) -> None:
    assert whole(answer(finish_reason=finish))["stop_reason"] == reason


def test_thinking_is_shown_as_far_as_the_client_asked_for_it() -> None:
    thought = answer(reasoning="hm")
    assert [block["type"] for block in whole(thought)["content"]] == ["text"]
    shown, said = whole(thought, thinking=THINKING)["content"]
    assert (shown["type"], shown["thinking"], said["text"]) == ("thinking", "hm", "hello")
    hidden, _ = whole(thought, thinking=THINKING | {"display": "omitted"})["content"]
    assert (hidden["thinking"], hidden["signature"]) == ("", shown["signature"])
    assert shown["signature"]
    assert whole(answer(), thinking=THINKING)["content"][0]["type"] == "text"
    assert exchange(thinking={"type": "disabled"}).thinking == "hidden"


@pytest.mark.parametrize("blank", ["", " \n\n"])
def test_blank_text_is_left_out_unless_it_is_the_whole_turn(blank: str) -> None:
    calls = (called(),)
    assert [b["type"] for b in whole(answer(content=blank, tool_calls=calls))["content"]] == [
        "tool_use"
    ]
    thought = answer(content=blank, reasoning="hm")
    assert [b["type"] for b in whole(thought, thinking=THINKING)["content"]] == ["thinking"]
    assert whole(answer(content=blank))["content"] == [{"type": "text", "text": blank}]
    assert whole(thought)["content"] == [{"type": "text", "text": blank}]


ANSWERS = [
    answer(),
    answer(content=""),
    answer(content="", reasoning="hm", finish_reason="length"),
    answer(content="\n\n", tool_calls=(called(),), finish_reason="tool_calls"),
    answer(
        reasoning="hm",
        tool_calls=(called(), called('{"b":"\\u00e9 1.0"}', "call_" + "f" * 24)),
        finish_reason="tool_calls",
    ),
]


@pytest.mark.parametrize("given", ANSWERS)
@pytest.mark.parametrize("fields", [{}, {"thinking": THINKING}])
def test_a_stream_says_the_same_as_the_whole_answer(given: Answer, fields: dict[str, Any]) -> None:
    assert assembled(streamed(given, **fields)) == whole(given, **fields)


@pytest.mark.parametrize("given", ANSWERS)
@pytest.mark.parametrize("fields", [{}, {"thinking": THINKING}])
def test_a_stream_that_was_idle_differs_by_an_empty_text_at_most(
    given: Answer, fields: dict[str, Any]
) -> None:
    events = streamed(given, num_idle=3, **fields)
    idle = [event for event in events if event.get("delta") == {"type": "text_delta", "text": ""}]
    assert len(idle) >= 3
    found, expected = assembled(events), whole(given, **fields)
    if expected["content"][0]["type"] != "text":
        assert found["content"].pop(0) == {"type": "text", "text": ""}
    assert found == expected


def test_a_call_goes_out_with_its_arguments_as_they_were_sampled() -> None:
    arguments = '{"n": 12345678901234567890123, "f": 1.0,  "s": "\\u00e9"}'
    given = answer(tool_calls=(called(arguments),), finish_reason="tool_calls")
    assert arguments.encode() in exchange().body(given)
    assert json.dumps(arguments).encode() in b"".join(exchange(stream=True).events(given))


def test_a_stream_names_its_input_at_once_and_counts_it_at_the_end() -> None:
    first, *_, ending, _ = streamed(answer())
    assert first["message"]["usage"]["input_tokens"] == 30
    assert ending["usage"]["input_tokens"] + ending["usage"]["cache_read_input_tokens"] == 30
    assert ending["usage"]["output_tokens"] == 2


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
texts = st.text(st.characters(codec="utf-8"), max_size=30)


@given(
    content=texts,
    reasoning=st.none() | texts,
    inputs=st.lists(st.dictionaries(texts, json_values, max_size=3), max_size=3),
    num_idle=st.integers(0, 2),
    stream=st.booleans(),
    thinking=st.booleans(),
)
def test_what_goes_out_comes_back_as_the_same_turn(
    content: str,
    reasoning: str | None,
    inputs: list[dict[str, Any]],
    num_idle: int,
    stream: bool,
    thinking: bool,
) -> None:
    calls = tuple(
        called(json.dumps(value, ensure_ascii=False), f"call_{index:024x}")
        for index, value in enumerate(inputs)
    )
    given = answer(content=content, reasoning=reasoning, tool_calls=calls)
    fields = {"thinking": THINKING} if thinking else {}
    message = (
        assembled(streamed(given, num_idle=num_idle, **fields))
        if stream
        else whole(given, **fields)
    )
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "x"}
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    said = {"role": "user", "content": [*results, {"type": "text", "text": "on"}]}
    echo = {"role": "assistant", "content": message["content"]}
    _, turn, *after = exchange(messages=[*USER, echo, said]).request.messages
    assert [(call.id, call.name, call.arguments) for call in turn.tool_calls] == [
        (call.id, call.name, call.arguments) for call in calls
    ]
    assert turn.content.strip() == content.strip()
    if thinking:
        assert turn.reasoning == (reasoning or None)
    assert [item.tool_call_id for item in after[:-1]] == [call.id for call in calls]
    assert after[-1] == Message(role="user", content="on")


def test_a_count_is_the_vendors() -> None:
    assert orjson.loads(counted(7)) == {"input_tokens": 7}
