"""What a model sampled, in every family that is served: read whole or left as text, whatever it is;
and which families are served."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any, get_args

import pytest

from gyre.contracts.families import SERVED
from gyre.core.messages import Message, ToolCall
from gyre.proxy.codecs.encoding import FamilyCodec, family_codec, load_codec
from gyre.proxy.codecs.families import FAMILIES
from gyre.proxy.codecs.tokenizer import FastTokenizer, ModelFilesError
from gyre.proxy.requests import BadRequest
from gyre.proxy.turns import sent_turn, tool_call_id
from gyre.scheduler.submission import InvalidJob, parse_spec
from gyre.testkit.family_tokenizers import FamilyFiles
from gyre.testkit.matched_calls import MatchedCalls
from gyre.testkit.specs import job_spec

each_family = pytest.mark.parametrize("family", SERVED)
Codecs = Callable[[str], FamilyCodec]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> FamilyFiles:
    return FamilyFiles(tmp_path_factory.mktemp("families"))


@pytest.fixture
def codec_of(files: FamilyFiles) -> Codecs:
    return lambda family: family_codec(FastTokenizer(files.of(family)), family)


def called(arguments: str) -> Message:
    call = ToolCall(id="c", name="f", arguments=arguments)
    return Message(role="assistant", content="", reasoning="hm", tool_calls=(call,))


def tool(schema: Any) -> Mapping[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": "", "parameters": schema}}


ODD_SCHEMAS: tuple[Any, ...] = (
    *(5, {"properties": 5}, {"properties": {"a": 5}}, {"properties": {"a": {"anyOf": 5}}}),
    *({"type": 5}, {"properties": {"a": {"type": {"x": 1}}}}, {"$ref": "#/x"}),
    {"properties": {"a": {"enum": [None, 1, {"x": 1}]}, "b": {"type": ["string", "null"]}}},
    {"properties": {"a": {"items": {"anyOf": [{}]}, "default": [1]}}, "required": 5},
)


@each_family
def test_tools_are_told_or_refused(codec_of: Codecs, family: str) -> None:
    codec = codec_of(family)
    told = 0
    for schema in ODD_SCHEMAS:
        with suppress(BadRequest):
            told += len(codec.head([tool(schema)], None)) > 0
    assert told > 0


def broken_turns(codec: FamilyCodec, draw: Random, family: str) -> Iterator[list[int]]:
    """What a model may sample: half of it turns with a call, that anything has happened to."""
    turn = codec.assistant(called('{"a": "q r"}')).tolist()
    if family == "deepseek-r1":  # its template tells no thinking, its model always thinks
        turn = [*codec._tokenizer.encode("hm</think>"), *turn[1:]]
    texts = (
        "functions.f:0",
        '{"a": 1}',
        "<function=f>",
        "</parameter>",
        "{",
        '"',
        "NaN",
        "f",
        "\n",
    )
    words = [codec._tokenizer.encode(text) for text in texts]
    words += [[control] for control in sorted(codec._tokenizer._control)]
    while True:
        output = list(turn) if draw.random() < 0.5 else []
        for _ in range(draw.randint(0, 6)):
            place = draw.randint(0, len(output))
            output[place : place + draw.randint(0, 1)] = draw.choice(words)
        output += codec.stop_token_ids[: draw.randint(0, 1)]
        yield output


@each_family
def test_whatever_is_sampled_is_read(codec_of: Codecs, family: str) -> None:
    """The reading never fails, and its calls do not hang on the tools."""
    codec, draw = codec_of(family), Random(family)
    num_calls = 0
    for output in islice(broken_turns(codec, draw, family), 80):
        bare = codec.parse(output)
        read = codec.parse(output, tools=[tool(draw.choice(ODD_SCHEMAS))])
        assert replace(read, tool_calls=bare.tool_calls) == bare
        assert len(read.tool_calls) == len(bare.tool_calls)
        num_calls += len(read.tool_calls)
        result = Message(role="tool", content="r", tool_call_id="c")
        told = codec.inputs_after_turn(
            array("i", output), [result, Message(role="user", content="")]
        )
        assert len(told) == 2
    assert num_calls > 5


@each_family
def test_whatever_is_sampled_and_said_goes_on(codec_of: Codecs, family: str) -> None:
    """A conversation of broken turns, results, texts and reminders: each call reads what the one
    before it read and sampled."""
    codec, draw = codec_of(family), Random(family)
    talk, tools = MatchedCalls(), [tool({})]
    read: list[int] = []
    history = [Message(role="user", content="go")]
    for step, output in enumerate(islice(broken_turns(codec, draw, family), 30)):
        plan = talk.matcher.plan(history, tools, attempt=1, encoder=codec)
        assert plan.fork_reason is None
        context = talk.matcher.tree.path_tokens(plan.parent).tolist()
        assert context[: len(read)] == read
        read = context + output
        opening = talk.matcher.tree.node(plan.parent).token_ids
        turn = codec.parse(output, tools=tools, opening=opening)
        talk.record(plan, output, sent_turn(f"e-c{step:05d}", turn))
        calls = tuple(
            ToolCall(id=tool_call_id(f"e-c{step:05d}", at), name=it.name, arguments=it.arguments)
            for at, it in enumerate(turn.tool_calls)
        )
        history.append(Message(role="assistant", content=turn.content, tool_calls=calls))
        said = [Message(role="tool", content="r", tool_call_id=call.id) for call in calls]
        said += [Message(role="user", content=f"on {step}")] * (not calls or draw.random() < 0.3)
        said += [Message(role="system", content=f"mind {step}")] * (draw.random() < 0.3)
        history += said


def test_an_argument_without_quotes_is_of_the_type_that_its_tool_says(codec_of: Codecs) -> None:
    for family in ("qwen3.5", "glm-5", "minimax-m2", "nemotron-3", "hy3", "laguna-xs-2.1"):
        codec = codec_of(family)
        told = codec.assistant(called('{"a": "7", "b": 7}'))
        output = told[len(codec.generation()) :]
        [call] = codec.parse(
            [*output, codec.stop_token_ids[0]],
            tools=[tool({"properties": {"a": {"type": "string"}}})],
        ).tool_calls
        assert call.arguments == '{"a": "7", "b": 7}'


def test_every_family_of_the_renderers_is_served() -> None:
    from renderers.configs import RendererConfig

    known = {it.model_fields["name"].default for it in get_args(get_args(RendererConfig)[0])}
    generic = {"auto", "default"}
    assert set(SERVED) == set(FAMILIES)
    assert {name for name in known if isinstance(name, str)} - generic - {"custom"} == set(SERVED)


@pytest.mark.parametrize("family", ["gpt-9", ""])
def test_another_family_is_refused_at_submission_in_one_line(family: str) -> None:
    raw = job_spec().model_dump(mode="json")
    raw["model"] |= {"family": family}
    with pytest.raises(InvalidJob) as refusal:
        parse_spec(raw)
    message = str(refusal.value)
    assert message.startswith("model.family: ")
    assert "\n" not in message
    assert "one of qwen3, " in message


@each_family
def test_another_familys_tokenizer_is_one_clear_error(files: FamilyFiles, family: str) -> None:
    other = "llama-3" if family != "llama-3" else "qwen3"
    with pytest.raises(ModelFilesError, match=r"not \w+Renderer's: \w+"):
        load_codec(str(files.of(other)), family)
