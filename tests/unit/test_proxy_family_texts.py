"""What clients write, in every model family that is served: it is told as text, whatever it is, and
only once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gyre.contracts.families import SERVED
from gyre.core.matching import Matcher
from gyre.core.messages import Message, ToolCall
from gyre.core.tree import Tree
from gyre.proxy.codecs.encoding import FamilyCodec, family_codec
from gyre.proxy.codecs.families import FAMILIES
from gyre.proxy.codecs.tokenizer import FastTokenizer
from gyre.proxy.turns import sent_turn, tool_call_id
from gyre.testkit.family_tokenizers import FamilyFiles, control_tokens
from gyre.testkit.matched_calls import MatchedCalls

each_family = pytest.mark.parametrize("family", SERVED)
Codecs = Callable[[str], FamilyCodec]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> FamilyFiles:
    return FamilyFiles(tmp_path_factory.mktemp("families"))


@pytest.fixture
def codec_of(files: FamilyFiles) -> Codecs:
    return lambda family: family_codec(FastTokenizer(files.of(family)), family)


def tool(text: str = "") -> Mapping[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "enum": [text]}}}
    function = {"name": "f", "description": text, "parameters": parameters}
    return {"type": "function", "function": function}


def called(*arguments: str, content: str = "") -> Message:
    calls = tuple(
        ToolCall(id=f"c{place}", name="f", arguments=text) for place, text in enumerate(arguments)
    )
    return Message(role="assistant", content=content, tool_calls=calls)


def context(codec: FamilyCodec, messages: list[Message], tools: list[Any]) -> list[int]:
    matcher = Matcher(Tree())
    plan = matcher.plan(messages, tools, attempt=1, encoder=codec)
    return matcher.tree.path_tokens(plan.parent).tolist()


def everywhere(codec: FamilyCodec, text: str) -> list[int]:
    """`text` in every place that a client can put text into."""
    call = ToolCall(id=text, name="f", arguments=json.dumps({"a": text}, ensure_ascii=False))
    messages = [
        Message(role="system", content=text),
        Message(role="user", content=f"before{text}after"),
        Message(role="assistant", content=f"x{text}", tool_calls=(call,), reasoning=f"y{text}"),
        Message(role="tool", content=text, tool_call_id=text),
        Message(role="system", content=text),
        Message(role="assistant", content=text, reasoning=text),
        Message(role="user", content=text),
    ]
    return context(codec, messages, [tool(text)])


@each_family
def test_no_text_of_a_client_becomes_a_control_token(codec_of: Codecs, family: str) -> None:
    codec = codec_of(family)
    attack = "".join(control_tokens(family))
    control = codec._tokenizer._control
    attacked, harmless = everywhere(codec, attack), everywhere(codec, "harmless")
    assert Counter(filter(control.__contains__, attacked)) == Counter(
        filter(control.__contains__, harmless)
    )
    assert f"before{attack}after" in codec._decode(attacked)


@each_family
def test_no_way_to_write_arguments_makes_a_control_token(codec_of: Codecs, family: str) -> None:
    """JSON has other ways to write a letter, and can write what is no text."""
    codec = codec_of(family)
    told = []
    for names in (control_tokens(family), ["harmless"] * len(control_tokens(family))):
        values = ["".join(f"\\u{ord(letter):04x}" for letter in name) for name in names]
        items = ", ".join(f'"{place}{it}": ["{it}"]' for place, it in enumerate(values))
        ids = codec.assistant(called(f"{{{items}}}"))
        told.append(Counter(filter(codec._tokenizer._control.__contains__, ids)))
    # A template may frame each argument, so there is one of each.
    assert told[0] == told[1]
    assert "ud800" in codec._decode(codec.assistant(called('{"a": "\\ud800"}')))


@each_family
@pytest.mark.parametrize("tools", [[], [tool("x")]])
@pytest.mark.parametrize("system", [None, "Be good.\n\nVery."])
def test_message_by_message_is_the_whole_template(
    codec_of: Codecs, family: str, tools: list[Any], system: str | None
) -> None:
    codec = codec_of(family)
    raw = [{"role": "user", "content": text} for text in ("Write 3 ", "\n x\n\n", "", "é漢🙂")]
    if system is not None:
        raw.insert(0, {"role": "system", "content": system})
    messages = [Message(role=item["role"], content=item["content"]) for item in raw]  # type: ignore[arg-type]
    renderer = FAMILIES[family].build(codec._tokenizer)
    tools_text = FAMILIES[family].tools_text
    template_tools = tools if tools_text is None else []
    if tools and tools_text is not None:
        texts = [text for text in (system, tools_text(tools)) if text is not None]
        raw = [
            {"role": "system", "content": "\n\n".join(texts)},
            *(it for it in raw if it["role"] == "user"),
        ]
    whole = renderer.render_ids(raw, tools=template_tools or None, add_generation_prompt=True)
    assert context(codec, messages, tools) == whole


@each_family
@pytest.mark.parametrize(
    "arguments", ["not json", "", "[1]", "{", '{"a": {"b": [null, 1.5]}}', "1"]
)
def test_a_history_that_a_client_made_up_is_told(
    codec_of: Codecs, family: str, arguments: str
) -> None:
    codec = codec_of(family)
    messages = [
        Message(role="user", content="go"),
        called(arguments, '{"a": "x"}', content="I call."),
        Message(role="tool", content="First.", tool_call_id="c0"),
        Message(role="tool", content="", tool_call_id="c1"),
        Message(role="assistant", content=""),
        Message(role="assistant", content="Twice."),
        Message(role="user", content="", blocks=()),
    ]
    ids = context(codec, messages, [tool()])
    opening = codec.generation().tolist()
    assert ids[-len(opening) :] == opening
    text = codec._decode(ids)
    assert [text.count(it) for it in ("I call.", "First.", "Twice.")] == [1, 1, 1]
    if arguments and not arguments.startswith('{"'):
        assert arguments in text[text.index("I call.") :]


@each_family
def test_a_turn_that_was_cut_goes_on_as_it_is(codec_of: Codecs, family: str) -> None:
    codec = codec_of(family)
    thinking = codec._tokenizer.encode("half a thou")
    for output in ([], thinking, [*thinking, codec.stop_token_ids[0]], [300, 301]):
        calls = MatchedCalls()
        messages = [Message(role="user", content="go")]
        plan = calls.matcher.plan(messages, [], attempt=1, encoder=codec)
        turn = codec.parse(output)
        assert turn.tool_calls == ()
        calls.record(plan, output, sent_turn("e-c00000", turn))
        before = calls.matcher.tree.path_tokens(plan.parent).tolist() + output
        messages.append(Message(role="assistant", content=turn.content))
        messages.append(Message(role="user", content="on"))
        plan = calls.matcher.plan(messages, [], attempt=1, encoder=codec)
        assert plan.fork_reason is None
        after = calls.matcher.tree.path_tokens(plan.parent).tolist()
        assert after[: len(before)] == before
        assert "on" in codec._decode(after[len(before) :])


@pytest.mark.parametrize("family", ["kimi-k2", "kimi-k2.5", "inkling", "gemma4"])
def test_results_in_another_order_are_told_of_their_own_calls(
    codec_of: Codecs, family: str
) -> None:
    codec = codec_of(family)
    made = Message(
        role="assistant",
        content="",
        tool_calls=tuple(
            ToolCall(id=name, name=name, arguments='{"a": "x"}') for name in ("first", "second")
        ),
    )
    output = codec.assistant(made)[len(codec.generation()) :].tolist()
    calls = MatchedCalls()
    messages = [Message(role="user", content="go")]
    plan = calls.matcher.plan(messages, [tool()], attempt=1, encoder=codec)
    turn = codec.parse(output)
    calls.record(plan, output, sent_turn("e-c00000", turn))
    ids = [tool_call_id("e-c00000", place) for place in range(2)]
    echo = tuple(
        ToolCall(id=identity, name=call.name, arguments=call.arguments)
        for identity, call in zip(ids, turn.tool_calls, strict=True)
    )
    messages.append(Message(role="assistant", content="", tool_calls=echo[::-1]))
    messages += [
        Message(role="tool", content=f"result {place}", tool_call_id=ids[place]) for place in (1, 0)
    ]
    plan = calls.matcher.plan(messages, [tool()], attempt=1, encoder=codec)
    told = codec._decode(calls.matcher.tree.path_tokens(plan.parent))
    words = ("second", "result 1", "first", "result 0")
    places = [told.rindex(word) for word in words]
    assert places == sorted(places)


class Counting(FastTokenizer):
    """num_chars: text that was encoded, but for what is cached."""

    def __init__(self, path: Path) -> None:
        self.num_chars = 0
        super().__init__(path)

    def _encode(self, text: str) -> list[int]:
        self.num_chars += len(text)
        return super()._encode(text)


@each_family
def test_only_what_is_new_is_encoded(files: FamilyFiles, family: str) -> None:
    tokenizer = Counting(files.of(family))
    codec = family_codec(tokenizer, family)
    calls = MatchedCalls()
    messages = [Message(role="system", content="s" * 500), Message(role="user", content="u" * 100)]
    output = [*tokenizer.encode("All done."), codec.stop_token_ids[0]]
    costs = []
    for turn in range(40):
        before = tokenizer.num_chars
        plan = calls.matcher.plan(messages, [tool()], attempt=1, encoder=codec)
        costs.append(tokenizer.num_chars - before)
        parsed = codec.parse(output)
        calls.record(plan, output, sent_turn(f"e-c{turn:05d}", parsed))
        messages.append(Message(role="assistant", content=parsed.content))
        messages.append(Message(role="user", content=f"{turn:02}" * 100))
    assert costs[0] > 600
    assert max(costs[2:]) == min(costs[2:]) < 300


@pytest.mark.parametrize("family", [it for it in SERVED if not FAMILIES[it].one_text])
def test_a_message_is_told_the_same_whatever_stands_beside_it(
    codec_of: Codecs, family: str
) -> None:
    """A client may leave a reminder out later, or send one more. Only a turn that goes on behind a
    result has to end before somebody else speaks."""
    codec = codec_of(family)
    result = Message(role="tool", content="r", tool_call_id="c")
    reminder = Message(role="system", content="Mind.")
    user = Message(role="user", content="go")
    after = {"tool": "user", "system": "tool", "user": "user"}
    alone = [codec.inputs([it], after=after[it.role])[0] for it in (result, reminder, user)]
    assert codec.inputs([result, reminder, user]) == alone
    assert codec.inputs([user, result]) == [alone[2], alone[0]]
