"""Sends answers: whole ones, and streams whose headers are held back until the first write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from gyre.proxy.apis.base import Exchange, Opened
from gyre.proxy.requests import Answer, Fault

_SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Stream:
    """A stream of events whose headers go out with its first write. num_writes: so far."""

    def __init__(self, request: web.BaseRequest, timeout_s: float) -> None:
        self._request = request
        self._timeout_s = timeout_s
        self._response: web.StreamResponse | None = None
        self.num_writes = 0

    @property
    def is_open(self) -> bool:
        return self._response is not None

    async def write(self, data: bytes) -> None:
        """Raises ConnectionError when the client is gone or does not read."""
        self.num_writes += 1
        async with _taken(self._request, self._timeout_s):
            if self._response is None:
                self._response = web.StreamResponse(headers=_SSE)
                await self._response.prepare(self._request)
            await self._response.write(data)

    async def close(self) -> web.StreamResponse:
        assert self._response is not None
        async with _taken(self._request, self._timeout_s):
            await self._response.write_eof()
        return self._response

    async def fail(self, exchange: Exchange, fault: Fault) -> web.StreamResponse:
        """An error for a client that has the headers already."""
        await self.write(exchange.error_event(fault))
        return await self.close()

    async def whole(self, body: bytes) -> web.StreamResponse:
        """An answer in one piece. Raises ConnectionError."""
        response = web.Response(body=body, content_type="application/json")
        async with _taken(self._request, self._timeout_s):
            await response.prepare(self._request)
            await response.write_eof()
        return response


@asynccontextmanager
async def _taken(request: web.BaseRequest, timeout_s: float) -> AsyncIterator[None]:
    """What is written within goes to a client that takes it. Raises ConnectionError if not."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client does not read its answer") from None
    if not is_here(request):
        raise ConnectionResetError("the client is gone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What is sent of a whole answer, behind so many writes. is_stream: as events."""

    body: bytes
    is_stream: bool
    num_writes: int


def made_of(exchange: Exchange, stream: Stream, answer: Answer) -> Made:
    """The answer in the words of its API, with what a stream begins with if it has not begun."""
    if not exchange.request.stream:
        return Made(body=exchange.body(answer), is_stream=False, num_writes=0)
    opening = b""
    if not stream.is_open:
        opened = Opened(
            call=answer.call, created=answer.created, num_input_tokens=answer.prompt_tokens
        )
        opening = exchange.opening(opened)
    return Made(
        body=opening + b"".join(exchange.events(answer)),
        is_stream=True,
        num_writes=stream.num_writes,
    )


async def respond(stream: Stream, made: Made) -> web.StreamResponse:
    """Sends the whole answer. Raises ConnectionError when the client is gone."""
    if not made.is_stream:
        return await stream.whole(made.body)
    await stream.write(made.body)
    return await stream.close()


def is_here(request: web.BaseRequest) -> bool:
    """False once the client's connection is known to be gone."""
    return request.transport is not None and not request.transport.is_closing()
