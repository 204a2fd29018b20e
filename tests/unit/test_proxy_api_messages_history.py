"""Histories as Anthropic's clients send them, to canonical messages."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.core.messages import Message, ToolCall
from gyre.proxy.apis.messages_history import (
    read_messages,
    read_system,
    shown_tool_id,
    tool_id,
)
from gyre.proxy.requests import BadRequest

CALL = "call_0123456789abcdef01234567"
SHOWN = "toolu_0123456789abcdef01234567"
BILLING = "x-anthropic-billing-header: cc_version=2.1.220.af1; cc_entrypoint=sdk-cli; cch=00000;"


def read(*messages: dict[str, Any], system: Any = None) -> tuple[Message, ...]:
    return (*read_system(system), *read_messages(list(messages))[0])


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str, **marks: Any) -> dict[str, Any]:
    return {"type": "text", "text": value} | marks


def tool_use(identity: str = SHOWN, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "Bash", "input": given}


def result(content: Any, identity: str = SHOWN, **marks: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": content} | marks


SAID = Message(role="user", content="go")


def turn(*blocks: dict[str, Any]) -> Message:
    """What is read of an assistant's turn of these blocks."""
    [_, found, _] = read(user("go"), assistant(*blocks), user("on"))
    return found


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (None, ()),
        ("", ()),
        ([], ()),
        ("Be brief.", ("Be brief.",)),
        ([text("Be brief.")], ("Be brief.",)),
        ([text(BILLING)], ()),
        (BILLING, ()),
        (f"{BILLING}\n\nBe brief.", ("Be brief.",)),
        ([text(BILLING), text("Be brief.", cache_control={"type": "ephemeral"})], ("Be brief.",)),
        ([text(BILLING), text("You are."), text("Be brief.")], ("You are.\nBe brief.",)),
    ],
)
def test_the_system_text_is_one_message_without_the_billing_block(
    system: Any, expected: tuple[str, ...]
) -> None:
    *found, said = read(user("go"), system=system)
    assert said == SAID
    assert [(message.role, message.content) for message in found] == [
        ("system", content) for content in expected
    ]


def test_the_billing_hash_never_reaches_a_prompt() -> None:
    other = BILLING.replace("af1", "3c9")
    one, two = (read(user("go"), system=[text(b), text("x")]) for b in (BILLING, other))
    assert one == two


def test_text_in_one_block_is_the_text_whatever_marks_it_has() -> None:
    marked = text("go", cache_control={"type": "ephemeral"}, citations=None)
    assert read(user([marked])) == read(user("go")) == (SAID,)


def test_blocks_next_to_each_other_are_one_message_that_knows_them() -> None:
    [found] = read(user([text("a\n"), text(""), text("b")]))
    assert found == Message(role="user", content="a\n\nb", blocks=("a\n", "b"))


def test_a_system_message_stays_where_it_is() -> None:
    found = read(user("go"), {"role": "system", "content": "<r>"}, user("on"))
    assert [message.role for message in found] == ["user", "system", "user"]
    blocks = {"role": "system", "content": [text("<r>")]}
    assert read(user("go"), blocks, user("on")) == found


def test_results_and_text_of_one_message_keep_their_order() -> None:
    other = "toolu_ffffffffffffffffffffffff"
    asked = assistant(tool_use(command="ls"), tool_use(other, command="pwd"))
    said = user([result("a"), result([text("b")], other), text("reminder"), text("go on")])
    _, _, first, second, last = read(user("go"), asked, said)
    assert (first.role, first.tool_call_id, first.content) == ("tool", CALL, "a")
    assert (second.role, second.tool_call_id, second.content) == ("tool", tool_id(other), "b")
    assert (last.role, last.blocks) == ("user", ("reminder", "go on"))


@pytest.mark.parametrize(
    ("block", "content", "blocks"),
    [
        (result("a"), "a", ()),
        (result([text("a")]), "a", ()),
        (result([text("a"), text("b")]), "a\nb", ("a", "b")),
        (result([]), "", ()),
        (result(None), "", ()),
        ({"type": "tool_result", "tool_use_id": SHOWN}, "", ()),
        (result("no such file", is_error=True), "no such file", ()),
        (result("", is_error=True), "Error", ()),
        (result("a", cache_control={"type": "ephemeral"}), "a", ()),
    ],
)
def test_a_tool_result_is_its_text(
    block: dict[str, Any], content: str, blocks: tuple[str, ...]
) -> None:
    *_, found = read(user("go"), assistant(tool_use()), user([block]))
    assert found == Message(role="tool", content=content, blocks=blocks, tool_call_id=CALL)


def test_ids_that_were_issued_come_back_as_they_are_in_the_log() -> None:
    assert shown_tool_id(CALL) == SHOWN
    assert tool_id(SHOWN) == CALL
    assert tool_id("call_1") == "call_1"
    foreign = {"toolu_01A09q90qw90lq917835lq9", "toolu_x", "x", "call_2"}
    assert len({tool_id(identity) for identity in foreign}) == len(foreign)


@pytest.mark.parametrize("marks", [{}, {"signature": ""}, {"signature": "another's"}])
def test_thinking_comes_back_with_any_signature(marks: dict[str, Any]) -> None:
    found = turn({"type": "thinking", "thinking": "hm"} | marks, text("so"))
    assert (found.reasoning, found.content) == ("hm", "so")


