"""Sampled tokens that are reasoning are counted, and told by the APIs that count them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from gyre.proxy.app import APIS
from gyre.proxy.codecs.encoding import Codec, load_codec
from gyre.proxy.codecs.tokenizer import FastTokenizer
from gyre.proxy.requests import Answer, Sampling
from gyre.proxy.turns import as_answer, num_reasoning_tokens
from gyre.testkit.tiny_model import make_tiny_model

SAMPLING = Sampling(temperature=1.0, max_new_tokens=64)
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/responses": {"input": "x"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Codec, FastTokenizer]:
    path = make_tiny_model(tmp_path_factory.mktemp("reasoning") / "m", seed=0)
    return load_codec(str(path), "qwen3"), FastTokenizer(path)


def answered(text: str, model: tuple[Codec, FastTokenizer]) -> Answer:
    codec, tokenizer = model
    ids = tokenizer.encode(text)
    turn = codec.parse(ids)
    return as_answer(
        "e-c00000", turn, created=0, finish="stop", num_input=3, num_output=len(ids), num_cached=0,
        num_reasoning=num_reasoning_tokens(turn, ids, codec.text),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("thought", "rest"),
    [
        ("<think>\nhm, the fox", "\n</think>\n\nthe dog<|im_end|>"),
        ("<think>\nhm \u00e4\U0001f98a", "\n</think>\n\n\U0001f98a<|im_end|>"),
        ("<think>\nhm", "\n</think>\n\nhm hm<|im_end|>"),
        ("<think>\nnot over yet", ""),
    ],
)
def test_reasoning_tokens_are_those_up_to_its_end(
    thought: str, rest: str, model: tuple[Codec, FastTokenizer]
) -> None:
    answer = answered(thought + rest, model)
    assert answer.reasoning_tokens == len(model[1].encode(thought))
    assert answer.reasoning_tokens <= answer.completion_tokens
    for path, body in BODIES.items():
        exchange = APIS[path].parse(orjson.dumps(body), {}, SAMPLING)
        usage = orjson.loads(exchange.body(answer))["usage"]
        details = usage.get("completion_tokens_details") or usage["output_tokens_details"]
        assert details == {"reasoning_tokens": answer.reasoning_tokens}


@pytest.mark.parametrize("text", ["the dog<|im_end|>", "<think>\n\n</think>\n\nx<|im_end|>", ""])
def test_a_turn_without_reasoning_has_none(text: str, model: tuple[Codec, FastTokenizer]) -> None:
    assert answered(text, model).reasoning_tokens == 0
