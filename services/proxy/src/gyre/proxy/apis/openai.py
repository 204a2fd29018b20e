"""What OpenAI's APIs have in common: the body's reading, text parts, the error object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any, NoReturn

import orjson

from gyre.proxy.apis.base import Reply
from gyre.proxy.requests import BadRequest, Fault

# Where the parts of a message hold their text, by the part's type, in either API.
TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
_IMAGES = ("image_url", "input_image")
# Of OpenAI's two overload answers the one that clients are most patient with: Codex asks 30 times
# after a 503 that names a time, 6 times after such a 429 and not again after one that names none.
_OVERLOAD_STATUS = 503
# How long a retry-after may be: agent programs give up at once on one above a minute.
_LONGEST_RETRY_S = 60

_NAME_CHARS = 256


def read_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises BadRequest."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(raw, dict):
        raise BadRequest("We could not parse your request: the body is not a JSON object")
    return raw


def read_list(raw: Mapping[str, Any], name: str) -> Sequence[Any]:
    """A field that is a list or missing."""
    value = raw.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type(name, "an array")
    return value


def read_object_field(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field that is an object or missing."""
    value = raw.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type(name, "an object")
    return value


def read_flag(raw: Mapping[str, Any], name: str) -> bool:
    """A field that is true, false or missing, which is false."""
    value = raw.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong_type(name, "a boolean")
    return value


def check_numbers(raw: Mapping[str, Any], *names: str) -> None:
    """Raises BadRequest where one of the fields is neither a number nor missing."""
    for name in names:
        value = raw.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise wrong_type(name, "a number")


def read_model(raw: Mapping[str, Any]) -> str:
    """The name that the client calls the policy by; any is served."""
    model = raw.get("model")
    if model is None:
        return "policy"
    if not isinstance(model, str) or not 0 < len(model) <= _NAME_CHARS:
        raise wrong_type("model", f"a string of 1 to {_NAME_CHARS} characters")
    return model


def read_text(raw: Mapping[str, Any], name: str, where: str) -> str:
    """A field that must be a string."""
    value = raw.get(name)
    if not isinstance(value, str):
        param = f"{where}.{name}"
        if value is None:
            raise missing(param)
        raise wrong_type(param, "a string")
    return value


def text_blocks(content: Any, where: str) -> tuple[str, ...]:
    """The texts that a message's content is made of: one of a string, one a part of a list.

    where: names the content in errors. Raises BadRequest, for an image too.
    """
    match content:
        case None:
            return ()
        case str():
            return (content,)
        case list():
            return tuple([_block(part, where, index) for index, part in enumerate(content)])
        case _:
            raise wrong_type(where, "a string or an array of content parts")


def _block(part: Any, content: str, index: int) -> str:
    if isinstance(part, dict):
        kind = part.get("type")
        field = TEXT_FIELDS.get(kind) if isinstance(kind, str) else None
        text = None if field is None else part.get(field)
        if isinstance(text, str):
            return text
    return _refuse_block(part, f"{content}[{index}]")


def _refuse_block(part: Any, where: str) -> NoReturn:
    """Raises BadRequest that says what is wrong with a part that is no text."""
    if not isinstance(part, dict):
        raise wrong_type(where, "an object")
    kind = part.get("type")
    if kind in _IMAGES:
        raise BadRequest(
            "Invalid content type. image_url is only supported by certain models.",
            code="invalid_value",
            param=f"{where}.type",
        )
    if not isinstance(kind, str) or kind not in TEXT_FIELDS:
        raise invalid_value(f"{where}.type", kind, "text")
    raise wrong_type(f"{where}.{TEXT_FIELDS[kind]}", "a string")


def given(raw: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> Iterator[str]:
    """Fields of a request that say something. neutral: each field's values that say nothing."""
    for name, values in neutral.items():
        if name in raw and raw[name] not in values:
            yield name


def refuse(raw: Mapping[str, Any], *names: str) -> None:
    """Raises BadRequest where the request has one of the fields."""
    for name in names:
        if raw.get(name) is not None:
            raise unsupported(name, f"Unsupported parameter: '{name}' is not supported here.")


def refuse_format(asked: Any, param: str) -> None:
    """Raises BadRequest for an output format other than text: a grammar cannot be ignored, the
    client would crash on what it gets, and it would falsify the recorded probabilities."""
    if asked is None or (isinstance(asked, dict) and asked.get("type") == "text"):
        return
    raise unsupported(
        param, f"Unsupported value: '{param}': only text is served, nothing else can be trained on."
    )


def unsupported(param: str, message: str) -> BadRequest:
    return BadRequest(message, code="unsupported_parameter", param=param)


def missing(param: str) -> BadRequest:
    return BadRequest(
        f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param
    )


def wrong_type(param: str, expected: str) -> BadRequest:
    return BadRequest(
        f"Invalid type for '{param}': expected {expected}.", code="invalid_type", param=param
    )


def invalid_value(param: str, value: Any, *supported: str) -> BadRequest:
    shown = repr(value)[:_NAME_CHARS]
    names = ", ".join(f"'{name}'" for name in supported)
    return BadRequest(
        f"Invalid value: {shown}. Supported values are: {names}.", code="invalid_value", param=param
    )


def error_object(fault: Fault, message: str) -> dict[str, Any]:
    """OpenAI's error object, whose `type` follows from the status."""
    kind = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}.get(
        fault.status, "invalid_request_error" if fault.status < 500 else "server_error"
    )
    return {"message": message, "type": kind, "param": fault.param, "code": fault.code}


def error_reply(fault: Fault, message: str) -> Reply:
    """The error as a whole answer."""
    overloaded = fault.code == "overloaded"
    body = orjson.dumps({"error": error_object(fault, message)})
    headers = {}
    if fault.retry_after_s is not None:
        headers["retry-after"] = str(retry_after(fault.retry_after_s))
    return Reply(
        status=_OVERLOAD_STATUS if overloaded else fault.status, body=body, headers=headers
    )


def retry_after(seconds: float) -> int:
    """Whole seconds that clients obey."""
    return max(1, min(_LONGEST_RETRY_S, ceil(seconds)))