def test_a_turn_is_its_text_thinking_and_calls() -> None:
    found = turn(
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        text("I look.", cache_control={"type": "ephemeral"}),
        tool_use(command="ls", timeout=5),
    )
    arguments = '{"command": "ls", "timeout": 5}'
    assert found == Message(
        role="assistant",
        content="I look.",
        reasoning="hm",
        tool_calls=(ToolCall(id=CALL, name="Bash", arguments=arguments),),
    )


def test_a_turn_in_blocks_of_any_order_has_the_same_text_and_calls() -> None:
    other = "toolu_ffffffffffffffffffffffff"
    parts = [text("1"), tool_use(a=1), text("2"), tool_use(other, b=2), text("3")]
    reordered = [parts[0], parts[2], parts[4], parts[1], parts[3]]
    assert turn(*parts) == turn(*reordered)
    assert turn(*parts).blocks == ("1", "2", "3")


def test_assistant_messages_next_to_each_other_are_one_turn() -> None:
    apart = read(user("go"), assistant(text("1")), assistant(tool_use()), user([result("a")]))
    together = read(user("go"), assistant(text("1"), tool_use()), user([result("a")]))
    assert apart == together


@pytest.mark.parametrize("content", ["", [], [text("")]])
def test_an_empty_turn_is_empty_text(content: Any) -> None:
    _, found, _ = read(user("go"), {"role": "assistant", "content": content}, user("on"))
    assert found == Message(role="assistant", content="")


@pytest.mark.parametrize(
    ("emitted", "echoed"),
    [
        ('{"a":  "\\u00e9\\/"}', {"a": "é/"}),
        ('{"a": 1.0, "b": 1e2, "c": -0.0}', {"a": 1, "b": 100, "c": 0}),
        ('{"n": 12345678901234567890}', {"n": 12345678901234567000}),
        ('{"s": "\\ud800"}', {"s": "\ufffd"}),
        ('{"b": 1, "1": 2}', {"1": 2, "b": 1}),
        ('{"command": "cd /w && ls"}', {"command": "ls"}),
        ('{"offset": "1"}', {"offset": 1}),
        ("{broken", {"__unparsedToolInput": {"raw": "{broken", "len": 7}}),
    ],
)
def test_an_input_that_the_client_changed_keeps_the_calls_id(
    emitted: str, echoed: dict[str, Any]
) -> None:
    [call] = turn(tool_use(**echoed)).tool_calls
    assert (call.id, json.loads(call.arguments)) == (CALL, echoed)
    assert call.arguments != emitted


texts = st.text(max_size=12) | st.sampled_from(["", ",\n  ", " ,", '"', "{}", "\\n"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)

# Where Claude Code 2.1.220 looks for the block to take out of its history.
NAMED = r"messages\.(\d+)\.content\.(\d+)\.(?:tool_result\.content\.\d+\.)?(image|document): "


@pytest.mark.parametrize(
    ("kind", "words"),
    [("image", "Could not process image"), ("document", "The PDF specified was not valid")],
)
def test_what_is_no_text_is_refused_in_words_that_make_the_client_take_it_out(
    kind: str, words: str
) -> None:
    block = {"type": kind, "source": {"type": "base64", "data": ""}}
    in_result = [user("go"), assistant(tool_use()), user([result([text("see"), block])])]
    for messages, place in (([user([text("see"), block])], ("0", "1")), (in_result, ("2", "0"))):
        with pytest.raises(BadRequest, match=words) as refused:
            read(*messages)
        named = re.match(NAMED, str(refused.value))
        assert named is not None
        assert named.groups() == (*place, kind)


@pytest.mark.parametrize("kind", ["search_result", "tool_reference", "server_tool_use", "?"])
def test_other_blocks_are_refused(kind: str) -> None:
    with pytest.raises(BadRequest, match="this type of block is not served"):
        read(user([{"type": kind}]))


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("go", "messages: Input should be a valid list"),
        ([], "messages: at least one message is required"),
        ([3], "messages.0: Input should be an object"),
        ([{"role": "nobody", "content": "x"}], "messages.0.role: "),
        ([{"role": "user"}], "messages.0.content: "),
        ([user([3])], "messages.0.content.0: Input should be an object"),
        ([user([{"text": "x"}])], "messages.0.content.0.type: Field required"),
        ([user([{"type": "text"}])], "messages.0.content.0.text.text: Field required"),
        ([user([{"type": "text", "text": 3}])], "messages.0.content.0.text.text: Input should be"),
        ([user([tool_use()])], "messages.0.content.0.tool_use: "),
        ([assistant(result("a")), user("x")], "messages.0.content.0.tool_result: "),
        (
            [assistant(tool_use() | {"id": 3}), user("x")],
            "messages.0.content.0.tool_use.id: Input should be",
        ),
        (
            [assistant(tool_use() | {"input": "{}"}), user("x")],
            "messages.0.content.0.tool_use.input: ",
        ),
        ([user("go"), assistant(text("I"))], "This model does not support assistant message"),
        ([assistant(tool_use(), tool_use()), user("x")], "`tool_use` ids must be unique"),
    ],
)
def test_what_is_no_history_is_a_bad_request_that_names_the_place(
    messages: Any, words: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        read_messages(messages)
    assert words in str(refused.value)


@given(st.dictionaries(texts, json_values, max_size=4))
def test_an_input_is_written_as_the_model_writes_it(value: dict[str, Any]) -> None:
    [call] = turn(tool_use() | {"input": value}).tool_calls
    assert call.arguments == json.dumps(value, ensure_ascii=False)


def test_an_input_nested_too_deeply_is_a_bad_request() -> None:
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(BadRequest, match="nested too deeply"):
        turn(tool_use(**deep))
