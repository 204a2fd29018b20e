"""One TCP connection to a NATS server, spoken directly: the event log's only transport.

Why not a client library: a replay through one costs 50-100 us an event, through this 2-5 us,
and an append must know at once that its connection is gone, so that it can be sent again.
A Wire dies once and is never reconnected; its owner opens another (`link.py`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import orjson

from gyre.adapters.eventlog.base import EventLogError

DEFAULT_PORT = 4222
# subject, reply subject, header block (b"" if none), payload
Handler = Callable[[bytes, bytes, bytes, bytes], None]


class Unavailable(EventLogError):
    """NATS cannot do it now; the same request may succeed later."""


class AccessDenied(EventLogError):
    """The NATS server does not accept these credentials."""


class WireLost(Unavailable):
    """The connection to NATS broke, or could not be made."""


class NoResponders(Unavailable):
    """Nobody listens on the subject: no such stream, or JetStream is not up yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server's address and the CONNECT fields that its URL's user part asks for."""

    host: str
    port: int
    credentials: dict[str, str]

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A request's answer."""

    headers: bytes
    data: bytes


def endpoints(url: str) -> list[Endpoint]:
    """Parses `nats://[user:password@|token@]host[:port]`, several separated by commas.

    Raises EventLogError, without repeating the URL: it may hold a password.
    """
    found = []
    for part in filter(None, (piece.strip() for piece in url.split(","))):
        split = urlsplit(part if "://" in part else f"nats://{part}")
        if split.scheme != "nats" or not split.hostname:
            raise EventLogError("GYRE_NATS_URL: want nats://[user:password@]host:port")
        credentials = {}
        if split.username and split.password is not None:
            credentials = {"user": unquote(split.username), "pass": unquote(split.password)}
        elif split.username:
            credentials = {"auth_token": unquote(split.username)}
        found.append(
            Endpoint(host=split.hostname, port=split.port or DEFAULT_PORT, credentials=credentials)
        )
    if not found:
        raise EventLogError("GYRE_NATS_URL is empty")
    return found


def _time_out(waiting: asyncio.Future[Reply]) -> None:
    if not waiting.done():
        waiting.set_exception(TimeoutError())
        waiting.exception()  # seen here: who waits to send has not come to it yet


