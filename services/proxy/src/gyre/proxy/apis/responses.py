"""OpenAI's Responses API, which Codex speaks.

Nothing is stored: a request brings its whole history, and what refers to something kept here
(`previous_response_id`, `item_reference`, `conversation`) is refused. As in chat completions the
job's sampling parameters override the client's, and grammars are refused. A turn that hits the
token limit is `incomplete`, as the vendor has it; Codex ends its run there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from gyre.proxy.apis.base import Opened, Reply, bearer
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
    retry_after,
    unsupported,
)
from gyre.proxy.apis.openai_tools import Toolbox, read_tools
from gyre.proxy.apis.responses_input import read_input, read_instructions
from gyre.proxy.apis.responses_output import output_items, response_id, usage
from gyre.proxy.apis.responses_stream import EventWriter, item_events
from gyre.proxy.readings import Known, opened, reading_of
from gyre.proxy.requests import Answer, BadRequest, ContextFull, Fault, Request, Sampling

# What a request may carry with these values and nothing is overridden by ignoring it.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1),
    "top_logprobs": (None, 0),
    "truncation": (None, "disabled"),
    "max_tool_calls": (None,),
    "parallel_tool_calls": (None, True),
    "tool_choice": (None, "auto", "none"),
    "store": (None, False),
}
_NUMBERS = ("temperature", "max_output_tokens", "top_p", "top_logprobs", "max_tool_calls")
_LOGPROBS = "message.output_text.logprobs"
# Fields that an answer repeats.
_ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


class Responses:
    """`POST /v1/responses`."""

    def key(self, headers: Mapping[str, str]) -> str | None:
        return bearer(headers)

    def parse(
        self,
        body: bytes,
        headers: Mapping[str, str],
        sampling: Sampling,
        known: Known | None = None,
    ) -> ResponsesExchange:
        found = opened(body, "input", known, read_object)
        raw = found.raw
        _refuse_unservable(raw)
        toolbox = read_tools(raw)
        instructions = read_instructions(raw)
        messages, closed = read_input(raw, found.num_known)
        request = Request(
            model=read_model(raw),
            messages=instructions + found.messages + messages,
            tools=toolbox.functions,
            tool_calls=raw.get("tool_choice") != "none",
            stream=read_flag(raw, "stream"),
            logprobs=_LOGPROBS in read_list(raw, "include"),
            overridden=(*_overridden(raw, sampling), *toolbox.overridden),
            headers=headers,
            reading=reading_of(body, "input", found, closed, messages, len(instructions)),
        )
        echo = _echo(raw) | {"temperature": sampling.temperature}
        return ResponsesExchange(request, toolbox, echo)

    def error(self, fault: Fault) -> Reply:
        return error_reply(fault, _message(fault))


class ResponsesExchange:
    """One request. Its stream events are numbered as they are made."""

    def __init__(self, request: Request, toolbox: Toolbox, echo: Mapping[str, Any]) -> None:
        self._request = request
        self._toolbox = toolbox
        self._echo = echo
        self._write = EventWriter()
        self._open: dict[str, Any] | None = None

    @property
    def request(self) -> Request:
        return self._request

    def body(self, answer: Answer) -> bytes:
        return orjson.dumps(self._answered(answer, output_items(answer, self._toolbox)))

    def opening(self, opened: Opened) -> bytes:
        self._open = self._response(response_id(opened.call), opened.created)
        return self._write("response.created", response=self._open) + self.idle(opened)

    def idle(self, opened: Opened) -> bytes:
        """The event that the vendor sends as the work begins, again: Codex and the vendor's own
        library let any event reset their timers, and pass over this one."""
        return self._write("response.in_progress", response=self._open)

    def events(self, answer: Answer) -> Iterator[bytes]:
        items = output_items(answer, self._toolbox)
        for index, item in enumerate(items):
            yield from item_events(self._write, index, item)
        response = self._answered(answer, items)
        yield self._write(f"response.{response['status']}", response=response)

    def error_event(self, fault: Fault) -> bytes:
        """The failed response, for which Codex looks, after an error, which the vendor's library
        raises."""
        code, message = _stream_code(fault), _stream_message(fault)
        error = error_object(fault, message) | {"code": code}
        failed = (self._open or {}) | {"status": "failed", "error": error}
        return self._write("error", **error, error=error) + self._write(
            "response.failed", response=failed
        )

    def _answered(self, answer: Answer, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        response = self._response(response_id(answer.call), answer.created)
        cut = answer.finish_reason == "length"
        return response | {
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else answer.created,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": items,
            "usage": usage(answer),
        }

    def _response(self, identity: str, created: int) -> dict[str, Any]:
        return {
            "id": identity,
            "object": "response",
            "created_at": created,
            "completed_at": None,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._request.model,
            "output": [],
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            "usage": None,
            **self._echo,
        }


def _echo(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What every event with a response repeats, written once. Raises BadRequest."""
    echo: dict[str, Any] = {}
    for name, default in _ECHOED.items():
        value = default if raw.get(name) is None else raw[name]
        try:
            echo[name] = orjson.Fragment(orjson.dumps(value))
        except orjson.JSONEncodeError as error:  # deeper than it writes, though it read it
            raise BadRequest(f"'{name}' is nested too deeply.", param=name) from error
    return echo


def _refuse_unservable(raw: Mapping[str, Any]) -> None:
    check_numbers(
        raw, "temperature", "max_output_tokens", "top_p", "top_logprobs", "max_tool_calls"
    )
    earlier = raw.get("previous_response_id")
    if earlier is not None:
        raise BadRequest(
            f"Previous response with id {str(earlier)[:100]!r} not found: responses are not stored "
            "here, send the whole input.",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    refuse(raw, "conversation", "prompt")
    if read_flag(raw, "background"):
        raise unsupported("background", "Unsupported value: 'background': nothing is stored here.")
    refuse_format(read_object_field(raw, "text").get("format"), "text.format")


def _overridden(raw: Mapping[str, Any], sampling: Sampling) -> Iterator[str]:
    yield from given(
        raw,
        _NEUTRAL
        | {
            "temperature": (None, sampling.temperature),
            "max_output_tokens": (None, sampling.max_new_tokens),
        },
    )
    for name, neutral in (
        ("reasoning", {"effort": (None,), "summary": (None,)}),
        ("text", {"verbosity": (None, "medium")}),
    ):
        fields = read_object_field(raw, name)
        yield from (f"{name}.{field}" for field in given(fields, neutral))


def _message(fault: Fault) -> str:
    if isinstance(fault, ContextFull):
        return (
            "Your input exceeds the context window of this model. Please adjust your input and try "
            f"again. (It has {fault.num_tokens} tokens, the context holds {fault.context_tokens}.)"
        )
    return str(fault)


def _stream_code(fault: Fault) -> str:
    """Codex tells by it whether asking again may help."""
    if fault.status < 500 and fault.retry_after_s is None:
        return "invalid_prompt"
    return "server_error" if fault.retry_after_s is None else "rate_limit_exceeded"


def _stream_message(fault: Fault) -> str:
    message = _message(fault)
    if fault.retry_after_s is None:
        return message
    # There is no header left to say it in; Codex reads it here.
    return f"{message} Please try again in {retry_after(fault.retry_after_s)}s."
