"""OpenAI's Responses API: what is asked for, and what is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gyre.core.messages import Message, ToolCall
from gyre.proxy.apis.responses import Responses, ResponsesExchange
from gyre.proxy.apis.responses_reasoning import seal
from gyre.proxy.requests import BadRequest, Request, Sampling

SAMPLING = Sampling(temperature=1.0, max_new_tokens=64)
NAMESPACE = {
    "type": "namespace",
    "name": "agents",
    "description": "Sub-agents.",
    "tools": [
        {"type": "function", "name": "spawn", "description": "Start one.", "strict": False},
        {"type": "function", "name": "wait", "parameters": {"type": "object", "properties": {}}},
    ],
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: LINE"},
}


def exchange(**fields: Any) -> ResponsesExchange:
    body = orjson.dumps({"model": "m", "input": "hi"} | fields)
    return Responses().parse(body, {}, SAMPLING)


def parse(**fields: Any) -> Request:
    return exchange(**fields).request


def message(role: str, *texts: str, kind: str = "input_text") -> dict[str, Any]:
    parts = [{"type": kind, "text": text} for text in texts]
    return {"type": "message", "role": role, "content": parts}


def call(number: int, **fields: Any) -> dict[str, Any]:
    item = {"type": "function_call", "call_id": f"call_{number}", "name": "run", "arguments": "{}"}
    return item | fields


def output(number: int, given: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": given}


def test_a_string_is_a_users_message_after_the_instructions() -> None:
    assert parse(instructions="be brief").messages == (
        Message(role="system", content="be brief"),
        Message(role="user", content="hi"),
    )
    assert parse(instructions="").messages == (Message(role="user", content="hi"),)


def test_input_messages_keep_their_text_blocks() -> None:
    items = [
        message("developer", "one"),
        message("user", "two", "three"),
        {"role": "user", "content": "four"},
        output(1, "five"),
        output(2, [{"type": "input_text", "text": "six"}, {"type": "input_text", "text": "seven"}]),
    ]
    assert parse(input=items).messages == (
        Message(role="system", content="one"),
        Message(role="user", content="two\nthree", blocks=("two", "three")),
        Message(role="user", content="four"),
        Message(role="tool", content="five", tool_call_id="call_1"),
        Message(role="tool", content="six\nseven", blocks=("six", "seven"), tool_call_id="call_2"),
    )


def test_the_items_of_a_turn_are_one_message() -> None:
    said = message("assistant", "on it", kind="output_text")
    thought = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": seal("hm")}
    items = [message("user", "go"), thought, said, call(1), call(2), output(1, ""), output(2, "")]
    turn = parse(input=items).messages[1]
    assert turn == Message(
        role="assistant",
        content="on it",
        reasoning="hm",
        tool_calls=(
            ToolCall(id="call_1", name="run", arguments="{}"),
            ToolCall(id="call_2", name="run", arguments="{}"),
        ),
    )


def test_a_turn_ends_where_the_next_one_begins() -> None:
    said = message("assistant", "a", kind="output_text")
    thought = {"type": "reasoning", "id": "rs", "summary": []}
    texts = [item.content for item in parse(input=[said, said]).messages]
    assert texts == ["a", "a"]
    assert len(parse(input=[said, call(1), said]).messages) == 2
    assert len(parse(input=[call(1), thought, call(2)]).messages) == 2
    assert len(parse(input=[thought, thought, call(2)]).messages) == 1


def test_arguments_are_kept_byte_for_byte_even_when_they_are_no_json() -> None:
    for text in ('{"a":  1.0, "b": "\\u00e9"}', "{broken", ""):
        [turn] = parse(input=[call(1, arguments=text)]).messages
        assert turn.tool_calls[0].arguments == text


def test_functions_are_shown_with_name_description_and_parameters() -> None:
    schema = {"type": "object", "properties": {"cmd": {"type": "string"}}}
    tool = {
        "type": "function",
        "strict": False,
        "parameters": schema,
        "name": "run",
        "description": "Runs.",
    }
    [shown] = parse(tools=[tool]).tools
    expected = {"name": "run", "description": "Runs.", "parameters": schema}
    assert shown == {"type": "function", "function": expected}


def test_a_namespaces_functions_are_named_after_it() -> None:
    first, second = parse(tools=[NAMESPACE]).tools
    assert first["function"] == {
        "name": "agents.spawn",
        "description": "Sub-agents.\n\nStart one.",
    }
    assert second["function"]["name"] == "agents.wait"
    assert "description" not in second["function"]
    [turn] = parse(input=[call(1, namespace="agents", name="wait")]).messages
    assert turn.tool_calls[0].name == "agents.wait"


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    asked = parse(tools=[PATCH])
    [shown] = asked.tools
    [(name, parameter)] = shown["function"]["parameters"]["properties"].items()
    assert (name, parameter["type"]) == ("input", "string")
    assert "start: LINE" in parameter["description"]
    assert asked.overridden == ("tools.format",)
    item = {"type": "custom_tool_call", "call_id": "call_1", "name": "apply_patch", "input": 'é"\n'}
    [turn] = parse(input=[item]).messages
    [made] = turn.tool_calls
    assert (made.name, orjson.loads(made.arguments)) == ("apply_patch", {"input": 'é"\n'})


def test_tools_that_the_vendor_runs_are_left_out_and_named() -> None:
    asked = parse(tools=[{"type": "web_search", "external_web_access": True}, PATCH])
    assert [tool["function"]["name"] for tool in asked.tools] == ["apply_patch"]
    assert asked.overridden == ("tools.web_search", "tools.format")


def test_what_is_not_obeyed_is_named() -> None:
    assert parse(
        temperature=1, top_p=1.0, max_output_tokens=64, store=False, truncation="disabled",
        tool_choice="auto", parallel_tool_calls=True, reasoning={"effort": None}, text={},
        prompt_cache_key="k", client_metadata={"a": "b"}, include=["reasoning.encrypted_content"],
        metadata={}, user="u",
    ).overridden == ()  # fmt: skip
    asked = parse(
        temperature=0.2, top_p=0.9, max_output_tokens=5, store=True, truncation="auto",
        tool_choice="required", parallel_tool_calls=False, max_tool_calls=1, top_logprobs=3,
        reasoning={"effort": "high", "summary": "auto"}, text={"verbosity": "low"},
        tools=[{"type": "function", "name": "f", "strict": True}],
    )  # fmt: skip
    assert set(asked.overridden) == {
        "temperature", "top_p", "max_output_tokens", "store", "truncation", "tool_choice",
        "parallel_tool_calls", "max_tool_calls", "top_logprobs", "reasoning.effort",
        "reasoning.summary", "text.verbosity", "tools.strict",
    }  # fmt: skip


def test_what_the_client_wants_is_passed_on() -> None:
    asked = parse(
        stream=True, tool_choice="none", include=["message.output_text.logprobs"], model="gpt"
    )
    assert (asked.stream, asked.tool_calls, asked.logprobs) == (True, False, True)
    assert asked.model == "gpt"
    plain = parse()
    assert (plain.stream, plain.tool_calls, plain.logprobs) == (False, True, False)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"previous_response_id": "r"}, "previous_response_not_found", "previous_response_id"),
        ({"conversation": "c"}, "unsupported_parameter", "conversation"),
        ({"prompt": {"id": "p"}}, "unsupported_parameter", "prompt"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"text": {"format": {"type": "json_schema"}}}, "unsupported_parameter", "text.format"),
        ({"text": {"format": {"type": "json_object"}}}, "unsupported_parameter", "text.format"),
        ({"text": "plain"}, "invalid_type", "text"),
        ({"input": None}, "missing_required_parameter", "input"),
        ({"input": []}, "empty_array", "input"),
        ({"input": {}}, "invalid_type", "input"),
        ({"input": [3]}, "invalid_type", "input[0]"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "unsupported_parameter", "input[0]"),
        ({"input": [{"id": "m"}]}, "unsupported_parameter", "input[0]"),
        ({"input": [{"type": "mcp_call"}]}, "invalid_value", "input[0].type"),
        ({"input": [{}]}, "invalid_value", "input[0].type"),
        ({"input": [{"role": "nobody", "content": ""}]}, "invalid_value", "input[0].role"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
        ({"input": [message("user", "a", kind="video")]}, "invalid_value",
         "input[0].content[0].type"),
        ({"input": [call(1), call(1)]}, "invalid_value", "input[1].call_id"),
        ({"input": [call(1, name=3)]}, "invalid_type", "input[0].name"),
        ({"input": [call(1, namespace=3)]}, "invalid_type", "input[0].namespace"),
        ({"input": [call(1, arguments=None)]}, "missing_required_parameter",
         "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": ""}]},
         "missing_required_parameter", "input[0].call_id"),
        ({"instructions": 3}, "invalid_type", "instructions"),
        ({"model": ["m"]}, "invalid_type", "model"),
        ({"stream": "yes"}, "invalid_type", "stream"),
        ({"temperature": "hot"}, "invalid_type", "temperature"),
        ({"reasoning": "much"}, "invalid_type", "reasoning"),
        ({"tools": {}}, "invalid_type", "tools"),
        ({"tools": [{"type": "telepathy"}]}, "invalid_value", "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].name"),
        ({"tools": [{"type": "function", "name": "x" * 129}]}, "invalid_type", "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, "invalid_type",
         "tools[0].parameters"),
        ({"tools": [{"type": "custom", "name": "f"}, {"type": "function", "name": "f"}]}, None,
         "tools"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [NAMESPACE]}]}, "invalid_value",
         "tools[0].tools[0].type"),
        ({"tools": [{"type": "function", "name": f"f{n}"} for n in range(1025)]},
         "array_above_max_length", "tools"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_with_the_field_at_fault(
    fields: dict[str, Any], code: str | None, param: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(**fields)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, param)


@pytest.mark.parametrize("field", ["content", "output"])
def test_images_are_refused_in_openais_words(field: str) -> None:
    image = [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]
    item = {"role": "user"} if field == "content" else output(1, "")
    with pytest.raises(BadRequest, match="only supported by certain models") as refused:
        parse(input=[item | {field: image}])
    assert refused.value.param == f"input[0].{field}[0].type"


def test_a_request_in_codexs_form_is_served() -> None:
    """Its keys, ids and item order as Codex 0.171.0 sends them after one turn of two tools."""
    items = [
        message("developer", "rules") | {"id": "msg_1"},
        message("user", "<environment_context>") | {"id": "msg_2"},
        message("user", "go") | {"id": "msg_3"},
        {
            "type": "reasoning",
            "id": "rs_0",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
            "encrypted_content": seal("hm"),
        },
        message("assistant", "let me", kind="output_text") | {"id": "msg_0", "status": "completed"},
        call(1, id="fc_1", status="completed", arguments="{broken"),
        call(2, id="fc_2", status="completed", name="spawn", namespace="agents"),
        output(1, "failed to parse") | {"id": "fco_1"},
        output(2, "{}") | {"id": "fco_2"},
        message("user", "<subagent_notification>") | {"id": "msg_4"},
    ]
    fields: dict[str, Any] = {
        "stream": True,
        "store": False,
        "tool_choice": "auto",
        "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread",
        "client_metadata": {"thread_id": "thread"},
    }
    function = {"type": "function", "name": "run", "strict": False, "parameters": {}}
    tools = [function, NAMESPACE, {"type": "web_search", "external_web_access": True}]
    asked = parse(input=items, tools=tools, parallel_tool_calls=True, **fields)
    assert asked.overridden == ("reasoning.summary", "tools.web_search")
    assert [item.role for item in asked.messages] == [
        "system", "user", "user", "assistant", "tool", "tool", "user",
    ]  # fmt: skip
    assert [made.name for made in asked.messages[3].tool_calls] == ["run", "agents.spawn"]
    summary = parse(input=items, tools=[], parallel_tool_calls=False, **fields)
    assert summary.messages == asked.messages
    assert (summary.tools, summary.overridden) == ((), ("parallel_tool_calls", "reasoning.summary"))
