"""Streams from an engine's native API (SGLang's HTTP contract) and keeps what was sampled.

Ids and logprobs in a stream are cumulative, so only the newest event matters: it is kept as bytes
and parsed once, when the stream ends or breaks. An engine's death loses no token that it sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
import numpy as np
import orjson

from gyre.adapters.failpoints import failpoint
from gyre.core.routing import UnreadableWeightVersion, parse_weight_version

CONNECT_TIMEOUT_S = 2.0
_SEPARATOR = b"\n\n"
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
    "abort" or None. num_cached: prompt tokens that the engine had in its cache.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    spans: tuple[VersionSpan, ...] = ()
    finish: Literal["stop", "length", "abort"] | None = None
    num_cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOrder:
    """One attempt. rid: of fixed length, because engines match rids by prefix when they abort."""

    rid: str
    input_ids: Sequence[int]
    max_new_tokens: int
    temperature: float
    seed: int
    stop_token_ids: Sequence[int]


class EngineStream:
    """One attempt at one engine. `run` mutates it; `sample` may be read at any time. first_event:
    when the first one came, on the event loop's clock."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, default_version: tuple[int, int]
    ) -> None:
        self._session = session
        self._url = url
        self._default_version = default_version
        self._newest = b""
        self._sampled: tuple[bytes, Sample] | None = None
        self._version = b""
        self._changes: list[tuple[bytes, bytes]] = []
        self.first_event: float | None = None

    async def run(self, order: SamplingOrder) -> None:
        """Streams to the end. Raises EngineRefused, EngineBroken."""
        body = {
            "rid": order.rid,
            # As an array, which is five times as fast as a list: contexts are long.
            "input_ids": np.asarray(order.input_ids, dtype=np.int32),
            "stream": True,
            "return_logprob": True,
            "logprob_start_len": -1,
            "sampling_params": {
                "max_new_tokens": order.max_new_tokens,
                "temperature": order.temperature,
                "stop_token_ids": list(order.stop_token_ids),
                "sampling_seed": order.seed,
                "skip_special_tokens": False,
            },
        }
        try:
            async with self._session.post(
                f"{self._url}/generate",
                data=orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY),
                headers={"Content-Type": "application/json"},
            ) as response:
                if response.status != 200:
                    await self._refused(response)
                await self._read(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineBroken(f"{self._url}: {type(error).__name__}: {error}") from error
        if self.sample().finish is None:
            raise EngineBroken(f"{self._url}: the stream ended before the turn")

    def sample(self) -> Sample:
        """What has come so far."""
        if not self._newest:
            return Sample()
        if self._sampled is None or self._sampled[0] is not self._newest:
            self._sampled = self._newest, self._parse(self._newest)
        return self._sampled[1]

    def _parse(self, newest: bytes) -> Sample:
        event = orjson.loads(newest)
        meta = event.get("meta_info") or {}
        ids = tuple(event.get("output_ids") or ())
        entries = meta.get("output_token_logprobs") or ()
        # A logprob is of an id: what has only one of the two is not kept.
        num_tokens = min(len(ids), len(entries))
        finish = meta.get("finish_reason")
        return Sample(
            token_ids=ids[:num_tokens],
            logprobs=tuple(float(entry[0]) for entry in entries[:num_tokens]),
            spans=self._spans(meta, num_tokens),
            finish=None if finish is None else finish["type"],
            num_cached=int(meta.get("cached_tokens") or 0),
        )

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        buffer = b""
        async for chunk in response.content.iter_any():
            buffer += chunk
            end = buffer.rfind(_SEPARATOR)
            if end < 0:
                continue
            for event in buffer[:end].split(_SEPARATOR):
                self._take(event.removeprefix(b"data: "))
            buffer = buffer[end + len(_SEPARATOR) :]
            failpoint("proxy.mid_stream")

    def _take(self, event: bytes) -> None:
        if not event.startswith(b"{") or event.startswith(b'{"error"'):
            if event.startswith(b"{"):
                raise EngineRefused(f"{self._url}: {_message(event)}")
            return
        if self.first_event is None:
            self.first_event = asyncio.get_running_loop().time()
        version = _version_of(event)
        if self._version and version != self._version:
            self._changes.append((self._version, self._newest))
        self._version, self._newest = version, event

    async def _refused(self, response: aiohttp.ClientResponse) -> None:
        body = await response.read()
        text = f"{self._url}: HTTP {response.status}: {_message(body)}"
        if 400 <= response.status < 500:
            raise EngineRefused(text)
        raise EngineBroken(text)

    def _spans(self, meta: dict[str, Any], num_tokens: int) -> tuple[VersionSpan, ...]:
        stated = meta.get("weight_versions")
        if stated:
            spans = [
                VersionSpan(
                    start=span["start"],
                    end=min(span["end"], num_tokens),
                    **self._named(span["version"]),
                )
                for span in stated
            ]
            return tuple(span for span in spans if span.start < span.end)
        return tuple(self._spans_from_stream(num_tokens))

    def _spans_from_stream(self, num_tokens: int) -> list[VersionSpan]:
        """Spans of a stream that broke before its last event, which alone states them: from the
        version that each event named."""
        spans = []
        start = 0
        for version, event in self._changes:
            end = min(len(orjson.loads(event).get("output_ids") or ()), num_tokens)
            if end > start:
                spans.append(VersionSpan(start=start, end=end, **self._named(_text(version))))
                start = end
        if num_tokens > start:
            name = _text(self._version)
            spans.append(VersionSpan(start=start, end=num_tokens, **self._named(name)))
        return spans

    def _named(self, name: str | None) -> dict[str, int]:
        """(lineage, version) of an engine's version name; one that the agent has not named yet is
        what the cell's last fact says."""
        try:
            lineage, version = parse_weight_version(str(name))
        except UnreadableWeightVersion:
            lineage, version = self._default_version
        return {"lineage": lineage, "version": version}


class Engines:
    """Opens streams and aborts them. Holds the connection pool, `session`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    def stream(self, url: str, default_version: tuple[int, int]) -> EngineStream:
        """A stream that has not started. default_version: (lineage, version) by the facts."""
        return EngineStream(self.session, url, default_version)

    async def abort(self, url: str, rid: str, timeout_s: float, pin_s: float | None = None) -> bool:
        """Asks the engine to end an attempt with what it has; in the same step, if it can, to keep
        the attempt's cached prefix for `pin_s`. False when it does not answer."""
        body = {"rid": rid} if pin_s is None else {"rid": rid, "pin_s": pin_s}
        try:
            async with self.session.post(
                f"{url}/abort_request",
                json=body,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        return True


def engine_session() -> aiohttp.ClientSession:
    """A pool without a limit: how many calls run is the ledger's business. No total timeout: a
    paused engine is silent, and each call has a deadline of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        read_bufsize=2**20,
        auto_decompress=False,
    )


def _version_of(event: bytes) -> bytes:
    """The quoted version name in an event, found without parsing it: events are many and long."""
    start = event.rfind(_VERSION_MARK)
    if start < 0:
        return b""
    start = event.find(b'"', start + len(_VERSION_MARK))
    return event[start + 1 : event.find(b'"', start + 1)]


def _text(version: bytes) -> str:
    return version.decode("utf-8", "replace")


def _message(body: bytes) -> str:
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
