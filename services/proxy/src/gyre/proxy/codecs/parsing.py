"""Sampled tokens as an answer: what a client can execute, and the text of what it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Calls that were read to their end. Of others a part may be missing, and nothing is mended here.
# "invalid_json" is also a value that its tool's schema does not allow, which its client can tell.
_WHOLE = frozenset(("ok", "invalid_json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A tool call that a client can execute: `arguments` is JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """Sampled tokens as an answer. content holds the raw text of malformed tool calls too."""

    content: str
    reasoning: str | None
    tool_calls: tuple[ParsedCall, ...]
    num_malformed_tool_calls: int


def read_turn(
    parsed: Any, ids: Sequence[int], decode: Callable[[Sequence[int]], str], *, tool_calls: bool
) -> ParsedTurn:
    """parsed: a renderer's ParsedResponse of `ids`. tool_calls=False: calls are text as well."""
    good: list[ParsedCall] = []
    texts = [parsed.content]
    malformed = 0
    for attempt in parsed.tool_calls:
        call = executable(attempt) if tool_calls else None
        if call is not None:
            good.append(call)
            continue
        malformed += tool_calls
        span = attempt.token_span
        texts.append(attempt.raw if span is None else decode(ids[span[0] : span[1]]))
    return ParsedTurn(
        content="\n".join(filter(None, texts)),
        reasoning=parsed.reasoning_content,
        tool_calls=tuple(good),
        num_malformed_tool_calls=malformed,
    )


def executable(attempt: Any) -> ParsedCall | None:
    """None for what no client could run: `llm` crashes on a name that is no string and on
    arguments that are no object."""
    name, arguments = attempt.name, attempt.arguments
    if attempt.status not in _WHOLE or not isinstance(name, str) or not name:
        return None
    if not isinstance(arguments, Mapping):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + text).encode()
    except (ValueError, RecursionError):  # NaN, lone surrogates
        return None
    return ParsedCall(name=name, arguments=text)


def read_object(arguments: str) -> dict[str, Any] | None:
    """The JSON object that a client's text of a call's arguments is; blank is an empty one. None
    for any other, and for one that holds what is no text (lone surrogates)."""
    if not arguments:
        return {}
    try:
        found = json.loads(arguments)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
