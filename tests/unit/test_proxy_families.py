"""Each model family that is served keeps what was sampled, token by token."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gyre.contracts.families import SERVED
from gyre.core.messages import Message, ToolCall
from gyre.proxy.codecs.encoding import FamilyCodec, ParsedTurn, family_codec
from gyre.proxy.codecs.tokenizer import FastTokenizer
from gyre.proxy.turns import sent_turn, tool_call_id
from gyre.testkit.family_tokenizers import FamilyFiles
from gyre.testkit.matched_calls import MatchedCalls

TOOLS: list[Mapping[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "description": "Writes a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "size": {"type": "integer"}},
                "required": ["path"],
            },
        },
    }
]
# Templates that drop the thinking of turns before the last user's message, without a switch; that
# of gpt-oss ends an earlier turn with another token than the one that was sampled.
FORGETFUL = {"qwen3", "qwen3.5", "glm-4.5", "minimax-m2", "kimi-k2.5", "gpt-oss", "gemma4"}
# The template that drops the thinking of any earlier turn.
OBLIVIOUS = {"deepseek-r1"}
# Models that do not think (beside calls), and templates with no form for several calls in a turn,
# or that put its text behind the results.
THOUGHTLESS = {"qwen3-vl", "prime-qwen3", "kimi-k2", "llama-3", "deepseek-v3"}
ONE_CALL = {"llama-3", "gpt-oss"}
TEXT_BEHIND = {"gemma4"}

PLAIN = Message(role="assistant", content="All done.", reasoning="so")

each_family = pytest.mark.parametrize("family", SERVED)
Codecs = Callable[[str], FamilyCodec]


@pytest.fixture(scope="module")
def codec_of(tmp_path_factory: pytest.TempPathFactory) -> Codecs:
    """A codec of its own at each call, over files that families share."""
    files = FamilyFiles(tmp_path_factory.mktemp("families"))
    return lambda family: family_codec(FastTokenizer(files.of(family)), family)


def spelled(codec: FamilyCodec, ids: Sequence[int]) -> list[int]:
    """The same text in other tokens than the tokenizer's own: one character at a time."""
    found: list[int] = []
    text: list[int] = []
    for token in [*ids, *codec.generation()[:1]]:
        if token not in codec._tokenizer._control:
            text.append(token)
            continue
        for letter in codec._decode(text):
            found += codec._tokenizer.encode(letter)
        text = []
        found.append(token)
    return found[:-1]


def sampled(
    codec: FamilyCodec, message: Message, then: str = "<|user|>", after: str = "user"
) -> list[int]:
    """What the model would sample for `message`, as its template tells it. then: what comes next,
    for families whose turns end with that. after: what it is sampled after."""
    opening = codec.generation(after=after)
    told = codec.assistant(message, after=after)
    if codec._renderer.config.name in OBLIVIOUS:
        told = opening + thought(codec) + told[after == "user" :]
    assert told[: len(opening)] == opening
    turn = told[len(opening) :].tolist()
    if told[-1:] == codec._close and turn[-1] not in codec.stop_token_ids:
        turn[-1] = codec.stop_token_ids[0]
    if turn[-1] not in codec.stop_token_ids:
        turn.append(codec._tokenizer.convert_tokens_to_ids(then) or 0)
    assert turn[-1] in codec.stop_token_ids
    return turn


def thought(codec: FamilyCodec) -> array[int]:
    return array("i", codec._tokenizer.encode("hm\n</think>\n\n"))


def called(num: int, content: str = "I write.") -> Message:
    calls = tuple(
        ToolCall(id=f"c{n}", name="write_file", arguments=f'{{"path": "a b{n}", "size": {n}}}')
        for n in range(num)
    )
    return Message(role="assistant", content=content, reasoning="hm", tool_calls=calls)


@dataclass(kw_only=True)
class Talk(MatchedCalls):
    """One conversation with an agent that sends back what it was sent. asked: what each call read,
    and sampled."""

    codec: FamilyCodec
    messages: list[Message] = field(
        default_factory=lambda: [
            Message(role="system", content="Be good."),
            Message(role="user", content="Write  files.\n"),
        ]
    )
    asked: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def ask(self, output: Sequence[int]) -> ParsedTurn:
        """A call that goes on where the last one ended, and samples `output`."""
        plan = self.matcher.plan(self.messages, TOOLS, attempt=1, encoder=self.codec)
        assert plan.fork_reason is None
        self.asked.append((self.matcher.tree.path_tokens(plan.parent).tolist(), list(output)))
        call = f"e-c{len(self.log):05d}"
        opening = self.matcher.tree.node(plan.parent).token_ids
        turn = self.codec.parse(output, tools=TOOLS, opening=opening)
        self.record(plan, output, sent_turn(call, turn))
        calls = tuple(
            ToolCall(id=tool_call_id(call, place), name=it.name, arguments=it.arguments)
            for place, it in enumerate(turn.tool_calls)
        )
        self.messages.append(Message(role="assistant", content=turn.content, tool_calls=calls))
        return turn

    def results(self) -> None:
        """The tools answer."""
        for call in self.messages[-1].tool_calls:
            result = Message(role="tool", content=f"done {call.id[-2:]}", tool_call_id=call.id)
            self.messages.append(result)

    def say(self, *texts: str) -> None:
        self.messages += [Message(role="user", content=text) for text in texts]

    def every_context_goes_on(self) -> None:
        """Each call read what the one before it read and sampled, as it was, and more."""
        for (context, output), (later, _) in zip(self.asked, self.asked[1:], strict=False):
            assert later[: len(context) + len(output)] == context + output
            assert len(later) > len(context) + len(output)


