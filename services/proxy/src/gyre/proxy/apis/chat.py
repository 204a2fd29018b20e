"""OpenAI's chat completions.

The job's sampling parameters override the client's, because engines report logprobs before top-p
and penalties: what was asked and not done is named in `overridden`. Grammars cannot be ignored,
the client would crash on what it gets: they are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from gyre.proxy.apis.base import Opened, Reply, bearer
from gyre.proxy.apis.chat_messages import read_messages
from gyre.proxy.apis.openai import (
    check_numbers,
    error_object,
    error_reply,
    given,
    read_flag,
    read_list,
    read_model,
    read_object,
    read_object_field,
    refuse,
    refuse_format,
    unsupported,
)
from gyre.proxy.apis.openai_tools import ClientCall, Toolbox, flat_name, read_tools
from gyre.proxy.readings import Known, opened, reading_of
from gyre.proxy.requests import Answer, ContextFull, Fault, Request, Sampling

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
    "verbosity": (None, "medium"),
    "parallel_tool_calls": (None, True),
    "tool_choice": (None, "auto", "none"),
    "prediction": (None,),
    "web_search_options": (None,),
    "store": (None, False),
}
_NUMBERS = (
    "temperature",
    "max_tokens",
    "max_completion_tokens",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "seed",
    "top_logprobs",
)
_GRAMMARS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")
# Of the API before tools.
_LEGACY = ("functions", "function_call")


class Chat:
    """`POST /v1/chat/completions`."""

    def key(self, headers: Mapping[str, str]) -> str | None:
        return bearer(headers)

    def parse(
        self,
        body: bytes,
        headers: Mapping[str, str],
        sampling: Sampling,
        known: Known | None = None,
    ) -> ChatExchange:
        found = opened(body, "messages", known, read_object)
        raw = found.raw
        _refuse_unservable(raw)
        toolbox = read_tools(raw)
        neutral = _NEUTRAL | {
            "temperature": (None, sampling.temperature),
            "max_tokens": (None, sampling.max_new_tokens),
            "max_completion_tokens": (None, sampling.max_new_tokens),
        }
        options = read_object_field(raw, "stream_options")
        messages = read_messages(read_list(raw, "messages"), found.num_known)
        closed = range(1, len(messages) + 1)
        request = Request(
            model=read_model(raw),
            messages=found.messages + messages,
            tools=toolbox.functions,
            tool_calls=raw.get("tool_choice") != "none",
            stream=read_flag(raw, "stream"),
            logprobs=read_flag(raw, "logprobs"),
            overridden=(*given(raw, neutral), *toolbox.overridden),
            headers=headers,
            reading=reading_of(body, "messages", found, closed, messages),
        )
        return ChatExchange(
            request=request, toolbox=toolbox, include_usage=read_flag(options, "include_usage")
        )

    def error(self, fault: Fault) -> Reply:
        return error_reply(fault, _message(fault))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatExchange:
    """include_usage: the client wants a last stream event with the token counts."""

    request: Request
    toolbox: Toolbox
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
            message["tool_calls"] = self._calls(answer)
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
        if answer.content or answer.logprobs:
            text = chunk({"content": answer.content})
            text["choices"][0]["logprobs"] = _logprobs(answer)
            yield _event(text)
        for index, call in enumerate(self._calls(answer)):
            yield _event(chunk({"tool_calls": [{"index": index, **call}]}))
        yield _event(chunk({}, answer.finish_reason))
        if self.include_usage:
            yield _event({**chunk({}), "choices": [], "usage": _usage(answer)})
        yield b"data: [DONE]\n\n"

    def error_event(self, fault: Fault) -> bytes:
        return _event({"error": error_object(fault, _message(fault))})

    def _calls(self, answer: Answer) -> list[dict[str, Any]]:
        return [_call(self.toolbox.client_call(call)) for call in answer.tool_calls]

    def _chunk(
        self, call: str, created: int, delta: dict[str, Any], finish: str | None = None
    ) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "id": completion_id(call),
            "object": "chat.completion.chunk",
            "created": created,
            "model": self.request.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}],
        }
        if self.include_usage:
            chunk["usage"] = None
        return chunk


def completion_id(call: str) -> str:
    """`chatcmpl-` and 24 hex digits: clients merge answers that share an id."""
    return "chatcmpl-" + sha256(call.encode()).hexdigest()[:24]


def _refuse_unservable(raw: Mapping[str, Any]) -> None:
    check_numbers(raw, *_NUMBERS)
    refuse_format(raw.get("response_format"), "response_format")
    refuse(raw, *_GRAMMARS, *_LEGACY, "audio")
    if raw.get("n") not in (None, 1):
        raise unsupported("n", "Unsupported value: 'n': only 1 is served.")
    if raw.get("modalities") not in (None, [], ["text"]):
        raise unsupported("modalities", "Unsupported value: 'modalities': only text is served.")


def _message(fault: Fault) -> str:
    if isinstance(fault, ContextFull):
        return (
            f"This model's maximum context length is {fault.context_tokens} tokens. However, your "
            f"messages resulted in {fault.num_tokens} tokens. Please reduce the length of the "
            "messages."
        )
    return str(fault)


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _call(call: ClientCall) -> dict[str, Any]:
    name = flat_name(call.tool.name, call.tool.namespace)
    if call.tool.is_custom:
        custom = {"name": name, "input": call.payload}
        return {"id": call.id, "type": "custom", "custom": custom}
    function = {"name": name, "arguments": call.payload}
    return {"id": call.id, "type": "function", "function": function}


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
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
