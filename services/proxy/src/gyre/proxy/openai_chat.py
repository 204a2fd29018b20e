"""OpenAI's chat completions: a request's body to what is asked, an answer to JSON or stream events.

Pure translation. The job's sampling parameters override the client's, because engines report
logprobs before top-p and penalties: what was asked and not done is named in `overridden`.
Grammars cannot be ignored, the client would crash on what it gets: they are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gyre.core.messages import InvalidMessage, Message, parse_message

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


class BadRequest(ValueError):
    """The client's request cannot be served. status, code, param: OpenAI's error object."""

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """messages: not empty. tools: as sent. overridden: names of parameters that are not obeyed."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    tool_calls: bool
    stream: bool
    include_usage: bool
    logprobs: bool
    overridden: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCall:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    token: str
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole turn. created: unix seconds."""

    id: str
    created: int
    content: str
    reasoning: str | None
    tool_calls: tuple[AnswerCall, ...]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()


def parse_request(body: bytes, *, temperature: float, max_new_tokens: int) -> ChatRequest:
    """Raises BadRequest, with the field at fault in its text.

    temperature, max_new_tokens: the job's, to tell whether the client asked for others.
    """
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise BadRequest("the body is not a JSON object")
    _refuse_unservable(raw)
    try:
        messages = tuple(
            parse_message(item, index) for index, item in enumerate(_list(raw, "messages"))
        )
    except InvalidMessage as error:
        raise BadRequest(str(error), param="messages") from error
    if not messages:
        raise BadRequest("messages is empty", param="messages")
    stream_options = raw.get("stream_options") or {}
    return ChatRequest(
        model=str(raw.get("model") or "policy"),
        messages=messages,
        tools=_tools(raw),
        tool_calls=raw.get("tool_choice") != "none",
        stream=raw.get("stream") is True,
        include_usage=isinstance(stream_options, dict)
        and stream_options.get("include_usage") is True,
        logprobs=raw.get("logprobs") is True,
        overridden=tuple(_overridden(raw, temperature, max_new_tokens)),
    )


def completion(answer: Answer, model: str) -> bytes:
    """The body of a chat completion that is not streamed."""
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
            "id": answer.id,
            "object": "chat.completion",
            "created": answer.created,
            "model": model,
            "choices": [choice],
            "usage": _usage(answer),
        }
    )


def opening_chunk(identity: str, created: int, model: str) -> bytes:
    """The first stream event: says whose turn it is, before there is any of it."""
    return _event(_chunk(identity, created, model, {"role": "assistant", "content": ""}))


def idle_chunk(identity: str, created: int, model: str) -> bytes:
    """An empty delta: a real event, which resets clients' idle timers where a comment does not."""
    return _event(_chunk(identity, created, model, {"content": ""}))


def answer_chunks(answer: Answer, model: str, *, include_usage: bool) -> Iterator[bytes]:
    """The stream events after the opening one, up to and with `[DONE]`."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return _chunk(answer.id, answer.created, model, delta, finish)

    if answer.reasoning is not None:
        yield _event(chunk({"reasoning_content": answer.reasoning}))
    if answer.content:
        text = chunk({"content": answer.content})
        text["choices"][0]["logprobs"] = _logprobs(answer)
        yield _event(text)
    for index, call in enumerate(answer.tool_calls):
        yield _event(chunk({"tool_calls": [{"index": index, **_call(call)}]}))
    yield _event(chunk({}, answer.finish_reason))
    if include_usage:
        yield _event({**chunk({}), "choices": [], "usage": _usage(answer)})
    yield b"data: [DONE]\n\n"


def error_body(message: str, *, status: int, code: str | None, param: str | None) -> bytes:
    """OpenAI's error object, whose `type` follows from the status."""
    kind = {401: "authentication_error", 404: "not_found_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_event(body: bytes) -> bytes:
    """An error for a stream whose headers are out."""
    return b"data: " + body + b"\n\n"


def models(model: str, created: int) -> bytes:
    """GET /v1/models: the one policy."""
    item = {"id": model, "object": "model", "created": created, "owned_by": "gyre"}
    return orjson.dumps({"object": "list", "data": [item]})


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


def _overridden(raw: Mapping[str, Any], temperature: float, max_new_tokens: int) -> Iterator[str]:
    if raw.get("temperature") not in (None, temperature):
        yield "temperature"
    for name in ("max_tokens", "max_completion_tokens"):
        if raw.get(name) not in (None, max_new_tokens):
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


def _chunk(
    identity: str, created: int, model: str, delta: dict[str, Any], finish: str | None = None
) -> dict[str, Any]:
    return {
        "id": identity,
        "object": "chat.completion.chunk",
        "created": created,
        "model": model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}],
    }


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
