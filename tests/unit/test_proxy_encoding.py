"""Qwen3 messages to tokens and back, over a small byte-level tokenizer."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

from gyre.core.matching import Matcher
from gyre.core.messages import Message, ToolCall
from gyre.core.tree import Tree
from gyre.proxy.codecs.encoding import FamilyCodec, load_codec
from gyre.proxy.codecs.families import FAMILIES
from gyre.proxy.codecs.tokenizer import FastTokenizer, ModelFilesError
from gyre.testkit.proxy_world import TOOLS
from gyre.testkit.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("codec") / "m", seed=0)


@pytest.fixture(scope="module")
def codec(model: Path) -> FamilyCodec:
    return FamilyCodec(FastTokenizer(model), FAMILIES["qwen3"])


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    """The renderer as a library user would have it, on the usual tokenizer wrapper."""
    from renderers import create_renderer
    from renderers.configs import Qwen3RendererConfig
    from transformers import AutoTokenizer

    return create_renderer(AutoTokenizer.from_pretrained(str(model)), Qwen3RendererConfig())


def ids(codec: FamilyCodec, text: str) -> array[int]:
    return array("i", codec._tokenizer.encode(text))


@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize("system", [None, "You are helpful.\n\nVery."])
def test_message_by_message_is_the_whole_template(
    codec: FamilyCodec, reference: Any, tools: list[dict[str, Any]], system: str | None
) -> None:
    raw = [{"role": "user", "content": text} for text in ("Write 3 ", "\n x\n\n", "", "é漢🙂")]
    if system is not None:
        raw.insert(0, {"role": "system", "content": system})
    messages = [Message(role=item["role"], content=item["content"]) for item in raw]  # type: ignore[arg-type]
    matcher = Matcher(Tree())
    plan = matcher.plan(messages, tools, attempt=1, encoder=codec)
    expected = reference.render_ids(raw, tools=tools or None, add_generation_prompt=True)
    assert list(matcher.tree.path_tokens(plan.parent)) == expected


def test_what_follows_a_turn_is_the_renderers_bridge(codec: FamilyCodec, reference: Any) -> None:
    prompt = reference.render_ids(
        [{"role": "user", "content": "go"}], tools=TOOLS, add_generation_prompt=True
    )
    turn = ids(
        codec, '<tool_call>\n{"name": "write_file", "arguments": {}}\n</tool_call><|im_end|>'
    )
    raw = [{"role": "tool", "content": f"done {i}", "tool_call_id": f"c{i}"} for i in range(2)]
    expected = reference.bridge_to_next_turn(prompt, list(turn), raw, tools=TOOLS).token_ids
    messages = [
        Message(role="tool", content=item["content"], tool_call_id=item["tool_call_id"])
        for item in raw
    ]
    encoded = codec.inputs_after_turn(turn, messages)
    assert len(encoded) == 2
    joined = [token for part in encoded for token in part] + list(codec.generation())
    assert [*prompt, *turn, *joined] == expected


def test_a_turn_that_was_cut_is_closed_by_what_follows(codec: FamilyCodec) -> None:
    cut = ids(codec, "half a sen")
    [tokens] = codec.inputs_after_turn(cut, [Message(role="user", content="go on")])
    assert codec._decode(list(tokens)) == "<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n"


def test_open_reasoning_stays_as_it_was_sampled(codec: FamilyCodec) -> None:
    thinking = ids(codec, "<think>\nhm<|im_end|>")
    [tokens] = codec.inputs_after_turn(thinking, [Message(role="user", content="go on")])
    assert codec._decode(list(tokens)) == "\n<|im_start|>user\ngo on<|im_end|>\n"
    assert codec.parse(thinking).content == ""


def test_an_injected_turn_is_encoded_up_to_its_close(codec: FamilyCodec) -> None:
    call = ToolCall(id="c", name="write_file", arguments='{"path": "a"}')
    tokens = codec.assistant(Message(role="assistant", content="so", tool_calls=(call,)))
    assert codec._decode(list(tokens)) == (
        '<|im_start|>assistant\nso\n<tool_call>\n{"name": "write_file", "arguments": '
        '{"path": "a"}}\n</tool_call><|im_end|>'
    )


def test_parallel_calls_and_reasoning_are_read(codec: FamilyCodec) -> None:
    block = '<tool_call>\n{"name": "f", "arguments": {"a":1.0}}\n</tool_call>'
    turn = codec.parse(ids(codec, f"<think>\nok\n</think>\n\nNow.\n{block}\n{block}<|im_end|>"))
    assert (turn.content, turn.reasoning) == ("Now.", "ok")
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("f", '{"a": 1.0}')] * 2
    assert turn.num_malformed_tool_calls == 0


@pytest.mark.parametrize(
    "block",
    [
        '{"name": 3, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": null}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": "\\ud800"}}',
        '["f"]',
        "{broken",
        "[" * 5000,
    ],
)
def test_what_no_client_can_run_is_sent_as_text(codec: FamilyCodec, block: str) -> None:
    good = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    tokens = ids(codec, f"<tool_call>\n{block}\n</tool_call><|im_end|>")
    turn = codec.parse(tokens)
    assert turn.tool_calls == ()
    assert turn.num_malformed_tool_calls == 1
    assert block[:50] in turn.content
    turn.content.encode()
    if len(block) < 100:
        both = codec.parse(ids(codec, f"{good}\n<tool_call>\n{block}\n</tool_call><|im_end|>"))
        assert [call.name for call in both.tool_calls] == ["g"]


def test_an_unclosed_call_is_malformed_and_no_calls_means_text(codec: FamilyCodec) -> None:
    cut = codec.parse(ids(codec, '<tool_call>\n{"name": "f", "argu'))
    assert (cut.tool_calls, cut.num_malformed_tool_calls) == ((), 1)
    whole = ids(codec, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>')
    unwanted = codec.parse(whole, tool_calls=False)
    assert (unwanted.tool_calls, unwanted.num_malformed_tool_calls) == ((), 0)
    assert '"name": "f"' in unwanted.content


def test_the_fast_tokenizer_is_the_usual_one(model: Path, reference: Any) -> None:
    from transformers import AutoTokenizer

    usual, fast = AutoTokenizer.from_pretrained(str(model)), FastTokenizer(model)
    for text in ("", "a b  c\n\n", "é漢🙂", "<|im_start|>user\nx<|im_end|>", "x" * 100):
        tokens = usual.encode(text, add_special_tokens=False)
        assert fast.encode(text) == tokens
        assert fast.decode(tokens) == usual.decode(tokens, skip_special_tokens=False)


def test_a_directory_without_a_tokenizer_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="no tokenizer can be read"):
        load_codec(str(tmp_path), "qwen3")
    with pytest.raises(ModelFilesError, match="family"):
        load_codec(str(tmp_path), "llama")
