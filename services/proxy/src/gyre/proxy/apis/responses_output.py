"""A turn as output items of the Responses API: reasoning, text and calls, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from gyre.proxy.apis.openai_tools import ClientCall, Toolbox
from gyre.proxy.apis.responses_reasoning import seal
from gyre.proxy.requests import Answer, TokenLogprob


def response_id(call: str) -> str:
    """`resp_` and 24 hex digits, of the call's id in the log."""
    return f"resp_{_digits(call)}"


def output_items(answer: Answer, toolbox: Toolbox) -> list[dict[str, Any]]:
    """At least one item beside the reasoning: a turn that said nothing is an empty message, so that
    its echo is one, too."""
    digits = _digits(answer.call)
    cut = answer.finish_reason == "length"
    items: list[dict[str, Any]] = []
    if answer.reasoning is not None:
        items.append(_reasoning(f"rs_{digits}", answer.reasoning))
    if answer.content or not answer.tool_calls:
        items.append(_message(f"msg_{digits}", answer, "incomplete" if cut else "completed"))
    for index, call in enumerate(answer.tool_calls):
        items.append(_call(f"{digits}{index:02d}", toolbox.client_call(call)))
    return items


def usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


def _digits(call: str) -> str:
    return sha256(call.encode()).hexdigest()[:24]


def _reasoning(identity: str, text: str) -> dict[str, Any]:
    """Shown in full and sealed: Codex sends both back, others one of them."""
    return {
        "type": "reasoning",
        "id": identity,
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "encrypted_content": seal(text),
    }


def _message(identity: str, answer: Answer, status: str) -> dict[str, Any]:
    part = {
        "type": "output_text",
        "text": answer.content,
        "annotations": [],
        "logprobs": _logprobs(answer.logprobs),
    }
    return {
        "type": "message",
        "id": identity,
        "status": status,
        "role": "assistant",
        "content": [part],
    }


def _call(digits: str, call: ClientCall) -> dict[str, Any]:
    custom = call.tool.is_custom
    item = {
        "type": "custom_tool_call" if custom else "function_call",
        "id": f"{'ctc' if custom else 'fc'}_{digits}",
        "status": "completed",
        "call_id": call.id,
        "name": call.tool.name,
        "input" if custom else "arguments": call.payload,
    }
    if call.tool.namespace is not None:
        item["namespace"] = call.tool.namespace
    return item


def _logprobs(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return [
        {
            "token": item.token,
            "logprob": item.logprob,
            "bytes": list(item.token.encode("utf-8", "replace")),
            "top_logprobs": [],
        }
        for item in logprobs
    ]
