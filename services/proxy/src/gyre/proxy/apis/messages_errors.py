"""Errors of the Messages API, in the vendor's shape and in the words that its clients act on.

A prompt that leaves no room for an answer is "too long", which makes clients compact; the other
wording, of input and max_tokens together, is never ours: the job's limit on the answer overrides
the client's and is cut to what is left of the context. Whatever passes if one waits is the
vendor's overload.
"""

from __future__ import annotations

import math
import secrets

import orjson

from gyre.proxy.apis.base import Reply
from gyre.proxy.requests import ContextFull, Fault

_OVERLOADED = 529
# Clients that are told to wait longer give up at once.
_MAX_RETRY_AFTER_S = 60
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _OVERLOADED: "overloaded_error",
}


def error_reply(fault: Fault) -> Reply:
    """The whole HTTP answer."""
    request = request_id()
    headers = {"request-id": request}
    if fault.retry_after_s is not None:
        wait_s = min(max(math.ceil(fault.retry_after_s), 1), _MAX_RETRY_AFTER_S)
        headers["retry-after"] = str(wait_s)
    return Reply(status=_status(fault), body=error_body(fault, request), headers=headers)


def error_body(fault: Fault, request: str) -> bytes:
    """The vendor's error object. request: the id that it shows."""
    error = {"type": _type(_status(fault)), "message": _message(fault)}
    # The id comes first: Claude Code takes what follows a message for a part of it, and into its
    # history, where it would differ each time.
    return orjson.dumps({"type": "error", "request_id": request, "error": error})


def request_id() -> str:
    """`req_` and 24 hex digits, another one each time."""
    return "req_" + secrets.token_hex(12)


def _status(fault: Fault) -> int:
    busy = fault.status == 503 or fault.code == "overloaded"
    return _OVERLOADED if busy else fault.status


def _type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def _message(fault: Fault) -> str:
    if isinstance(fault, ContextFull):
        # One token at least is the answer's.
        maximum = fault.context_tokens - 1
        return f"prompt is too long: {fault.num_tokens} tokens > {maximum} maximum"
    if fault.status == 413:
        return "Request exceeds the maximum allowed number of bytes."
    return str(fault)
