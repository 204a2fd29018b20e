"""Bodies and errors of the HTTP routes: parsing by field, SGLang's error shapes."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import orjson
from aiohttp import web

from gyre.cell_agent.engine.local.engine import LocalEngine
from gyre.cell_agent.engine.local.errors import (
    BadRequestError,
    GoneError,
    LocalEngineError,
    SchemaError,
    UnauthorizedError,
    UnavailableError,
    UnknownParameterError,
)

ENGINE: web.AppKey[LocalEngine] = web.AppKey("engine", LocalEngine)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_T = TypeVar("_T")
_REQUIRED = object()
MAX_S = 60.0
"""Of a pin and of a copy between engines: what takes longer is cheaper to prefill again."""


def json_response(value: Any, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


async def read_body(request: web.Request, *, optional: bool = False) -> dict[str, Any]:
    """The JSON object in the body; an empty body is `{}` when `optional`."""
    raw = await request.read()
    if optional and not raw:
        return {}
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise SchemaError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise SchemaError("the body is not a JSON object")
    return body


def field(body: dict[str, Any], name: str, kind: type[_T], default: Any = _REQUIRED) -> Any:
    """`body[name]` if it has the given type; without a default the field is required."""
    value = body.get(name)
    if value is None:
        if default is _REQUIRED:
            raise SchemaError(f"{name}: Field required")
        return default
    if not isinstance(value, kind):
        raise SchemaError(f"{name} must be of type {kind.__name__}, got {value!r}")
    return value


def read_seconds(body: dict[str, Any], name: str, default: Any = _REQUIRED) -> Any:
    """`body[name]`, a duration above 0 and at most MAX_S; without a default it is required."""
    value = body.get(name)
    if value is None and default is not _REQUIRED:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SchemaError(f"{name} must be a number of seconds, got {value!r}")
    if not (math.isfinite(value) and 0 < value <= MAX_S):
        raise BadRequestError(f"{name} must be above 0 and at most {MAX_S:g} seconds")
    return float(value)


def error_body(error: LocalEngineError) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON of an error: the contract has one shape for a body that does not
    parse, one for an unknown sampling parameter and one for a value that is refused."""
    match error:
        case SchemaError():
            return 400, {
                "object": "error",
                "message": str(error),
                "type": "Bad Request",
                "param": None,
                "code": 400,
            }
        case UnknownParameterError():
            return 400, {"error": str(error)}
        case GoneError():
            return 410, {"error": {"message": str(error)}}
        case UnauthorizedError():
            return 401, {"error": {"message": str(error)}}
        case UnavailableError():
            return 503, {"error": {"message": str(error)}}
        case _:
            return 400, {"error": {"message": str(error)}}


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The boundary where the engine's errors become answers, once."""
    try:
        return await handler(request)
    except LocalEngineError as error:
        status, body = error_body(error)
        return json_response(body, status)
    except web.HTTPNotFound:
        return json_response({"detail": "Not Found"}, 404)
    except web.HTTPMethodNotAllowed:
        return json_response({"detail": "Method Not Allowed"}, 405)


def stream_error(error: LocalEngineError) -> bytes:
    """An error inside a stream, whose status line is already 200."""
    code = 503 if isinstance(error, UnavailableError) else 400
    return orjson.dumps(
        {
            "error": {
                "message": str(error),
                "type": "invalid_request_error",
                "code": code,
                "retryable": False,
            }
        }
    )


__all__ = [
    "ENGINE",
    "BadRequestError",
    "answer_errors",
    "error_body",
    "field",
    "json_response",
    "read_body",
    "read_seconds",
    "stream_error",
]
