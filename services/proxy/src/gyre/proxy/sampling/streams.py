"""Streams from an engine's native API (SGLang's HTTP contract) and keeps what was sampled.

Ids and logprobs in a stream are cumulative, so only the newest event matters: it is kept as bytes
and parsed once, when the stream ends or breaks. An engine's death loses no token that it sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from gyre.adapters.failpoints import failpoint
from gyre.core.routing import UnreadableWeightVersion, parse_weight_version
from gyre.proxy.limits import Limits
from gyre.proxy.sampling.connection import Reply, Want
from gyre.proxy.sampling.connections import CONNECT_TIMEOUT_S, Connections
from gyre.proxy.sampling.contexts import ContextTexts
from gyre.proxy.sampling.events import (
    EngineBroken,
    EngineRefused,
    Sample,
    SamplingOrder,
    VersionSpan,
    message_of,
    text_of,
    version_of,
)

__all__ = [
    "EngineBroken",
    "EngineRefused",
    "EngineStream",
    "Engines",
    "Sample",
    "SamplingOrder",
    "VersionSpan",
    "engine_session",
]

_SEPARATOR = b"\n\n"
_ERROR = b'{"error"'
# In an event that ends a turn; a text that says so has its quotes escaped.
_FINISH = re.compile(rb'"finish_reason": ?\{')


class EngineStream:
    """One attempt at one engine. `run` mutates it; `sample` may be read at any time. first_event:
    when the first one came, on the event loop's clock."""

    def __init__(
        self,
        connections: Connections,
        contexts: ContextTexts,
        url: str,
        default_version: tuple[int, int],
    ) -> None:
        self._connections = connections
        self._contexts = contexts
        self._url = url
        self._default_version = default_version
        self._rest = b""
        self._newest = b""
        self._sampled: tuple[bytes, Sample] | None = None
        self._version = b""
        self._changes: list[tuple[bytes, bytes]] = []
        self._refusal: bytes | None = None
        self._catch_up: Callable[[], None] = _nothing
        self._give_up: Callable[[], None] = _nothing
        self._is_dropped = False
        self._may_be_whole = False
        self.first_event: float | None = None

    async def run(self, order: SamplingOrder) -> None:
        """Streams to the end. Raises EngineRefused, EngineBroken."""
        context = self._contexts.pieces(order.execution, order.input_ids)
        key = {} if order.extra_key is None else {"extra_key": order.extra_key}
        rest = orjson.dumps(
            {
                **key,
                "rid": order.rid,
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
        )
        body = (rest[:-1], b',"input_ids":[', *context, b"]}")
        try:
            reply = await self._connections.post(self._url, "/generate", body, self)
        except OSError as error:
            if self._refusal is None and self.sample().finish is None:
                raise EngineBroken(f"{self._url}: {type(error).__name__}: {error}") from error
        else:
            self._check(reply)
        if self._refusal is not None:
            raise EngineRefused(f"{self._url}: {message_of(self._refusal)}")
        sample = self.sample()
        if sample.refusal is not None:
            raise EngineRefused(f"{self._url}: {sample.refusal}")
        if sample.finish is None:
            raise EngineBroken(f"{self._url}: the stream ended before the turn")

    def drop(self) -> None:
        """Ends `run` with EngineBroken, unless it is over; what had come is kept."""
        self._is_dropped = True
        self._give_up()

    def begin(self, catch_up: Callable[[], None], give_up: Callable[[], None]) -> None:
        """The engine is asked."""
        self._catch_up, self._give_up = catch_up, give_up
        if self._is_dropped:
            give_up()

    def came(self, data: bytes) -> bool:
        """An error ends the stream, whether or not the engine ends it; so does a reason to end."""
        failpoint("proxy.mid_stream")
        self._may_be_whole = self._may_be_whole or _FINISH.search(data) is not None
        return self._may_be_whole or _ERROR in data

    def take(self, data: bytes) -> Want:
        """The stream's next bytes, as they come. With the event that ends the turn all is there:
        what the engine still says of the stream's end is waited for by nobody."""
        data = self._rest + data
        # What is left of the last piece has no separator in it, but may have half of one.
        end = data.rfind(_SEPARATOR, max(0, len(self._rest) - 1))
        if end < 0:
            self._rest = data
            return Want.MORE
        self._rest = data[end + len(_SEPARATOR) :]
        for event in data[:end].split(_SEPARATOR):
            self._take_event(event.removeprefix(b"data: "))
        if self._refusal is not None:
            return Want.NO_REST
        is_whole = self._may_be_whole and self._newest_sample().finish is not None
        return Want.NOTHING if is_whole else Want.MORE

    def sample(self) -> Sample:
        """What has come so far."""
        self._catch_up()
        return self._newest_sample()

    def _newest_sample(self) -> Sample:
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
        if finish is not None and 400 <= (finish.get("status_code") or 0) < 500:
            # SGLang's scheduler refuses like this, with a token that it sampled from nothing.
            return Sample(finish="abort", refusal=str(finish.get("message")))
        return Sample(
            token_ids=ids[:num_tokens],
            logprobs=tuple(float(entry[0]) for entry in entries[:num_tokens]),
            spans=self._spans(meta, num_tokens),
            finish=None if finish is None else finish["type"],
            num_cached=int(meta.get("cached_tokens") or 0),
        )

    def _take_event(self, event: bytes) -> None:
        if self._refusal is not None or not event.startswith(b"{"):
            return
        if event.startswith(_ERROR):
            self._refusal = event
            return
        if self.first_event is None:
            self.first_event = asyncio.get_running_loop().time()
        version = version_of(event)
        if self._version and version != self._version:
            self._changes.append((self._version, self._newest))
        self._version, self._newest = version, event

    def _check(self, reply: Reply) -> None:
        if reply.status == 200:
            return
        text = f"{self._url}: HTTP {reply.status}: {message_of(reply.body)}"
        if 400 <= reply.status < 500:
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
                spans.append(VersionSpan(start=start, end=end, **self._named(text_of(version))))
                start = end
        if num_tokens > start:
            name = text_of(self._version)
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
    """Opens streams and aborts them. Holds their connections until the block that it opens ends;
    `session`: the pool for all that is not streamed. max_context_bytes: see `Limits`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        max_context_bytes: int = Limits().max_context_bytes,
    ) -> None:
        self.session = session
        self._connections = Connections()
        self._contexts = ContextTexts(max_context_bytes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connections.close()
        await asyncio.sleep(0)  # transports close in the loop's next round

    def stream(self, url: str, default_version: tuple[int, int]) -> EngineStream:
        """A stream that has not started. default_version: (lineage, version) by the facts."""
        return EngineStream(self._connections, self._contexts, url, default_version)

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
    )


def _nothing() -> None:
    """Nobody was asked."""
