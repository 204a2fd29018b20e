"""What makes two messages the same, and what does not."""

from __future__ import annotations

from array import array

import pytest

from gyre.core.matching import Matcher, SentTurn
from gyre.core.matching.echoes import (
    assistant_key,
    head_keys,
    input_keys,
    tools_key,
    turn_text_key,
)
from gyre.core.matching.inputs import MAX_FREE, InputRun
from gyre.core.matching.turns import SentTurns
from gyre.core.messages import Message, ToolCall
from gyre.core.tree import Tree, fold
from gyre.testkit.toy_encoder import END, TOGETHER, ToyEncoder


def user(*blocks: str) -> Message:
    return Message.of_blocks("user", blocks)


def tool(text: str, identity: str = "c0") -> Message:
    return Message(role="tool", content=text, tool_call_id=identity)


def called(arguments: str, *, identity: str = "c0", text: str = "") -> Message:
    call = ToolCall(id=identity, name="f", arguments=arguments)
    return Message(role="assistant", content=text, tool_calls=(call,))


def test_one_block_is_its_text() -> None:
    assert user("a") == Message(role="user", content="a")
    assert user("a", "b").content == "a\nb"
    assert user("a", "b").blocks == ("a", "b")
    assert user() == Message(role="user", content="")


def test_a_text_is_the_same_in_whatever_message_it_stands() -> None:
    assert input_keys(user("a", "b")) == input_keys(user("a")) + input_keys(user("b"))
    assert input_keys(user("a\n")) == input_keys(user("a"))
    system = Message(role="system", content="r\n")
    assert input_keys(system) == input_keys(user("<system-reminder>\nr\n</system-reminder>\n"))


@pytest.mark.parametrize("other", ["a ", " a", "\na", "A", "", "a\nb", "a\r", "a\u200b"])
def test_any_other_character_is_another_text(other: str) -> None:
    assert input_keys(user(other)) != input_keys(user("a"))
    assert input_keys(tool(other)) != input_keys(tool("a"))
    head = head_keys(b"", Message(role="system", content="a"))
    assert head_keys(b"", Message(role="system", content=other)) != head


def test_a_result_belongs_to_its_call() -> None:
    assert input_keys(tool("a", "c1")) != input_keys(tool("a", "c2"))
    assert input_keys(tool("1 a", "c")) != input_keys(tool("a", "c 1"))
    assert input_keys(tool("a")) != input_keys(user("a"))
    assert input_keys(tool("a\n")) != input_keys(tool("a"))


def test_arguments_are_the_same_when_they_mean_the_same() -> None:
    def key(arguments: str) -> bytes:
        return assistant_key(called(arguments))

    assert key('{"a":1,"b":2.50}') == key('{"b": 2.5, "a": 1.0}')
    assert key('{"a":1e2}') == key('{"a":100}')
    assert key('{"a":1}') != key('{"a":"1"}')
    assert key('{"a":1}') != key('{"a":true}')
    assert key("{broken") == key("{broken")
    assert key("[" * 100_000) == key("[" * 100_000)
    assert assistant_key(called("{}", identity="c1")) != assistant_key(called("{}"))
    assert assistant_key(called("{}", text="a")) != assistant_key(called("{}", text="b"))


def test_a_turns_text_is_the_same_with_other_white_space_around_it() -> None:
    assert turn_text_key(" yes\n") == turn_text_key("yes")
    assert turn_text_key("yes") != turn_text_key("y es")


def test_tools_are_the_same_whatever_the_order_of_their_keys() -> None:
    assert tools_key([{"a": 1, "b": {"c": 2, "d": 3}}]) == tools_key(
        [{"b": {"d": 3, "c": 2}, "a": 1}]
    )
    assert tools_key([{"a": 1}, {"b": 2}]) != tools_key([{"b": 2}, {"a": 1}])
    assert tools_key([{"a": 1}]) != tools_key([{"a": True}])
    assert tools_key([{"a": 1}]) != tools_key([{"a": 1.5}])
    assert tools_key([]) != tools_key([{}])


def test_lone_surrogates_have_keys() -> None:
    assert input_keys(user("\ud800")) != input_keys(user("\udfff"))


def left(run: InputRun) -> list[str]:
    return [message.content for message in run.rest()]


def test_a_run_is_taken_in_order_and_reminders_from_anywhere() -> None:
    [a, b, c] = (input_keys(user(text))[0] for text in "abc")
    run = InputRun([user("a", "b"), Message(role="system", content="c")])
    assert list(run.heads()) == [a, c]
    assert not run.take((b,))
    assert run.take((a, c))
    assert left(run) == ["b"]
    assert run.take((b,))
    assert not run


