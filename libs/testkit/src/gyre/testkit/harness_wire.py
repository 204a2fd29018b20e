"""Stands between a harness and the proxy, passes everything on and remembers what was said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from gyre.testkit.served_app import served

_CREDENTIALS = ("authorization", "x-api-key", "cookie")
# Each hop's own business.
_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "host")


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request. headers: the client's, names in lower case, without its key. at: when it came,
    on the event loop's clock. status: None if the proxy broke off before it said one."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float
    status: int | None = None
    retry_after: str | None = None

    @property
    def is_call(self) -> bool:
        """Whether it asks the model."""
        ends = ("/v1/messages", "/v1/responses", "/v1/chat/completions")
        return self.method == "POST" and self.path.partition("?")[0] in ends


@dataclass(slots=True)
class Wire:
    """url: what the harness is told. said: in the order in which it began."""

    url: str
    said: list[Exchange] = field(default_factory=list)

    @property
    def calls(self) -> list[Exchange]:
        return [each for each in self.said if each.is_call]


@asynccontextmanager
async def running_wire(upstream: str) -> AsyncIterator[Wire]:
    """Serves on a free port until the block ends. upstream: the proxy's URL."""
    wire = Wire("")
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, trust_env=False
    ) as session:

        async def handle(request: web.Request) -> web.StreamResponse:
            return await _pass_on(wire, session, upstream, request)

        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{rest:.*}", handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        async with served(runner) as wire.url:
            yield wire


async def _pass_on(
    wire: Wire, session: aiohttp.ClientSession, upstream: str, request: web.Request
) -> web.StreamResponse:
    headers = {name.lower(): text for name, text in request.headers.items()}
    said = Exchange(
        method=request.method,
        path=request.path_qs,
        headers={name: text for name, text in headers.items() if name not in _CREDENTIALS},
        body=await request.read(),
        at=asyncio.get_running_loop().time(),
    )
    wire.said.append(said)
    sent = {name: text for name, text in headers.items() if name not in _HOP}
    try:
        async with session.request(
            request.method, upstream + request.path_qs, data=said.body, headers=sent
        ) as answer:
            said.status = answer.status
            said.retry_after = answer.headers.get("retry-after")
            kept = {n: t for n, t in answer.headers.items() if n.lower() not in _HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response
    except aiohttp.ClientError:
        # What the client would see without us: its connection breaks.
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=502)  # nobody gets it
