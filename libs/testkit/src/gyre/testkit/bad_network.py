"""A network that misbehaves between a reader and its nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing


def take_frame(buffer: bytes) -> int:
    """Length of the first whole protocol frame, 0 if there is none yet."""
    line_end = buffer.find(b"\r\n")
    if line_end < 0:
        return 0
    size = line_end + 2
    if buffer.startswith((b"MSG ", b"HMSG ")):
        size += int(buffer[:line_end].split(b" ")[-1]) + 2
    return size if size <= len(buffer) else 0


class Relay:
    """Forwards to the server; drops the first `drops` frames that hold `mark`, and forwards in
    pieces of `piece` bytes."""

    def __init__(self, port: int, *, mark: bytes = b"", drops: int = 0, piece: int = 0) -> None:
        self._server_port = port
        self._mark, self._drops, self._piece = mark, drops, piece
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        yield f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the closed transports report their end

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        for pump in (self._up(reader, up_writer), self._down(up_reader, writer)):
            self._tasks.add(asyncio.create_task(pump))

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while chunk := await reader.read(65536):
                writer.write(chunk)

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = b""
        with closing(writer):
            while chunk := await reader.read(65536):
                buffer += chunk
                while size := take_frame(buffer):
                    frame, buffer = buffer[:size], buffer[size:]
                    if self._drops and self._mark in frame:
                        self._drops -= 1
                    else:
                        await self._forward(frame, writer)

    async def _forward(self, frame: bytes, writer: asyncio.StreamWriter) -> None:
        step = self._piece or len(frame)
        for start in range(0, len(frame), step):
            writer.write(frame[start : start + step])
            if self._piece:
                await writer.drain()
                await asyncio.sleep(0)
