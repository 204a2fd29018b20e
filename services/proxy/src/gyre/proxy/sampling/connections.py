"""Keep-alive connections to engines, for exchanges of one kind: a POST whose answer is streamed.

An engine says something with every token, and nobody has to hear of each. So the task that asked
wakes once, at the end, and until then what arrives is put aside by the event loop's own callback:
parsed when there is some of it, when it may be the end, or when the `Sink` wants to know. A client
that hands each piece to a task costs many times that.

A connection that was kept may have been closed by the other side meanwhile. Who meets that before
anything was received asks once more, on a new one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

CONNECT_TIMEOUT_S = 2.0
# Of a connection that nobody uses; servers keep theirs for as long or longer.
KEEPALIVE_S = 30.0
# Put aside at most, so that a long stream, which says all of itself again and again, stays small.
_ASIDE_BYTES = 64 * 1024
_OK = 200
# What every answer in chunks ends with.
_END = b"\r\n\r\n"
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Sink(Protocol):
    """Takes the body of a 200."""

    def begin(self, catch_up: Callable[[], None]) -> None:
        """An exchange begins. catch_up: hands over, with `take`, what has come and is put aside."""
        ...

    def came(self, data: bytes) -> bool:
        """Told of all bytes, as they are on the wire. True: they are to be taken at once."""
        ...

    def take(self, data: bytes) -> bool:
        """The next bytes. False: nothing more is wanted, the connection may be dropped."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """body: of an answer that is no 200; empty for one that is, whose body went to the sink."""

    status: int
    body: bytes = b""


class Connections:
    """As many connections as there are exchanges: how many these are is their makers' business.
    Mutated by `post` and `close`."""

    def __init__(self) -> None:
        self._idle: dict[str, list[_Connection]] = {}
        self._all: set[_Connection] = set()
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
                if kept.has_heard:
                    raise
        return await self._exchange(url, await self._opened(url), request, sink)

    def close(self) -> None:
        """Drops every connection; what is under way on one breaks."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._all):
            connection.drop()

    async def _exchange(
        self, url: str, connection: _Connection, request: bytes, sink: Sink
    ) -> Reply:
        try:
            reply = await connection.ask(request, sink)
        finally:
            if connection.is_reusable:
                self._keep(url, connection)
            else:
                connection.drop()
        return reply

    async def _opened(self, url: str) -> _Connection:
        place = _place(url)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self._all), place.host, place.port, ssl=place.tls
            )
        return connection

    def _kept(self, url: str) -> _Connection | None:
        """The one that was used last."""
        idle = self._idle.get(url, [])
        while idle:
            connection = idle.pop()
            if connection.is_reusable:
                return connection
        return None

    def _keep(self, url: str, connection: _Connection) -> None:
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


class _Connection(asyncio.Protocol):
    """One exchange at a time. has_heard: something of this one's answer has come. is_reusable: the
    last one ended whole, and the connection is open. idle_since: on the event loop's clock."""

    def __init__(self, among: set[_Connection]) -> None:
        self.has_heard = False
        self.is_reusable = False
        self.idle_since = 0.0
        self._among = among
        self._transport: asyncio.WriteTransport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: Sink | None = None
        self._ended: asyncio.Future[Reply] | None = None
        self._status = 0
        self._is_framed = False
        self._is_chunked = False
        self._body: list[bytes] = []
        self._is_flowing = False
        self._aside: list[bytes] = []
        self._num_aside = 0

    def ask(self, request: bytes, sink: Sink) -> asyncio.Future[Reply]:
        """Begins an exchange. The future: its end, or an OSError."""
        assert self._transport is not None
        self._ended = asyncio.get_running_loop().create_future()
        self._sink, self._body, self._status = sink, [], 0
        self._parser = httptools.HttpResponseParser(self)
        self.has_heard = self.is_reusable = self._is_framed = False
        self._is_chunked = self._is_flowing = False
        sink.begin(self.catch_up)
        self._transport.write(request)
        return self._ended

    def drop(self) -> None:
        """Ends the connection at once."""
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none by its class
        self._among.add(self)

    def data_received(self, data: bytes) -> None:
        if self._sink is None or self._ended is None or self._ended.done():
            self.drop()  # it speaks without being asked
            return
        self.has_heard = True
        self._aside.append(data)
        self._num_aside += len(data)
        is_urgent = self._sink.came(data) or not self._is_flowing
        # The end may have been cut in two.
        may_end = data.endswith(_END) or len(data) < len(_END)
        if is_urgent or may_end or self._num_aside > _ASIDE_BYTES:
            self.catch_up()

    def catch_up(self) -> None:
        """Parses what was put aside."""
        if not self._aside or self._parser is None:
            return
        data = b"".join(self._aside)
        self._aside, self._num_aside = [], 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"not an answer in HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._among.discard(self)
        self.catch_up()
        self.is_reusable = False
        if error is None and self._status and not self._is_framed:
            self._end()  # what has no length ends with its connection
        else:
            self._fail(ConnectionResetError(f"the connection was closed ({error or 'by its end'})"))

    def on_message_begin(self) -> None:
        self._status = 0

    def on_status(self, reason: bytes) -> None:
        assert self._parser is not None
        self._status = self._parser.get_status_code()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._is_framed |= name in (b"content-length", b"transfer-encoding")
        self._is_chunked |= name == b"transfer-encoding"

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._ended is None or (self._ended.done() and not self._ended.cancelled()):
            return
        if self._status != _OK:
            self._body.append(data)
        elif self._sink is not None and self._sink.take(data):
            self._is_flowing = self._is_chunked
        else:
            self._end()

    def on_message_complete(self) -> None:
        assert self._parser is not None
        assert self._ended is not None
        if self._status >= _OK and not self._ended.done():
            self.is_reusable = self._parser.should_keep_alive()
            self._end()

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(Reply(status=self._status, body=b"".join(self._body)))

    def _fail(self, error: OSError) -> None:
        self.drop()
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)


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
