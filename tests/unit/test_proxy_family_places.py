"""Families where what is told depends on where it stands: turns that go on behind a result, and
inputs that are one text. And words of our own: a fixed day, tools that a template lacks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gyre.core.messages import Message, ToolCall
from gyre.proxy.codecs.encoding import FamilyCodec, family_codec
from gyre.proxy.codecs.tokenizer import FastTokenizer
from gyre.proxy.turns import sent_turn, tool_call_id
from gyre.testkit.family_tokenizers import FamilyFiles
from gyre.testkit.matched_calls import MatchedCalls

TOOL: Any = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
GO = Message(role="user", content="go")
ON = Message(role="user", content="on")
Codecs = Callable[[str], FamilyCodec]


@pytest.fixture(scope="module")
def codec_of(tmp_path_factory: pytest.TempPathFactory) -> Codecs:
    files = FamilyFiles(tmp_path_factory.mktemp("families"))
    return lambda family: family_codec(FastTokenizer(files.of(family)), family)


def result(text: str, call: str = "c") -> Message:
    return Message(role="tool", content=text, tool_call_id=call)


class Agent(MatchedCalls):
    """One that plans requests and has them answered with text in the template's own words."""

    def __init__(self, codec: FamilyCodec) -> None:
        super().__init__()
        self.codec = codec

    def asks(self, messages: Sequence[Message], says: str) -> tuple[str, Message]:
        """(what the model reads, what comes of what it says)."""
        plan = self.matcher.plan(messages, [TOOL], attempt=1, encoder=self.codec)
        output = self.codec._tokenizer.encode(says)
        opening = self.matcher.tree.node(plan.parent).token_ids
        turn = self.codec.parse(output, tools=[TOOL], opening=opening)
        call = f"e-c{len(self.log):05d}"
        self.record(plan, output, sent_turn(call, turn))
        calls = tuple(
            ToolCall(id=tool_call_id(call, place), name=it.name, arguments=it.arguments)
            for place, it in enumerate(turn.tool_calls)
        )
        reply = Message(
            role="assistant", content=turn.content, reasoning=turn.reasoning, tool_calls=calls
        )
        return self.codec._decode(self.matcher.tree.path_tokens(plan.parent)), reply

    @property
    def reason(self) -> str | None:
        """Why the last request left the known path."""
        node = self.matcher.tree.node(self.log[-1].node)  # type: ignore[union-attr]
        assert node.sampled is not None
        return node.sampled.fork_reason


def test_a_gemma_turn_goes_on_behind_the_results_that_it_called_for(codec_of: Codecs) -> None:
    agent = Agent(codec_of("gemma4"))
    call = '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>'
    read, reply = agent.asks([GO], f"<|channel>thought\nhm<channel|>{call}{call}<|tool_response>")
    assert read.endswith("<|turn>user\ngo<turn|>\n<|turn>model\n")
    assert [it.arguments for it in reply.tool_calls] == ['{"a": "x"}'] * 2
    first, second = (result(f"r{n}", it.id) for n, it in enumerate(reply.tool_calls))
    history = [GO, reply, first, second]
    read, reply = agent.asks(history, "so<channel|>Done.<turn|>")
    assert read.endswith(
        f"{call}{call}<|tool_response>"
        'response:f{value:<|"|>r0<|"|>}<tool_response|><|tool_response>'
        'response:f{value:<|"|>r1<|"|>}<tool_response|><|channel>thought\n'
    )
    assert (reply.reasoning, reply.content, agent.reason) == ("so", "Done.", None)
    read, _ = agent.asks([*history, reply, ON], "")
    assert read.endswith("so<channel|>Done.<turn|>\n<|turn>user\non<turn|>\n<|turn>model\n")
    assert agent.reason is None


