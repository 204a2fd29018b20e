"""Connections to engines: answers in any pieces, connections that are kept, closed or cut."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import orjson
import pytest
import uvloop

from gyre.proxy.sampling import connections
from gyre.proxy.sampling.connections import Connections, Reply
from gyre.proxy.sampling.contexts import ContextTexts
from gyre.proxy.sampling.streams import (
    EngineBroken,
    EngineRefused,
    Engines,
    EngineStream,
    SamplingOrder,
    engine_session,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
ORDER = SamplingOrder(
    rid="0" * 32, execution="e", input_ids=[1, 2, 3], max_new_tokens=8, temperature=1.0, seed=7,
    stop_token_ids=[5],
)  # fmt: skip


@dataclass(slots=True)
class Kept:
    """A sink that takes everything."""

    data: bytes = b""

    def begin(self, catch_up: Callable[[], None]) -> None:
        """Waits."""

    def came(self, data: bytes) -> bool:
        return False

    def take(self, data: bytes) -> bool:
        self.data += data
        return True


Script = Callable[["Peer"], Awaitable[None]]


@dataclass(slots=True)
class Peer:
    """A server's side of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> bytes:
        """The next one's body. Raises IncompleteReadError when the client is gone."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        [length] = [
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"Content-Length" in line
        ]
        return await self.reader.readexactly(length)

    async def say(self, data: bytes, size: int = 2**16) -> None:
        """In pieces of `size`, each a packet of its own."""
        for start in range(0, len(data), size):
            self.writer.write(data[start : start + size])
            await self.writer.drain()
            await asyncio.sleep(0)

    def reset(self) -> None:
        self.writer.transport.abort()


@dataclass(slots=True)
class Server:
    """num_connections: that were opened so far."""

    url: str = ""
    num_connections: int = 0
    bodies: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def server(script: Script) -> AsyncIterator[Server]:
    """Plays `script` on every connection."""
    here = Server()
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await script(Peer(reader, writer))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    here.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield here
    finally:
        listening.close()
        if running:
            await asyncio.wait(running, timeout=10)  # their clients are gone


@asynccontextmanager
async def connected() -> AsyncIterator[Connections]:
    pool = Connections()
    try:
        yield pool
    finally:
        pool.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def stream_of(url: str) -> AsyncIterator[EngineStream]:
    async with engine_session() as session, Engines(session) as engines:
        yield engines.stream(url, (0, 0))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(ids: Sequence[int], finish: str | None = None) -> bytes:
    meta = {
        "weight_version": "0.3",
        "cached_tokens": 2,
        "finish_reason": None if finish is None else {"type": finish},
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
    }
    return b"data: " + orjson.dumps({"output_ids": list(ids), "meta_info": meta}) + b"\n\n"


@pytest.mark.parametrize("size", [1, 7, 2**16])
async def test_an_answer_comes_whole_in_whatever_pieces(size: int) -> None:
    async def script(peer: Peer) -> None:
        while True:
            assert await peer.request() == b"[1,2]"
            await peer.say(CHUNKED + chunk(b"one") + chunk(b"two") + END, size)

    async with server(script) as here, connected() as pool:
        for _ in range(3):
            sink = Kept()
            assert await pool.post(here.url, "/x", [b"[1,", b"2]"], sink) == Reply(status=200)
            assert sink.data == b"onetwo"
        assert here.num_connections == 1


def test_the_loop_that_serves_takes_it_as_the_other_one_does() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_an_answer_comes_whole_in_whatever_pieces(7))
        runner.run(test_who_is_cancelled_closes_the_connection())
        runner.run(test_a_death_in_mid_stream_loses_no_token_that_came(3))


async def test_exchanges_at_a_time_have_connections_of_their_own() -> None:
    async def script(peer: Peer) -> None:
        while True:
            body = await peer.request()
            await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async with server(script) as here, connected() as pool:
        sinks = [Kept() for _ in range(5)]
        await asyncio.gather(
            *(pool.post(here.url, "/x", [b"%d" % n], sink) for n, sink in enumerate(sinks))
        )
        assert [sink.data for sink in sinks] == [b"0", b"1", b"2", b"3", b"4"]
        assert here.num_connections == 5


async def test_what_is_no_200_comes_back_with_its_body() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 400 Bad\r\nContent-Length: 4\r\n\r\nbad!")

    async with server(script) as here, connected() as pool:
        sink = Kept()
        assert await pool.post(here.url, "/x", [b"{}"], sink) == Reply(status=400, body=b"bad!")
        assert sink.data == b""


async def test_a_kept_connection_that_was_closed_meanwhile_costs_a_new_one() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED + END)
        if not gone.is_set():
            await peer.reader.readexactly(1)  # the next request has begun: it meets the close
            peer.reset()
            gone.set()

    async with server(script) as here, connected() as pool:
        await pool.post(here.url, "/x", [b"{}"], Kept())
        assert (await pool.post(here.url, "/x", [b"{}"], Kept())).status == 200
        assert gone.is_set()
        assert here.num_connections == 2


async def test_a_kept_connection_that_breaks_within_an_answer_is_not_asked_again() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED + END)
        await peer.request()
        await peer.say(CHUNKED + chunk(b"half"))
        peer.reset()

    async with server(script) as here, connected() as pool:
        await pool.post(here.url, "/x", [b"{}"], Kept())
        sink = Kept()
        with pytest.raises(OSError, match="closed"):
            await pool.post(here.url, "/x", [b"{}"], sink)
        assert sink.data == b"half"
        assert here.num_connections == 1


async def test_a_connection_that_said_it_closes_is_not_kept() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nup to its end")

    async with server(script) as here, connected() as pool:
        for _ in range(2):
            sink = Kept()
            assert (await pool.post(here.url, "/x", [b"{}"], sink)).status == 200
            assert sink.data == b"up to its end"
        assert here.num_connections == 2


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEPALIVE_S", 0.05)
    ended = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED + END)
        assert await peer.reader.read() == b""
        ended.set()

    async with server(script) as here, connected() as pool:
        await pool.post(here.url, "/x", [b"{}"], Kept())
        await asyncio.wait_for(ended.wait(), 10)


async def test_who_is_cancelled_closes_the_connection() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED + chunk(event([1])))
        began.set()
        with suppress(ConnectionError):
            await peer.reader.read()
        ended.set()

    async with server(script) as here, stream_of(here.url) as stream:
        running = asyncio.create_task(stream.run(ORDER))
        await asyncio.wait_for(began.wait(), 10)
        running.cancel()
        await asyncio.wait({running})
        await asyncio.wait_for(ended.wait(), 10)
        assert running.cancelled()


async def test_who_is_cancelled_has_all_that_had_come() -> None:
    came = asyncio.Event()

    class Told(EngineStream):
        def came(self, data: bytes) -> bool:
            if event([1, 2, 3]) in data:
                came.set()
            return super().came(data)

    async def script(peer: Peer) -> None:
        await peer.request()
        for ids in ([1], [1, 2], [1, 2, 3]):
            await peer.say(CHUNKED[: len(CHUNKED) if ids == [1] else 0] + chunk(event(ids)))
            await asyncio.sleep(0.01)  # so that each comes alone
        await peer.reader.read()

    async with server(script) as here, connected() as pool:
        stream = Told(pool, ContextTexts(0), here.url, (0, 0))
        running = asyncio.create_task(stream.run(ORDER))
        await asyncio.wait_for(came.wait(), 10)
        running.cancel()
        assert stream.sample().token_ids == (1, 2, 3)
        await asyncio.wait({running})


@pytest.mark.parametrize("size", [3, 2**16])
async def test_a_death_in_mid_stream_loses_no_token_that_came(size: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        half = event([1, 2, 3])[:-9]
        await peer.say(CHUNKED + chunk(event([1])) + chunk(event([1, 2])) + chunk(half), size)
        peer.writer.close()

    async with server(script) as here, stream_of(here.url) as stream:
        with pytest.raises(EngineBroken):
            await stream.run(ORDER)
        sample = stream.sample()
        assert (sample.token_ids, sample.logprobs, sample.finish) == ((1, 2), (-0.5, -0.5), None)
        assert [(span.start, span.end, span.version) for span in sample.spans] == [(0, 2, 3)]
        assert stream.first_event is not None


async def test_a_turn_whose_last_event_came_is_whole_however_the_connection_ends() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED + chunk(event([1, 5], "stop")))
        peer.writer.close()

    async with server(script) as here, stream_of(here.url) as stream:
        await stream.run(ORDER)
        assert stream.sample().finish == "stop"


async def test_an_error_in_the_stream_is_a_refusal_though_it_does_not_end() -> None:
    ended = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED + chunk(b'data: {"error": {"message": "too long"}}\n\n'))
        with suppress(ConnectionError):
            await peer.reader.read()
        ended.set()

    async with server(script) as here, stream_of(here.url) as stream:
        with pytest.raises(EngineRefused, match="too long"):
            await asyncio.wait_for(stream.run(ORDER), 10)
        await asyncio.wait_for(ended.wait(), 10)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b'HTTP/1.1 400 Bad\r\nContent-Length: 18\r\n\r\n{"detail":"dup"}  ', EngineRefused),
        (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", EngineBroken),
        (b"HTTP/1.1 302 No\r\nContent-Length: 0\r\n\r\n", EngineBroken),
        (b"SSH-2.0-OpenSSH\r\n\r\n", EngineBroken),
        (CHUNKED + b"zz\r\n", EngineBroken),
        (CHUNKED + END, EngineBroken),
        (b"", EngineBroken),
    ],
)
async def test_other_answers_are_refusals_or_broken(answer: bytes, fault: type[Exception]) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer)

    async with server(script) as here, stream_of(here.url) as stream:
        with pytest.raises(fault, match=here.url):
            await asyncio.wait_for(stream.run(ORDER), 10)


async def test_nobody_there_and_nobody_who_accepts_are_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        place = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]  # more than the backlog holds
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(place)
        async with stream_of(f"http://127.0.0.1:{place[1]}") as stream:
            with pytest.raises(EngineBroken):
                await stream.run(ORDER)
        for one in waiting:
            one.close()
    async with stream_of(f"http://127.0.0.1:{place[1]}") as stream:
        with pytest.raises(EngineBroken):
            await stream.run(ORDER)
    async with stream_of("127.0.0.1") as stream:
        with pytest.raises(EngineBroken, match="URL"):
            await stream.run(ORDER)
