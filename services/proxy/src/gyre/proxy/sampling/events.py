"""What an engine's stream says, and how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

_VERSION_MARK = b'"weight_version":'


class EngineRefused(Exception):
    """The engine answered that it will not serve this request, however often it is asked."""


class EngineBroken(Exception):
    """The connection failed or ended before the turn did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Output tokens [start, end) of one attempt were sampled under (lineage, version)."""

    start: int
    end: int
    lineage: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one attempt sampled. finish is None while the stream is not over.

    logprobs: natural log, one a token. spans cover all tokens, in order. finish: "stop", "length",
    "abort" or None. num_cached: prompt tokens that the engine had in its cache. refusal: why
    the engine will not serve the request, if it says so in a stream; there are no tokens then.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    spans: tuple[VersionSpan, ...] = ()
    finish: Literal["stop", "length", "abort"] | None = None
    num_cached: int = 0
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOrder:
    """One attempt. rid: of fixed length, because engines match rids by prefix when they abort.
    execution: whose contexts follow each other. extra_key: keeps its cached prefixes from those
    that were computed under other weights, in an engine that does not by itself."""

    rid: str
    execution: str
    input_ids: Sequence[int]
    max_new_tokens: int
    temperature: float
    seed: int
    stop_token_ids: Sequence[int]
    extra_key: str | None = None


def version_of(event: bytes) -> bytes:
    """The quoted version name in an event, found without parsing it: events are many and long."""
    start = event.find(_VERSION_MARK)
    if start < 0:
        return b""
    start = event.find(b'"', start + len(_VERSION_MARK))
    return event[start + 1 : event.find(b'"', start + 1)]


def text_of(version: bytes) -> str:
    return version.decode("utf-8", "replace")


def message_of(body: bytes) -> str:
    """The message of SGLang's error shapes, or the body itself."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:200].decode("utf-8", "replace")
    if isinstance(raw, dict):
        error = raw.get("error")
        if isinstance(error, dict):
            return str(error.get("message"))
        return str(raw.get("message") or raw.get("detail") or error)
    return str(raw)[:200]