@pytest.mark.parametrize(
    ("says", "behind"),
    [
        ("<|tool_call>call:f{}<tool_call|><|tool_response>", "response:f{value:"),
        ("<|tool_call>call:f{}<tool_call|>", "<|tool_response>response:f{value:"),
        (
            "<|tool_call>call:f{}<tool_call|><turn|>",
            "\n<|turn>model\n<|tool_response>response:f{value:",
        ),
    ],
)
def test_a_gemma_result_stands_where_its_turn_ended(
    codec_of: Codecs, says: str, behind: str
) -> None:
    agent = Agent(codec_of("gemma4"))
    _, reply = agent.asks([GO], says)
    read, _ = agent.asks([GO, reply, result("r", reply.tool_calls[0].id), ON], "")
    closed = '<|"|>r<|"|>}<tool_response|><turn|>\n<|turn>user\non<turn|>\n<|turn>model\n'
    assert read.endswith(says + behind + closed)


@pytest.mark.parametrize(
    ("says", "end"),
    [
        ("<|tool_call>call f<tool_call|><|tool_response>", "<turn|>\n"),
        ("<|channel>thought\nhalf a", "<channel|><turn|>\n"),
        ("<|channel>thought\nhm<channel|>half a", "<turn|>\n"),
        ("Done.<turn|>", "\n"),
        ("Done.<eos>", "<turn|>\n"),
    ],
)
def test_a_gemma_turn_that_waits_or_was_cut_is_closed(
    codec_of: Codecs, says: str, end: str
) -> None:
    agent = Agent(codec_of("gemma4"))
    _, reply = agent.asks([GO], says)
    assert reply.tool_calls == ()
    read, _ = agent.asks([GO, reply, ON], "")
    assert read.endswith(f"{says}{end}<|turn>user\non<turn|>\n<|turn>model\n")


def test_a_gemma_thought_that_was_cut_behind_a_result_is_closed(codec_of: Codecs) -> None:
    agent = Agent(codec_of("gemma4"))
    _, reply = agent.asks([GO], "<|tool_call>call:f{}<tool_call|><|tool_response>")
    history = [GO, reply, result("r", reply.tool_calls[0].id)]
    _, reply = agent.asks(history, "half a")
    assert (reply.content, reply.reasoning) == ("", "half a")
    read, _ = agent.asks([*history, reply, ON], "")
    assert read.endswith(
        "<|channel>thought\nhalf a<channel|><turn|>\n<|turn>user\non<turn|>\n<|turn>model\n"
    )


def test_a_gemma_turn_that_is_carried_over_has_the_opening_of_its_new_place(
    codec_of: Codecs,
) -> None:
    agent = Agent(codec_of("gemma4"))
    call = "<|tool_call>call:f{}<tool_call|><|tool_response>"
    _, first = agent.asks([GO], f"<|channel>thought\nhm<channel|>{call}")
    results = [result("r0", first.tool_calls[0].id)]
    _, second = agent.asks([GO, first, *results], f"so<channel|>{call}")
    results += [result("r1", second.tool_calls[0].id)]
    summary = Message(role="user", content="So far.")
    read, _ = agent.asks([summary, second, results[1]], "")
    value = 'response:f{value:<|"|>r{}<|"|>}<tool_response|>'.replace("{}", "1")
    assert read.endswith(
        "So far.<turn|>\n<|turn>model\n<|channel>thought\nso<channel|>"
        f"{call}{value}<|channel>thought\n"
    )
    assert agent.reason == "compaction"
    read, _ = agent.asks([summary, second, results[1], first, results[0]], "")
    value = f"{value}<|channel>thought\nhm<channel|>{call}{value.replace('r1', 'r0')}"
    assert read.endswith(f"{call}{value}<|channel>thought\n")


def test_what_deepseek_reads_of_tools_and_results(codec_of: Codecs) -> None:
    agent = Agent(codec_of("deepseek-r1"))
    call = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>'
    )
    read, reply = agent.asks([Message(role="system", content="Be good."), GO], f"hm</think>{call}")
    assert read.startswith("<｜begin▁of▁sentence｜>Be good.\n\n## Tools")
    assert '{"name": "f", "description": "d", "parameters": {}}' in read
    assert read.endswith("<｜User｜>go<｜Assistant｜><think>\n")
    [made] = reply.tool_calls
    history = [Message(role="system", content="Be good."), GO, reply, result("r", made.id)]
    read, _ = agent.asks(history, "")
    assert read.endswith(
        f"{call}<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>r<｜tool▁output▁end｜>"
        "<｜tool▁outputs▁end｜><think>\n"
    )


