"""What a model sampled, in every family that is served: read whole or left as text, whatever it is;
and which families are served."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, get_args

import pytest

from gyre.contracts.families import REFUSED, SERVED
from gyre.core.messages import Message, ToolCall
from gyre.proxy.encoding import FamilyCodec, load_codec
from gyre.proxy.families import FAMILIES
from gyre.proxy.requests import BadRequest
from gyre.proxy.tokenizer import FastTokenizer, ModelFilesError
from gyre.scheduler.submission import InvalidJob, parse_spec
from gyre.testkit.family_tokenizers import FamilyFiles
from gyre.testkit.specs import job_spec

each_family = pytest.mark.parametrize("family", SERVED)
Codecs = Callable[[str], FamilyCodec]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> FamilyFiles:
    return FamilyFiles(tmp_path_factory.mktemp("families"))


@pytest.fixture
def codec_of(files: FamilyFiles) -> Codecs:
    return lambda family: FamilyCodec(FastTokenizer(files.of(family)), FAMILIES[family])


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


@each_family
def test_whatever_is_sampled_is_read(codec_of: Codecs, family: str) -> None:
    """Half of it broken turns: the reading never fails, and its calls do not hang on the tools."""
    codec, draw = codec_of(family), Random(family)
    turn = codec.assistant(called('{"a": "q r"}')).tolist()
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
    num_calls = 0
    for _ in range(80):
        output = list(turn) if draw.random() < 0.5 else []
        for _ in range(draw.randint(0, 6)):
            place = draw.randint(0, len(output))
            output[place : place + draw.randint(0, 1)] = draw.choice(words)
        output += codec.stop_token_ids[: draw.randint(0, 1)]
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


def test_every_family_of_the_renderers_is_served_or_refused() -> None:
    from renderers.configs import RendererConfig

    known = {it.model_fields["name"].default for it in get_args(get_args(RendererConfig)[0])}
    generic = {"auto", "default"}
    assert set(SERVED) == set(FAMILIES)
    assert not set(SERVED) & set(REFUSED)
    assert {name for name in known if isinstance(name, str)} - generic - {"custom"} == {
        *SERVED,
        *REFUSED,
    }


@pytest.mark.parametrize("family", [*REFUSED, "gpt-9", ""])
def test_another_family_is_refused_at_submission_in_one_line(family: str) -> None:
    raw = job_spec().model_dump(mode="json")
    raw["model"] |= {"family": family}
    with pytest.raises(InvalidJob) as refusal:
        parse_spec(raw)
    message = str(refusal.value)
    assert message.startswith("model.family: ")
    assert "\n" not in message
    assert REFUSED.get(family, "one of qwen3, ") in message


@each_family
def test_another_familys_tokenizer_is_one_clear_error(files: FamilyFiles, family: str) -> None:
    other = "llama-3" if family != "llama-3" else "qwen3"
    with pytest.raises(ModelFilesError, match="not found"):
        load_codec(str(files.of(other)), family)
