"""Anthropic's Messages API.

A turn goes out as blocks in this order: thinking (if the client asked for it), text, tool_use. A
blank text is left out beside other blocks. Only a client that waits long on a stream gets one block
more: idle events are empty deltas of a text block, which is the turn's text block if the turn
begins with text, and else stays empty before the turn's own blocks.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from gyre.proxy.apis.base import Opened, Reply, bearer
from gyre.proxy.apis.messages_errors import error_body, error_reply, request_id
from gyre.proxy.apis.messages_history import shown_tool_id
from gyre.proxy.apis.messages_requests import Thinking, read_request
from gyre.proxy.readings import Known
from gyre.proxy.requests import Answer, AnswerCall, Fault, Request, Sampling

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Messages:
    """`POST /v1/messages`."""

    def key(self, headers: Mapping[str, str]) -> str | None:
        """Of `x-api-key`, or a bearer token."""
        return headers.get("x-api-key", "").strip() or bearer(headers)

    def parse(
        self,
        body: bytes,
        headers: Mapping[str, str],
        sampling: Sampling,
        known: Known | None = None,
    ) -> MessagesExchange:
        asked = read_request(body, headers, sampling, known)
        return MessagesExchange(request=asked.request, thinking=asked.thinking)

    def error(self, fault: Fault) -> Reply:
        return error_reply(fault)


@dataclass(slots=True, kw_only=True)
class MessagesExchange:
    """is_idling: the stream has an empty text block open, index 0. Mutated by `idle`."""

    request: Request
    thinking: Thinking
    is_idling: bool = False

    def body(self, answer: Answer) -> bytes:
        message = self._message(answer.call, _usage(answer))
        message["content"] = self._blocks(answer)
        message["stop_reason"] = _STOP_REASONS[answer.finish_reason]
        return orjson.dumps(message)

    def opening(self, opened: Opened) -> bytes:
        usage = _counts(opened.num_input_tokens, 0, 0)
        return _event("message_start", {"message": self._message(opened.call, usage)})

    def idle(self, opened: Opened) -> bytes:
        """An empty delta: a ping resets no client's idle timer."""
        start = b"" if self.is_idling else _start(0, {"type": "text", "text": ""})
        self.is_idling = True
        return start + _delta(0, {"type": "text_delta", "text": ""})

    def events(self, answer: Answer) -> Iterator[bytes]:
        """Up to and with message_stop."""
        blocks = self._blocks(answer)
        first = 0
        if self.is_idling and blocks[0]["type"] != "text":
            yield _stop(0)
            first = 1
        for index, block in enumerate(blocks, first):
            if index > 0 or not self.is_idling:
                yield _start(index, _emptied(block))
            yield from (_delta(index, delta) for delta in _deltas(block))
            yield _stop(index)
        ending = {"stop_reason": _STOP_REASONS[answer.finish_reason], "stop_sequence": None}
        yield _event("message_delta", {"delta": ending, "usage": _usage(answer)})
        yield _event("message_stop", {})

    def error_event(self, fault: Fault) -> bytes:
        return b"event: error\ndata: " + error_body(fault, request_id()) + b"\n\n"

    def _message(self, call: str, usage: dict[str, int]) -> dict[str, Any]:
        """A message as it begins."""
        return {
            "id": message_id(call),
            "type": "message",
            "role": "assistant",
            "model": self.request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _blocks(self, answer: Answer) -> list[dict[str, Any]]:
        """The turn's content; one block at least."""
        blocks: list[dict[str, Any]] = []
        if answer.reasoning is not None and self.thinking != "hidden":
            text = answer.reasoning if self.thinking == "shown" else ""
            blocks.append(
                {"type": "thinking", "thinking": text, "signature": signature(answer.call)}
            )
        if answer.content.strip() or not (blocks or answer.tool_calls):
            blocks.append({"type": "text", "text": answer.content})
        return blocks + [_tool_use(call) for call in answer.tool_calls]


def message_id(call: str) -> str:
    """`msg_` and 24 hex digits: clients merge answers that share an id."""
    return "msg_" + sha256(call.encode()).hexdigest()[:24]


def signature(call: str) -> str:
    """Of the turn's thinking, for clients that drop thinking without one. It proves nothing and is
    not looked at when it comes back: the call's tokens are in the log."""
    return base64.b64encode(sha256(f"thinking\x1f{call}".encode()).digest()).decode()


def _tool_use(call: AnswerCall) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": shown_tool_id(call.id),
        "name": call.name,
        "input": orjson.Fragment(call.arguments),
    }


def counted(num_input_tokens: int) -> bytes:
    """The answer of `POST /v1/messages/count_tokens`."""
    return orjson.dumps({"input_tokens": num_input_tokens})


def _usage(answer: Answer) -> dict[str, int]:
    return _counts(answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens)


def _counts(num_input: int, num_cached: int, num_output: int) -> dict[str, int]:
    """The vendor counts what was read from the cache beside the input, not in it."""
    return {
        "input_tokens": max(num_input - num_cached, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_output,
    }


def _emptied(block: dict[str, Any]) -> dict[str, Any]:
    """The block as its start event has it, before its deltas."""
    match block["type"]:
        case "thinking":
            return block | {"thinking": "", "signature": ""}
        case "text":
            return block | {"text": ""}
        case _:
            return block | {"input": {}}


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "thinking":
            if block["thinking"]:
                yield {"type": "thinking_delta", "thinking": block["thinking"]}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "text":
            yield {"type": "text_delta", "text": block["text"]}
        case _:
            arguments = orjson.dumps(block["input"]).decode()
            yield {"type": "input_json_delta", "partial_json": arguments}


def _start(index: int, block: dict[str, Any]) -> bytes:
    return _event("content_block_start", {"index": index, "content_block": block})


def _delta(index: int, delta: dict[str, Any]) -> bytes:
    return _event("content_block_delta", {"index": index, "delta": delta})


def _stop(index: int) -> bytes:
    return _event("content_block_stop", {"index": index})


def _event(name: str, fields: dict[str, Any]) -> bytes:
    data = orjson.dumps({"type": name} | fields)
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
