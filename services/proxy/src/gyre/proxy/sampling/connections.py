"""Keep-alive connections to engines (`connection`), as many as there are exchanges.

A connection that was kept may have been closed by the other side meanwhile. Who meets that before
anything was received asks once more, on a new one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from gyre.proxy.sampling.connection import Connection, Reply, Sink

CONNECT_TIMEOUT_S = 2.0
# Of a connection that nobody uses; servers keep theirs for as long or longer.
KEEPALIVE_S = 30.0
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Connections:
    """As many connections as there are exchanges: how many these are is their makers' business.
    Mutated by `post` and `close`."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Connection]] = {}
        self._all: set[Connection] = set()
        self._sweeping: asyncio.TimerHandle | None = None

    async def post(self, url: str, path: str, body: Sequence[bytes], sink: Sink) -> Reply:
        """Sends `body`, JSON in pieces, to `path` below `url`; returns at the end of the answer.

        Raises OSError when there is no connection or it breaks, and for what is no HTTP.
        """
        request = b"".join((_head(url, path, sum(map(len, body))), *body))
        kept = self._kept(url)
        if kept is not None:
            try:
                return await self._exchange(url, kept, request, sink)
            except OSError:
                if kept.has_heard or kept.is_given_up:
                    raise
        return await self._exchange(url, await self._opened(url), request, sink)

    def close(self) -> None:
        """Drops every connection; what is under way on one breaks."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._all):
            connection.drop()

    async def _exchange(
        self, url: str, connection: Connection, request: bytes, sink: Sink
    ) -> Reply:
        try:
            reply = await connection.ask(request, sink)
        finally:
            if connection.is_reusable:
                self._keep(url, connection)
            elif connection.is_ending:
                connection.end(lambda: self._keep(url, connection))
            else:
                connection.drop()
        return reply

    async def _opened(self, url: str) -> Connection:
        place = _place(url)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self._all), place.host, place.port, ssl=place.tls
            )
        return connection

    def _kept(self, url: str) -> Connection | None:
        """The one that was used last."""
        idle = self._idle.get(url, [])
        while idle:
            connection = idle.pop()
            if connection.is_reusable:
                return connection
        return None

    def _keep(self, url: str, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(url, []).append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(KEEPALIVE_S, self._sweep)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEPALIVE_S
        for url, idle in list(self._idle.items()):
            for connection in idle:
                if connection.idle_since <= oldest:
                    connection.drop()
            self._idle[url] = [connection for connection in idle if connection.is_reusable]
            if not self._idle[url]:
                del self._idle[url]
        self._sweeping = loop.call_later(KEEPALIVE_S, self._sweep) if self._idle else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a URL leads. base: the path that all others are below."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    header: str
    base: str


@lru_cache(maxsize=1024)
def _place(url: str) -> _Place:
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError) as error:
        raise ConnectionError(f"not the URL of a server: {error}") from error
    if not parts.hostname:
        raise ConnectionError("not the URL of a server: no host")
    return _Place(
        host=parts.hostname,
        port=port,
        tls=ssl.create_default_context() if parts.scheme == "https" else None,
        header=parts.netloc.rpartition("@")[2],
        base=parts.path.rstrip("/"),
    )


def _head(url: str, path: str, length: int) -> bytes:
    place = _place(url)
    return (
        f"POST {place.base}{path} HTTP/1.1\r\n"
        f"Host: {place.header}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode("latin-1")
