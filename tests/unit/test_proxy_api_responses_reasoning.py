"""Reasoning that clients of the Responses API carry for us."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gyre.core.messages import Message
from gyre.proxy.apis.responses import Responses
from gyre.proxy.apis.responses_reasoning import seal, unseal
from gyre.proxy.requests import BadRequest, Sampling


def parse(*items: dict[str, Any]) -> tuple[Message, ...]:
    sampling = Sampling(temperature=1.0, max_new_tokens=64)
    return Responses().parse(orjson.dumps({"input": items}), {}, sampling).request.messages


def test_reasoning_is_restored_from_what_is_sealed_else_from_what_is_shown() -> None:
    shown = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "short"}],
        "content": [{"type": "reasoning_text", "text": "long"}],
    }
    sealed = shown | {"encrypted_content": seal("the very thought")}
    assert parse(sealed)[0].reasoning == "the very thought"
    assert parse(shown)[0].reasoning == "long\nshort"


@pytest.mark.parametrize("text", ["", "hm", "été\n\x00 {}" * 50])
def test_what_is_sealed_opens_to_the_same_text(text: str) -> None:
    assert unseal(seal(text)) == text


@pytest.mark.parametrize("sealed", ["", "gAAAA", "gyre1.%%%", seal("hm")[:-1], "gyre1._w=="])
def test_reasoning_that_was_not_sealed_here_is_refused(sealed: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse({"type": "reasoning", "encrypted_content": sealed})
    assert refused.value.code == "invalid_encrypted_content"
    assert refused.value.param == "input[0].encrypted_content"
