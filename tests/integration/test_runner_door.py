"""The door of an attempt, served by a real keeper: which proxy it leads to, what breaks with a
proxy, and what does not. The proxies are stubs; the test is the client."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from gyre.runner import keeper as keepers
from gyre.runner.keeper import Keeper, LaunchHandle, LaunchRequest
from gyre.runner.proxies import Proxies
from gyre.runner.relay import MAX_CONNECTIONS, preference
from gyre.testkit.execution_world import until
from gyre.testkit.nats_server import free_port

EXECUTION = "job-g0000-e0"


@dataclass(slots=True)
class Stub:
    """A proxy that says its own URL. stuck: it takes requests and answers none."""

    port: int = field(default_factory=free_port)
    asked: int = 0
    stuck: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _health(self, request: web.Request) -> web.Response:
        if self.stuck:
            await asyncio.Event().wait()
        return web.Response(text="ok\n")

    async def _say(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.stuck:
            await asyncio.Event().wait()
        return web.Response(text=self.url)

    async def _echo(self, request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        """The beginning of an answer that never ends."""
        self.asked += 1
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"some")
        await asyncio.Event().wait()
        return response

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves until the block ends; open connections break then, as if it were killed."""
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/say", self._say)
        app.router.add_get("/begin", self._begin)
        app.router.add_post("/echo", self._echo)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
            yield
        finally:
            await runner.cleanup()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A door with its launch. first, second: the stubs in the order of EXECUTION's preference."""

    url: str
    note: Path
    keeper: Keeper
    handle: LaunchHandle
    first: Stub
    second: Stub

    async def ask(self) -> str:
        """Which proxy answers, over a new connection."""
        async with httpx.AsyncClient(base_url=self.url, timeout=20, trust_env=False) as http:
            return (await http.get("/say")).text


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Opened]:
    keeper = Keeper(
        python=Path(sys.executable), warm=None, state_dir=tmp_path, log=tmp_path / "server.log"
    )
    stubs = {stub.url: stub for stub in (Stub(), Stub())}
    first, second = (stubs[url] for url in preference(EXECUTION, stubs))
    with Proxies(urls=tuple(stubs)).door(EXECUTION, tmp_path / "proxy") as opened:
        assert opened is not None
        request = LaunchRequest(
            argv=("sh", "-c", "ls /proc/self/fd; exec sleep 100"),
            env={"PATH": "/usr/bin:/bin"},
            cwd=tmp_path,
            stdout=tmp_path / "out",
            stderr=tmp_path / "err",
            status=tmp_path / "status.json",
            door=opened,
        )
        url = opened.url
        handle = await keeper.launch(request)
    try:
        yield Opened(
            url=url,
            note=tmp_path / "proxy",
            keeper=keeper,
            handle=handle,
            first=first,
            second=second,
        )
    finally:
        await keepers.kill_group(handle, 0)
        await keeper.stop()


async def test_a_door_leads_to_the_execution_s_own_proxy(door: Opened) -> None:
    async with door.first.running(), door.second.running():
        assert [await door.ask() for _ in range(3)] == [door.first.url] * 3
    assert door.second.asked == 0
    assert door.note.read_text() == door.first.url


async def test_what_goes_through_is_not_changed(door: Opened) -> None:
    body = bytes(range(256)) * 20_000
    async with door.first.running(), httpx.AsyncClient(trust_env=False, timeout=20) as http:
        for size in (0, 1, len(body)):
            echoed = await http.post(f"{door.url}/echo", content=body[:size])
            assert echoed.content == body[:size]
        many = [http.post(f"{door.url}/echo", content=body[:index]) for index in range(40)]
        assert [len(answer.content) for answer in await asyncio.gather(*many)] == list(range(40))


async def test_another_proxy_is_found_and_kept_when_the_first_is_back(door: Opened) -> None:
    async with door.second.running():
        async with door.first.running():
            assert await door.ask() == door.first.url
        assert await door.ask() == door.second.url
        async with door.first.running():
            assert await door.ask() == door.second.url
        assert door.note.read_text() == door.second.url
    async with door.first.running():
        assert await door.ask() == door.first.url


async def test_a_connection_breaks_with_its_proxy_and_nothing_is_sent_again(door: Opened) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(door.second.running())
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=20))
        async with door.first.running():
            answer = await stack.enter_async_context(http.stream("GET", f"{door.url}/begin"))
            pieces = answer.aiter_raw()
            assert await anext(pieces) == b"some"
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(pieces)
        assert (door.first.asked, door.second.asked) == (1, 0)
        assert await door.ask() == door.second.url


async def test_a_socket_that_outlived_its_process_is_no_proxy(door: Opened) -> None:
    with socket.create_server(("127.0.0.1", door.first.port)):
        async with door.second.running():
            assert await door.ask() == door.second.url


async def test_what_leads_to_a_proxy_that_is_stuck_is_broken_for_the_client_to_ask_again(
    door: Opened,
) -> None:
    async with door.first.running(), door.second.running(), AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=20))
        answer = await stack.enter_async_context(http.stream("GET", f"{door.url}/begin"))
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"some"
        door.first.stuck = True
        assert await door.ask() == door.second.url
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(pieces)


async def test_a_client_beyond_the_bound_waits_for_a_place(door: Opened) -> None:
    port = int(door.url.rpartition(":")[2])
    async with door.first.running():
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
        for _, writer in held:
            writer.write(b"GET /say HTTP/1.1\r\nHost: p\r\n\r\n")
        for reader, _ in held:
            await reader.readuntil(door.first.url.encode())
        asking = asyncio.create_task(door.ask())
        finished, _ = await asyncio.wait({asking}, timeout=0.3)
        assert finished == set()
        held[0][1].close()
        assert await asking == door.first.url
        for _, writer in held:
            writer.close()


async def test_clients_wait_while_no_proxy_answers(door: Opened) -> None:
    asking = [asyncio.create_task(door.ask()) for _ in range(5)]
    finished, _ = await asyncio.wait(asking, timeout=0.5)
    assert finished == set()
    async with door.second.running():
        assert await asyncio.gather(*asking) == [door.second.url] * 5


async def test_a_door_stays_without_its_server_and_ends_with_its_launch(door: Opened) -> None:
    await door.keeper.stop()
    async with door.first.running():
        assert await door.ask() == door.first.url
        await keepers.kill_group(door.handle, 0)
        with pytest.raises(httpx.ConnectError):
            await door.ask()


async def test_a_harness_holds_nothing_of_its_door(door: Opened, tmp_path: Path) -> None:
    async def listed() -> bool:
        return (tmp_path / "out").read_text().endswith("3\n")

    await until(listed)  # descriptor 3 is the listing's own
    assert (tmp_path / "out").read_text() == "0\n1\n2\n3\n"