class Wire(asyncio.Protocol):
    """Subscriptions, publishes and requests on one connection. Use `Wire.open`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._handlers: dict[bytes, Handler] = {}
        self._out: list[bytes] = []
        self._is_turn_begun = False
        self._waiting: dict[bytes, asyncio.Future[Reply]] = {}
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._requests = 0
        self._subscriptions = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._info: asyncio.Future[None] = self._loop.create_future()
        self._pong: asyncio.Future[None] = self._loop.create_future()
        self._on_lost: list[Callable[[EventLogError], None]] = []
        self.lost: EventLogError | None = None

    @classmethod
    async def open(cls, endpoint: Endpoint, *, name: str, timeout_s: float) -> Wire:
        """Connects and shakes hands. Raises WireLost, AccessDenied."""
        wire: Wire | None = None
        try:
            async with asyncio.timeout(timeout_s):
                _, wire = await asyncio.get_running_loop().create_connection(
                    cls, endpoint.host, endpoint.port
                )
                await wire._shake_hands(name, endpoint.credentials)
        except (OSError, TimeoutError) as error:
            reason = str(error) or "time-out"
            raise WireLost(f"no NATS server at {endpoint}: {reason}") from None
        finally:
            if wire is not None and not wire._pong.done():
                wire.close()
        return wire

    async def _shake_hands(self, name: str, credentials: dict[str, str]) -> None:
        await self._info
        hello = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "echo": True,
            "protocol": 1,
            "lang": "gyre",
            "version": "0.1.0",
            "name": name,
            **credentials,
        }
        self._send(b"CONNECT " + orjson.dumps(hello) + b"\r\nPING\r\n")
        await self._pong
        self.subscribe(f"{self._inbox}.*", self._on_reply)

    # -- what an owner does

    @property
    def inbox(self) -> str:
        """A subject prefix that only this connection listens on."""
        return self._inbox

    def subscribe(self, subject: str, handler: Handler) -> bytes:
        """Calls `handler` for each message on `subject`, from the transport's callback."""
        self._subscriptions += 1
        sid = b"%d" % self._subscriptions
        self._handlers[sid] = handler
        self._send(b"SUB %b %b\r\n" % (subject.encode(), sid))
        return sid

    def unsubscribe(self, sid: bytes) -> None:
        """Ends a subscription; its messages on the way are dropped."""
        del self._handlers[sid]
        self._send(b"UNSUB %b\r\n" % sid)

    def publish(self, subject: str, data: bytes, *, reply: str = "", headers: bytes = b"") -> None:
        """Queues one message. `headers` is a whole block that ends with an empty line."""
        if headers:
            line = f"HPUB {subject} {reply} {len(headers)} {len(headers) + len(data)}\r\n"
            self._send(b"".join((line.encode(), headers, data, b"\r\n")))
        else:
            self._send(b"".join((f"PUB {subject} {reply} {len(data)}\r\n".encode(), data, b"\r\n")))

    async def request(
        self, subject: str, data: bytes, *, headers: bytes = b"", timeout_s: float
    ) -> Reply:
        """Publishes and waits for the answer. Raises NoResponders, WireLost, TimeoutError."""
        if self.lost is not None:
            raise WireLost(str(self.lost))
        self._requests += 1
        token = str(self._requests)
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting[token.encode()] = future
        deadline = self._loop.time() + timeout_s
        # A timer for the answer and not asyncio.timeout: every call's record waits here.
        timer = self._loop.call_at(deadline, _time_out, future)
        try:
            if not self._writable.is_set():
                async with asyncio.timeout_at(deadline):
                    await self._writable.wait()
            self.publish(subject, data, reply=f"{self._inbox}.{token}", headers=headers)
            reply = await future
        finally:
            timer.cancel()
            self._waiting.pop(token.encode(), None)
        if reply.headers.startswith(b"NATS/1.0 503") and not reply.data:
            raise NoResponders(f"nobody answers on {subject}")
        return reply

    def when_lost(self, callback: Callable[[EventLogError], None]) -> None:
        """Calls `callback` once when the connection is gone (at once if it is)."""
        if self.lost is not None:
            callback(self.lost)
        else:
            self._on_lost.append(callback)

    def forget(self, callback: Callable[[EventLogError], None]) -> None:
        """Takes a `when_lost` callback back."""
        if callback in self._on_lost:
            self._on_lost.remove(callback)

    def pause(self) -> None:
        """Stops reading: the server feels it through TCP."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Reads again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Flushes what is queued and closes."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every event loop's transport is of asyncio's class.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(WireLost(f"connection to NATS lost: {exc or 'closed'}"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        self._buffer = buffer[self._take_frames(buffer) :]

    # -- protocol

    def _take_frames(self, buffer: bytes) -> int:
        """Handles every whole frame; returns how many bytes those were."""
        start, size, handlers = 0, len(buffer), self._handlers
        while (line_end := buffer.find(b"\r\n", start)) >= 0:
            kind = buffer[start]
            if kind != 72 and kind != 77:  # H(MSG), M(SG)
                self._on_control(buffer[start:line_end])
                start = line_end + 2
                continue
            fields = buffer[start:line_end].split(b" ")
            body = line_end + 2
            end = body + int(fields[-1])
            if size < end + 2:
                break
            head = body + int(fields[-2]) if kind == 72 else body
            reply = fields[3] if len(fields) == (6 if kind == 72 else 5) else b""
            handler = handlers.get(fields[2])
            if handler is not None:  # None: unsubscribed while this was on its way
                handler(fields[1], reply, buffer[body:head], buffer[head:end])
            start = end + 2
        return start

    def _on_control(self, line: bytes) -> None:
        word = line[:4].upper()
        if word == b"PING":
            self._send(b"PONG\r\n")
        elif word == b"PONG" and not self._pong.done():
            self._pong.set_result(None)
        elif word == b"INFO" and not self._info.done():
            if orjson.loads(line[5:]).get("tls_required"):
                self._fail(AccessDenied("this NATS server wants TLS, which is not supported"))
            else:
                self._info.set_result(None)
        elif word == b"-ERR":
            text = line[5:].decode(errors="replace").strip(" '")
            denied = "authorization" in text.lower() or "authentication" in text.lower()
            kind = AccessDenied if denied else WireLost
            self._fail(kind(f"NATS server: {text}"))

    def _on_reply(self, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
        future = self._waiting.get(subject[len(self._inbox) + 1 :])
        if future is not None and not future.done():
            future.set_result(Reply(headers=headers, data=data))

    def _send(self, data: bytes) -> None:
        """Sends bytes at once; those that follow in the same loop turn leave in one system call."""
        if self._is_turn_begun:
            self._out.append(data)
            return
        self._is_turn_begun = True
        self._loop.call_soon(self._flush)
        self._write(data)

    def _flush(self) -> None:
        self._is_turn_begun = False
        if self._out:
            self._write(b"".join(self._out))
            self._out.clear()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _fail(self, error: EventLogError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        self._writable.set()
        waiting: list[asyncio.Future[Any]] = [self._info, self._pong, *self._waiting.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(type(error)(str(error)))
                future.exception()  # seen here: a handshake future may have no reader
        for callback in tuple(self._on_lost):
            callback(error)
        self.close()