def long_talk(codec: FamilyCodec, family: str) -> Talk:
    """Thinking, calls side by side, a call that is cut, text, a late system message."""
    talk = Talk(codec=codec)
    num = 1 if family in ONE_CALL else 2
    turn = talk.ask(spelled(codec, sampled(codec, called(num), "<|observation|>")))
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [
        (call.name, call.arguments) for call in called(num).tool_calls
    ]
    assert (turn.reasoning is None) == (family in THOUGHTLESS)
    talk.results()
    again = sampled(codec, called(1, ""), "<|observation|>", after="tool")
    assert len(talk.ask(spelled(codec, again)).tool_calls) == 1
    talk.results()
    again = sampled(codec, called(1, ""), "<|observation|>")
    talk.say("Go on.", "é 漢 🙂")
    cut = talk.ask(spelled(codec, again[: len(again) * 3 // 4]))
    assert cut.tool_calls == ()
    assert "write_file" in cut.content + (cut.reasoning or "")
    talk.say("That was cut.")
    talk.messages.append(Message(role="system", content="A reminder."))
    assert talk.ask(spelled(codec, sampled(codec, PLAIN))).content.strip() == "All done."
    talk.say("Thanks.")
    talk.ask([])
    return talk


@each_family
def test_a_sampled_token_is_never_encoded_again(codec_of: Codecs, family: str) -> None:
    long_talk(codec_of(family), family).every_context_goes_on()


@each_family
def test_old_turns_match_without_a_tokenizer(codec_of: Codecs, family: str) -> None:
    codec = codec_of(family)
    talk = long_talk(codec, family)
    del codec._tokenizer._tokenizer
    codec._tokenizer._encode_short.cache_clear()
    for restart in (False, True):
        if restart:
            talk.restart()
        messages = talk.messages[:-1]
        plan = talk.matcher.plan(messages, TOOLS, attempt=1, encoder=codec)
        assert talk.matcher.tree.path_tokens(plan.parent).tolist() == talk.asked[-1][0]
        assert plan.added == ()


def raw(message: Message, *, named: bool) -> dict[str, Any]:
    """As a user of `renderers` has it. named: results carry the name of their tool."""
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.role == "tool":
        found["tool_call_id"] = message.tool_call_id
        found |= {"name": "write_file"} if named else {}
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": it.id, "function": {"name": it.name, "arguments": it.arguments}}
            for it in message.tool_calls
        ]
    return found


@each_family
@pytest.mark.parametrize("queries", [1, 2])
def test_a_conversation_is_as_the_template_tells_it(
    codec_of: Codecs, family: str, queries: int
) -> None:
    """Told turn by turn, with turns as the template writes them, against one rendering of all."""
    codec = codec_of(family)
    talk = Talk(codec=codec)
    told = list(talk.messages)
    for query in range(queries):
        if query:
            talk.ask(sampled(codec, PLAIN))
            told.append(PLAIN)
            talk.say("And more.", "Please.")
            told += talk.messages[-2:]
        content = "" if family in TEXT_BEHIND | ONE_CALL else "I write."
        turn = called(1 if family in ONE_CALL else 2, content)
        ids = [f"functions.write_file:{place}" for place in range(2)]
        calls = tuple(
            ToolCall(id=identity, name=call.name, arguments=call.arguments)
            for identity, call in zip(ids, turn.tool_calls, strict=False)
        )
        talk.ask(sampled(codec, turn, "<|observation|>"))
        talk.results()
        results = talk.messages[-len(calls) :]
        told.append(
            Message(role="assistant", content=turn.content, reasoning="hm", tool_calls=calls)
        )
        told += [
            Message(role="tool", content=result.content, tool_call_id=call.id)
            for result, call in zip(results, calls, strict=True)
        ]
    talk.ask([])
    named = codec._family.tool_names
    whole = rendered(codec, [raw(message, named=named) for message in told])
    keeps = family not in OBLIVIOUS and (queries == 1 or family not in FORGETFUL)
    assert (talk.asked[-1][0] == whole) == keeps


def rendered(codec: FamilyCodec, messages: list[dict[str, Any]]) -> list[int]:
    """A conversation with TOOLS as the template tells it, in one piece."""
    family = codec._family
    tools: list[Any] | None = TOOLS
    if family.tools_text is not None:
        text = f"{messages[0]['content']}\n\n{family.tools_text(TOOLS)}"
        messages, tools = [{"role": "system", "content": text}, *messages[1:]], None
    renderer = family.build(codec._tokenizer)
    ids: list[int] = renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
    return ids
