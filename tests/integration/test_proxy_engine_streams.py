"""An engine's stream: what came is kept however it ends, and what ends it is told apart."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import orjson
import pytest
import uvloop

from gyre.proxy.sampling import connection, connections
from gyre.proxy.sampling.connections import Connections
from gyre.proxy.sampling.contexts import ContextTexts
from gyre.proxy.sampling.streams import (
    EngineBroken,
    EngineRefused,
    Engines,
    EngineStream,
    SamplingOrder,
    engine_session,
)
from gyre.testkit.scripted_server import CHUNKED, END, Peer, chunk, connected, server

ORDER = SamplingOrder(
    rid="0" * 32, execution="e", input_ids=[1, 2, 3], max_new_tokens=8, temperature=1.0, seed=7,
    stop_token_ids=[5],
)  # fmt: skip


@asynccontextmanager
async def stream_of(url: str) -> AsyncIterator[EngineStream]:
    async with engine_session() as session, Engines(session) as engines:
        yield engines.stream(url, (0, 0))


def event(ids: Sequence[int], finish: str | None = None) -> bytes:
    meta = {
        "weight_version": "0.3",
        "cached_tokens": 2,
        "finish_reason": None if finish is None else {"type": finish},
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
    }
    return b"data: " + orjson.dumps({"output_ids": list(ids), "meta_info": meta}) + b"\n\n"


def test_the_loop_that_serves_reads_it_as_the_other_one_does() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_who_is_cancelled_closes_the_connection())
        runner.run(test_a_death_in_mid_stream_loses_no_token_that_came(3))


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


class Told(EngineStream):
    """A stream that says when bytes have come, whether or not anybody has looked at them."""

    def __init__(self, pool: Connections, url: str, last: bytes) -> None:
        super().__init__(pool, ContextTexts(0), url, (0, 0))
        self.last = last
        self.has_come = asyncio.Event()

    def came(self, data: bytes) -> bool:
        if self.last in data:
            self.has_come.set()
        return super().came(data)


async def say_three_and_hang(peer: Peer) -> None:
    await peer.request()
    for ids in ([1], [1, 2], [1, 2, 3]):
        await peer.say(CHUNKED[: len(CHUNKED) if ids == [1] else 0] + chunk(event(ids)))
        await asyncio.sleep(0.01)  # so that each comes alone
    await peer.reader.read()


async def test_who_is_cancelled_has_all_that_had_come() -> None:
    async with server(say_three_and_hang) as here, connected() as pool:
        stream = Told(pool, here.url, event([1, 2, 3]))
        running = asyncio.create_task(stream.run(ORDER))
        await asyncio.wait_for(stream.has_come.wait(), 10)
        running.cancel()
        assert stream.sample().token_ids == (1, 2, 3)
        await asyncio.wait({running})


async def test_who_drops_a_stream_keeps_all_that_had_come() -> None:
    async with server(say_three_and_hang) as here, connected() as pool:
        stream = Told(pool, here.url, event([1, 2, 3]))
        running = asyncio.create_task(stream.run(ORDER))
        await asyncio.wait_for(stream.has_come.wait(), 10)
        stream.drop()
        with pytest.raises(EngineBroken, match="given up"):
            await asyncio.wait_for(running, 10)
        assert stream.sample().token_ids == (1, 2, 3)


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


@pytest.mark.parametrize("is_ended", [True, False])
async def test_a_turn_is_whole_with_its_last_event_and_the_connection_after_the_rest(
    monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    monkeypatch.setattr(connection, "_REST_S", 10.0 if is_ended else 0.05)
    whole = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.say(CHUNKED + chunk(event([1])) + chunk(event([1, 5], "stop")))
            await asyncio.wait_for(whole.wait(), 10)  # nothing more is said before
            if is_ended:
                await peer.say(chunk(b"data: [DONE]\n\n") + END)

    async with server(script) as here, connected() as pool:
        for turn in range(2):
            whole.clear()
            stream = EngineStream(pool, ContextTexts(0), here.url, (0, 0))
            await asyncio.wait_for(stream.run(ORDER), 10)
            assert stream.sample().token_ids == (1, 5)
            whole.set()
            while not (pool._idle.get(here.url) if is_ended else not pool._all):
                await asyncio.sleep(0.01)
            assert here.num_connections == (1 if is_ended else turn + 1)


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