def test_a_deepseek_v3_turn_goes_on_behind_a_result_without_an_opening(codec_of: Codecs) -> None:
    codec = codec_of("deepseek-v3")
    assert codec.generation(after="tool") == array("i")
    told = codec.assistant(Message(role="assistant", content="x"), after="tool")
    assert codec._decode(told) == "x<｜end▁of▁sentence｜>"


def test_what_stands_between_two_turns_of_deepseek_v4_is_one_text(codec_of: Codecs) -> None:
    codec = codec_of("deepseek-v4")
    agent = Agent(codec)
    reminder = Message(role="system", content="Mind.")
    dsml = '<｜DSML｜invoke name="f">\n\n</｜DSML｜invoke>'
    calls = f"<｜DSML｜tool_calls>\n{dsml}\n{dsml}\n</｜DSML｜tool_calls>"
    _, reply = agent.asks([GO], f"hm</think>\n\n{calls}<｜end▁of▁sentence｜>")
    first, second = (result(f"r{n}", it.id) for n, it in enumerate(reply.tool_calls))
    history = [GO, reply, second, first, reminder]
    read, done = agent.asks(history, "so</think>Done.<｜end▁of▁sentence｜>")
    assert read.endswith(
        "<｜User｜><tool_result>r0</tool_result>\n\n<tool_result>r1</tool_result>\n\nMind."
        "<｜Assistant｜><think>"
    )
    assert agent.reason is None
    read, _ = agent.asks([*history, done, ON], "")
    assert agent.reason is None
    assert read.endswith("Done.<｜end▁of▁sentence｜><｜User｜>on<｜Assistant｜><think>")
    # Without the reminder it is another text, and the agent has edited its history.
    read, _ = agent.asks([GO, reply, second, first, done, ON], "")
    assert agent.reason == "edited_history"
    assert "Mind." not in read
    assert "r1</tool_result><｜Assistant｜><think>so</think>Done." in read


def test_gpt_oss_is_told_a_fixed_day_and_its_tools(codec_of: Codecs) -> None:
    agent = Agent(codec_of("gpt-oss"))
    call = "hm<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
    read, reply = agent.asks([GO], call + '<|message|>{"a": 1}<|call|>')
    assert "\nCurrent date: 2025-08-05\n" in read
    assert "namespace functions {\n\n// d\ntype f = (_: any) => any;\n" in read
    assert read.endswith("<|start|>assistant<|channel|>analysis<|message|>")
    [made] = reply.tool_calls
    assert (made.name, made.arguments, reply.reasoning) == ("f", '{"a": 1}', "hm")
    history = [GO, reply, result("r", made.id)]
    final = "so<|end|><|start|>assistant<|channel|>final<|message|>Done.<|return|>"
    read, done = agent.asks(history, final)
    assert read.endswith(
        '{"a": 1}<|call|><|start|>functions.f to=assistant<|channel|>commentary<|message|>r<|end|>'
        "<|start|>assistant<|channel|>analysis<|message|>"
    )
    assert (done.content, done.reasoning) == ("Done.", "so")
    read, _ = agent.asks([*history, done, ON], "")
    assert read.endswith(
        f"{final}<|start|>user<|message|>on<|end|><|start|>assistant<|channel|>analysis<|message|>"
    )
    assert agent.reason is None


@pytest.mark.parametrize("says", ["half a thou", "hm<|end|>", "hm<|end|><|start|>assistant<|chan"])
def test_a_gpt_oss_turn_that_was_cut_is_closed_once(codec_of: Codecs, says: str) -> None:
    agent = Agent(codec_of("gpt-oss"))
    _, reply = agent.asks([GO], says)
    read, _ = agent.asks([GO, reply, ON], "")
    end = "" if says.endswith("<|end|>") else "<|end|>"
    assert f"{says}{end}<|start|>user<|message|>on<|end|>" in read
