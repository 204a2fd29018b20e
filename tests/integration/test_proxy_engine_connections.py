"""Connections to engines: answers in any pieces, connections that are kept, closed or cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import uvloop

from gyre.proxy.sampling import connections
from gyre.proxy.sampling.connection import Reply, Want
from gyre.testkit.scripted_server import CHUNKED, END, Peer, chunk, connected, server


@dataclass(slots=True)
class Kept:
    """A sink that takes everything."""

    data: bytes = b""
    give_up: Callable[[], None] = lambda: None

    def begin(self, catch_up: Callable[[], None], give_up: Callable[[], None]) -> None:
        self.give_up = give_up

    def came(self, data: bytes) -> bool:
        return False

    def take(self, data: bytes) -> Want:
        self.data += data
        return Want.MORE


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


async def test_who_gives_up_too_late_leaves_the_connection_to_whom_it_belongs_now() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED + END)
        await peer.request()
        await peer.say(CHUNKED + chunk(b"half"))
        await go_on.wait()
        await peer.say(chunk(b" and half") + END)

    async with server(script) as here, connected() as pool:
        first, second = Kept(), Kept()
        await pool.post(here.url, "/x", [b"{}"], first)
        first.give_up()
        asking = asyncio.create_task(pool.post(here.url, "/x", [b"{}"], second))
        while second.data != b"half":
            await asyncio.sleep(0.01)
        first.give_up()
        go_on.set()
        assert await asyncio.wait_for(asking, 10) == Reply(status=200)
        assert second.data == b"half and half"
        assert here.num_connections == 1


async def test_who_gives_up_is_told_so_and_asks_nobody_else() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.reader.read()

    async with server(script) as here, connected() as pool:
        sink = Kept()
        asking = asyncio.create_task(pool.post(here.url, "/x", [b"{}"], sink))
        while not here.num_connections:
            await asyncio.sleep(0.01)
        sink.give_up()
        with pytest.raises(OSError, match="given up"):
            await asyncio.wait_for(asking, 10)
        assert here.num_connections == 1
