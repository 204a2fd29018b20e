"""One keep-alive connection to an engine: a POST at a time, whose answer is streamed.

An engine says something with every token, and nobody has to hear of each. So the task that asked
wakes once, at the end, and until then what arrives is put aside by the event loop's own callback:
parsed when there is some of it, when it may be the end, or when the `Sink` wants to know. A client
that hands each piece to a task costs many times that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Protocol, cast

import httptools

# Put aside at most, so that a long stream, which says all of itself again and again, stays small.
_ASIDE_BYTES = 64 * 1024
# How long the rest of an answer may take that nobody waits for any more.
_REST_S = 2.0
_OK = 200
# What every answer in chunks ends with.
_END = b"\r\n\r\n"


class Want(Enum):
    """What a sink wants of the rest of its answer. NOTHING: whoever asked may go on at once, and
    the connection is used again once the rest has come. NO_REST: it may be dropped."""

    MORE = auto()
    NOTHING = auto()
    NO_REST = auto()


class Sink(Protocol):
    """Takes the body of a 200."""

    def begin(self, catch_up: Callable[[], None], give_up: Callable[[], None]) -> None:
        """An exchange begins. catch_up: hands over, with `take`, what has come and is put aside.
        give_up: ends the exchange with an OSError, for good."""
        ...

    def came(self, data: bytes) -> bool:
        """Told of all bytes, as they are on the wire. True: they are to be taken at once."""
        ...

    def take(self, data: bytes) -> Want:
        """The next bytes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """body: of an answer that is no 200; empty for one that is, whose body went to the sink."""

    status: int
    body: bytes = b""


class Connection(asyncio.Protocol):
    """One exchange at a time. has_heard: something of this one's answer has come. is_ending: all
    that is wanted has come, the rest of the answer not yet. is_reusable: the last one ended whole,
    and the connection is open. is_given_up: by the sink. idle_since: on the event loop's clock."""

    def __init__(self, among: set[Connection]) -> None:
        self.has_heard = False
        self.is_ending = False
        self.is_reusable = False
        self.is_given_up = False
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
        self._free: Callable[[], None] = _nothing
        self._dropping: asyncio.TimerHandle | None = None

    def ask(self, request: bytes, sink: Sink) -> asyncio.Future[Reply]:
        """Begins an exchange. The future: its end, or an OSError."""
        assert self._transport is not None
        self._ended = asyncio.get_running_loop().create_future()
        self._sink, self._body, self._status = sink, [], 0
        self._parser = httptools.HttpResponseParser(self)
        self.has_heard = self.is_ending = self.is_reusable = self._is_framed = False
        self._is_chunked = self._is_flowing = False
        sink.begin(self.catch_up, partial(self._give_up, self._ended))
        self._transport.write(request)
        return self._ended

    def _give_up(self, ended: asyncio.Future[Reply]) -> None:
        """ended: of the exchange that it is about; the connection may be another's by now."""
        if ended is self._ended and not ended.done():
            self.is_given_up = True
            self.catch_up()
            self._fail(ConnectionAbortedError("the exchange was given up"))

    def end(self, free: Callable[[], None]) -> None:
        """Reads the rest of the answer, and calls `free` if the connection can be used then."""
        self._free = free
        self._dropping = asyncio.get_running_loop().call_later(_REST_S, self.drop)

    def drop(self) -> None:
        """Ends the connection at once."""
        self.is_reusable = self.is_ending = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none by its class
        self._among.add(self)

    def data_received(self, data: bytes) -> None:
        is_asked = self._ended is not None and (self.is_ending or not self._ended.done())
        if self._sink is None or not is_asked:
            self.drop()  # it speaks without being asked
            return
        self.has_heard = True
        self._aside.append(data)
        self._num_aside += len(data)
        is_urgent = self.is_ending or self._sink.came(data) or not self._is_flowing
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
        self._set_free(keep=False)
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
        elif self._sink is not None:
            want = self._sink.take(data)
            self._is_flowing = self._is_chunked
            if want is not Want.MORE:
                self.is_ending = want is Want.NOTHING
                self._end()

    def on_message_complete(self) -> None:
        assert self._parser is not None
        assert self._ended is not None
        if self.is_ending:
            self._set_free(keep=self._parser.should_keep_alive())
        elif self._status >= _OK and not self._ended.done():
            self.is_reusable = self._parser.should_keep_alive()
            self._end()

    def _set_free(self, *, keep: bool) -> None:
        """Nothing more comes of the answer."""
        self.is_ending, self.is_reusable = False, keep
        free, self._free = self._free, _nothing
        if self._dropping is not None:
            self._dropping.cancel()
            self._dropping = None
            if keep:
                free()
            else:
                self.drop()

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(Reply(status=self._status, body=b"".join(self._body)))

    def _fail(self, error: OSError) -> None:
        self.drop()
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)


def _nothing() -> None:
    """Nobody waits for the connection."""
