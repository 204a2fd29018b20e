"""What the proxy's endpoints take and answer, as an OpenAPI document: for fuzzing them."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_COUNT = {"type": "integer"}
_OBJECT = {"type": "object"}


def _list(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "maxItems": 4}


def _record(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": required | optional,
        "additionalProperties": True,
    }


_ROLE = {"type": "string", "enum": ["system", "user", "assistant", "tool", "developer"]}
_PART = _record({"type": {"type": "string", "enum": ["text", "input_text"]}, "text": _TEXT})
_CONTENT = {"anyOf": [_TEXT, _list(_PART)]}
_MESSAGE = _record({"role": _ROLE, "content": _CONTENT}, tool_call_id=_TEXT)
_FUNCTION = _record({"name": _TEXT}, description=_TEXT, parameters=_OBJECT)

_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": _record(
        {"messages": _list(_MESSAGE)},
        model=_TEXT,
        tools=_list(_record({"type": {"const": "function"}, "function": _FUNCTION})),
        stream=_FLAG,
        logprobs=_FLAG,
        max_tokens=_COUNT,
    ),
    "/v1/messages": _record(
        {"model": _TEXT, "max_tokens": _COUNT, "messages": _list(_MESSAGE)},
        system=_CONTENT,
        tools=_list(_record({"name": _TEXT, "input_schema": _OBJECT})),
        stream=_FLAG,
    ),
    "/v1/messages/count_tokens": _record(
        {"model": _TEXT, "messages": _list(_MESSAGE)}, system=_CONTENT
    ),
    "/v1/responses": _record(
        {"input": {"anyOf": [_TEXT, _list(_MESSAGE)]}},
        model=_TEXT,
        instructions=_TEXT,
        tools=_list(_FUNCTION),
        stream=_FLAG,
        store=_FLAG,
    ),
}


def document() -> dict[str, Any]:
    """Every answer that is not a failure of the proxy's own: a server error is none of them."""
    answers = {
        "200": {"description": "the turn"},
        **{status: {"description": "the client's fault"} for status in ("400", "401", "413")},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "gyre-proxy", "version": "1"},
        "paths": {
            path: {
                "post": {
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": body}},
                    },
                    "responses": answers,
                }
            }
            for path, body in _BODIES.items()
        },
    }
