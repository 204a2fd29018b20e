"""OpenAI's chat completions.

The job's sampling parameters override the client's, because engines report logprobs before top-p
and penalties: what was asked and not done is named in `overridden`. Grammars cannot be ignored,
the client would crash on what it gets: they are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from gyre.core.messages import InvalidMessage, parse_message
from gyre.proxy.apis.base import Opened, Reply, bearer
from gyre.proxy.requests import (
    Answer,
    AnswerCall,
    BadRequest,
    ContextFull,
    Fault,
    Request,
    Sampling,
)

# What a request may carry with these values and nothing is overridden by ignoring it.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1),
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "seed": (None,),
    "stop": (None, []),
    "top_logprobs": (None, 0),
    "best_of": (None, 1),
    "reasoning_effort": (None,),
    "parallel_tool_calls": (None, True),
}
_GRAMMARS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")


class Chat:
    """`POST /v1/chat/completions`."""

    def key(self, headers: Mapping[str, str]) -> str | None:
        return bearer(headers)

    def parse(self, body: bytes, headers: Mapping[str, str], sampling: Sampling) -> ChatExchange:
        raw = _object(body)
        _refuse_unservable(raw)
        try:
            messages = tuple(
                parse_message(item, index) for index, item in enumerate(_list(raw, "messages"))
            )
        except InvalidMessage as error:
            raise BadRequest(str(error), param="messages") from error
        if not messages:
            raise BadRequest("messages is empty", param="messages")
        options = raw.get("stream_options")
        request = Request(
            model=str(raw.get("model") or "policy"),
            messages=messages,
            tools=_tools(raw),
            tool_calls=raw.get("tool_choice") != "none",
            stream=raw.get("stream") is True,
            logprobs=raw.get("logprobs") is True,
            overridden=tuple(_overridden(raw, sampling)),
            headers=headers,
        )
        include_usage = isinstance(options, dict) and options.get("include_usage") is True
        return ChatExchange(request=request, include_usage=include_usage)

    def error(self, fault: Fault) -> Reply:
        return Reply(status=fault.status, body=_error_body(fault))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatExchange:
    """include_usage: the client wants a last stream event with the token counts."""

    request: Request
    include_usage: bool

    def body(self, answer: Answer) -> bytes:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.content or (None if answer.tool_calls else ""),
            "refusal": None,
        }
        if answer.reasoning is not None:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = [_call(call) for call in answer.tool_calls]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": answer.finish_reason,
            "logprobs": _logprobs(answer),
        }
        return orjson.dumps(
            {
                "id": completion_id(answer.call),
                "object": "chat.completion",
                "created": answer.created,
                "model": self.request.model,
                "choices": [choice],
                "usage": _usage(answer),
            }
        )

    def opening(self, opened: Opened) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return _event(self._chunk(opened.call, opened.created, delta))

    def idle(self, opened: Opened) -> bytes:
        """An empty delta: a real event, which resets idle timers where a comment does not."""
        return _event(self._chunk(opened.call, opened.created, {"content": ""}))

    def events(self, answer: Answer) -> Iterator[bytes]:
        """Up to and with `[DONE]`."""

        def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
            return self._chunk(answer.call, answer.created, delta, finish)

        if answer.reasoning is not None:
            yield _event(chunk({"reasoning_content": answer.reasoning}))
        if answer.content:
            text = chunk({"content": answer.content})
            text["choices"][0]["logprobs"] = _logprobs(answer)
            yield _event(text)
        for index, call in enumerate(answer.tool_calls):
            yield _event(chunk({"tool_calls": [{"index": index, **_call(call)}]}))
        yield _event(chunk({}, answer.finish_reason))
        if self.include_usage:
            yield _event({**chunk({}), "choices": [], "usage": _usage(answer)})
        yield b"data: [DONE]\n\n"

    def error_event(self, fault: Fault) -> bytes:
        return b"data: " + _error_body(fault) + b"\n\n"

    def _chunk(
        self, call: str, created: int, delta: dict[str, Any], finish: str | None = None
    ) -> dict[str, Any]:
        return {
            "id": completion_id(call),
            "object": "chat.completion.chunk",
            "created": created,
            "model": self.request.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}],
        }


def completion_id(call: str) -> str:
    """`chatcmpl-` and 24 hex digits: clients merge answers that share an id."""
    return "chatcmpl-" + sha256(call.encode()).hexdigest()[:24]


def models(model: str, created: int) -> bytes:
    """GET /v1/models: the one policy."""
    item = {"id": model, "object": "model", "created": created, "owned_by": "gyre"}
    return orjson.dumps({"object": "list", "data": [item]})


def _object(body: bytes) -> dict[str, Any]:
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise BadRequest("the body is not a JSON object")
    return raw


def _error_body(fault: Fault) -> bytes:
    """OpenAI's error object, whose `type` follows from the status."""
    kind = {401: "authentication_error", 404: "not_found_error"}.get(
        fault.status, "invalid_request_error" if fault.status < 500 else "server_error"
    )
    error = {
        "message": _message(fault),
        "type": kind,
        "param": fault.param,
        "code": fault.code,
    }
    return orjson.dumps({"error": error})


def _message(fault: Fault) -> str:
    if isinstance(fault, ContextFull):
        return (
            f"This model's maximum context length is {fault.context_tokens} tokens. However, your "
            f"messages resulted in {fault.num_tokens} tokens."
        )
    return str(fault)


def _refuse_unservable(raw: Mapping[str, Any]) -> None:
    response_format = raw.get("response_format")
    if response_format is not None and response_format != {"type": "text"}:
        raise BadRequest(
            "response_format: grammars are not served while training, the recorded probabilities "
            "would be wrong",
            code="unsupported_parameter",
            param="response_format",
        )
    for name in (*_GRAMMARS, "functions", "function_call"):
        if raw.get(name) is not None:
            raise BadRequest(f"{name} is not served", code="unsupported_parameter", param=name)
    if raw.get("n") not in (None, 1):
        raise BadRequest("n: only 1 is served", code="unsupported_parameter", param="n")


def _overridden(raw: Mapping[str, Any], sampling: Sampling) -> Iterator[str]:
    if raw.get("temperature") not in (None, sampling.temperature):
        yield "temperature"
    for name in ("max_tokens", "max_completion_tokens"):
        if raw.get(name) not in (None, sampling.max_new_tokens):
            yield name
    for name, neutral in _NEUTRAL.items():
        if name in raw and raw[name] not in neutral:
            yield name
    if raw.get("tool_choice") not in (None, "auto", "none"):
        yield "tool_choice"


def _tools(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    tools = _list(raw, "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(
                f"tools[{index}]: only functions with a name are served", param="tools"
            )
    return tuple(tools)


def _list(raw: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = raw.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRequest(f"{name} is not a list", param=name)
    return value


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _call(call: AnswerCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def _logprobs(answer: Answer) -> dict[str, Any] | None:
    if not answer.logprobs:
        return None
    content = [
        {
            "token": item.token,
            "logprob": item.logprob,
            "bytes": list(item.token.encode("utf-8", "replace")),
            "top_logprobs": [],
        }
        for item in answer.logprobs
    ]
    return {"content": content, "refusal": None}
