"""A server that plays a script on every connection, byte by byte, for clients of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from gyre.proxy.sampling.connections import Connections

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

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


def chunk(data: bytes) -> bytes:
    """Of an answer in chunks."""
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def connected() -> AsyncIterator[Connections]:
    """The proxy's connections, closed at the end."""
    pool = Connections()
    try:
        yield pool
    finally:
        pool.close()
        await asyncio.sleep(0)
