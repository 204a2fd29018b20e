"""Errors of the Responses API, as answers and in a stream that has begun."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gyre.proxy.apis.base import Opened
from gyre.proxy.apis.responses import Responses
from gyre.proxy.requests import ContextFull, Fault, Sampling


def decoded(stream: bytes) -> list[dict[str, Any]]:
    frames = stream.decode().split("\n\n")[:-1]
    return [orjson.loads(frame.split("\n")[1].removeprefix("data: ")) for frame in frames]


def test_a_full_context_is_told_in_the_words_that_clients_look_for() -> None:
    reply = Responses().error(ContextFull(num_tokens=9, context_tokens=8))
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (400, "context_length_exceeded")
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("Your input exceeds the context window of this model.")


def test_overload_is_a_503_that_says_when_to_ask_again() -> None:
    fault = Fault("busy", status=529, code="overloaded", retry_after_s=1.2)
    reply = Responses().error(fault)
    assert (reply.status, reply.headers) == (503, {"retry-after": "2"})
    assert orjson.loads(reply.body)["error"]["code"] == "overloaded"
    late = Fault("busy", status=503, code="overloaded", retry_after_s=900)
    assert Responses().error(late).headers == {"retry-after": "60"}


@pytest.mark.parametrize(
    ("fault", "code", "ending"),
    [
        (Fault("no engine", status=503, code="no_engine"), "server_error", "no engine"),
        (
            Fault("busy", status=503, code="overloaded", retry_after_s=2.0),
            "rate_limit_exceeded",
            "Please try again in 2s.",
        ),
        (Fault("sealed", status=409, code="calls_sealed"), "invalid_prompt", "sealed"),
    ],
)
def test_a_failure_in_a_stream_is_an_error_and_a_failed_response(
    fault: Fault, code: str, ending: str
) -> None:
    body = orjson.dumps({"input": "hi", "stream": True})
    asked = Responses().parse(body, {}, Sampling(temperature=1.0, max_new_tokens=64))
    opened = Opened(call="job-g0-e0-c00000", created=1, num_input_tokens=3)
    created, _ = decoded(asked.opening(opened))
    error, failed = decoded(asked.error_event(fault))
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    assert failed["response"]["id"] == created["response"]["id"]
    assert failed["response"]["status"] == "failed"
    for told in (error, error["error"], failed["response"]["error"]):
        assert told["code"] == code
        assert told["message"].endswith(ending)
    assert (error["sequence_number"], failed["sequence_number"]) == (2, 3)