def test_what_is_left_keeps_its_message() -> None:
    result = Message.of_blocks("tool", ["x", "y"], tool_call_id="c0")
    run = InputRun([result, user("a", "a", "b"), user("c")])
    assert run.take(input_keys(result))
    assert run.take(input_keys(user("a")))
    assert run.rest() == [user("a", "b"), user("c")]
    assert InputRun([result]).rest() == [result]


def test_thousands_of_reminders_are_not_searched_for_each() -> None:
    run = InputRun([Message(role="system", content=str(n)) for n in range(10 * MAX_FREE)])
    assert len(list(run.heads())) == MAX_FREE
    assert not run.take(input_keys(user(str(5 * MAX_FREE))))


def matched(*messages: Message) -> tuple[Matcher, ToyEncoder, str]:
    matcher, encoder = Matcher(Tree()), ToyEncoder()
    plan = matcher.plan(messages, [], attempt=1, encoder=encoder)
    return matcher, encoder, plan.parent


@pytest.mark.parametrize(
    "again",
    [
        [user("a"), user("b")],
        [user("a\n", "b")],
        [user("a"), Message(role="system", content="b")],
    ],
)
def test_a_run_cut_otherwise_has_the_same_tokens(again: list[Message]) -> None:
    matcher, encoder, parent = matched(user("a", "b"))
    encoder.gone = True
    plan = matcher.plan(again, [], attempt=1, encoder=encoder)
    assert plan.parent == parent


def test_a_new_block_of_a_known_message_is_encoded_alone() -> None:
    matcher, encoder, _ = matched(user("a", "b"))
    matcher.plan([user("a\n", "b\n", "c")], [], attempt=1, encoder=encoder)
    assert encoder.encoded == ["a\nb", "c"]


def test_a_log_without_keys_is_matched_by_its_tokens() -> None:
    matcher, encoder, parent = matched(user("a"), tool("b"))
    bare = Tree()
    for node in matcher.tree.path(parent):
        bare.add_input(node.parent, node.role, node.token_ids)
    plan = Matcher(bare).plan([user("a"), tool("b")], [], attempt=1, encoder=encoder)
    assert plan.parent == parent
    assert encoder.encoded == ["a", "b", "a", "b"]
    assert fold([]).nodes == {}


def turns_at(texts: list[SentTurn]) -> tuple[SentTurns, str, list[str]]:
    """Turns that were sampled at one place, all input nodes of a tree."""
    tree = Tree()
    cursor = tree.add_input(None, "user", array("i", [9])).id
    opening = tree.add_input(cursor, "generation", array("i", [2])).id
    turns = SentTurns(tree)
    nodes = []
    for index, turn in enumerate(texts):
        nodes.append(tree.add_input(opening, "assistant", array("i", [300 + index])).id)
        turns.add(nodes[-1], turn)
    return turns, cursor, nodes


def test_of_equal_texts_the_thinking_tells_which_turn_it_is() -> None:
    turns, cursor, nodes = turns_at(
        [SentTurn(content="yes", reasoning=text) for text in ("one", "two", "")]
    )

    def found(reasoning: str | None) -> str | None:
        return turns.echoed_at(
            cursor, Message(role="assistant", content="yes", reasoning=reasoning)
        )

    assert found("one") == nodes[0]
    assert found("two\n") == nodes[1]
    assert found(None) == nodes[2]
    assert found("three") is None


def test_a_turn_with_calls_is_known_by_all_of_their_ids_and_nothing_else() -> None:
    turns, cursor, [node] = turns_at([SentTurn(content="text", tool_call_ids=("c0", "c1"))])

    def found(*ids: str, text: str = "text") -> str | None:
        calls = tuple(ToolCall(id=one, name="g", arguments="[") for one in ids)
        message = Message(role="assistant", content=text, tool_calls=calls)
        assert turns.echoed_at(cursor, message) == turns.echoed_anywhere(message)
        return turns.echoed_at(cursor, message)

    assert found("c0", "c1") == node
    assert found("c1", "c0", text="") == node
    assert found("c0") is None
    assert found("c0", "c2") is None
    assert found("c0", "c1", "c2") is None
    assert turns.echoed_at(cursor, Message(role="assistant", content="text")) is None


def test_results_of_parallel_calls_are_read_in_one_frame() -> None:
    """One of them alone stands in a frame of its own, and never in an open one."""
    matcher, encoder, both = matched(tool("a", "c0"), tool("b", "c1"), user("x"))
    alone = matcher.plan([tool("a", "c0"), user("x")], [], attempt=1, encoder=encoder)
    again = matcher.plan(
        [tool("a", "c0"), tool("b", "c1"), user("x")], [], attempt=1, encoder=encoder
    )
    tokens = matcher.tree.path_tokens(alone.parent)
    assert again.parent == both
    assert TOGETHER[0] in matcher.tree.path_tokens(both)
    assert TOGETHER[0] not in tokens
    assert list(tokens).count(END[0]) == 2
