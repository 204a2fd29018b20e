"""The stream of a trainer's lines may end or break anywhere: nobody who waits for it waits on."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gyre.cell_agent.trainer.process.channel import ControlChannel, TrainerGone

READY = b'{"ready": {}}\n'
LIMIT_BYTES = 4096
SOON_S = 5.0


@pytest.mark.parametrize(
    ("last_words", "ends"),
    [
        pytest.param(b"", True, id="nothing"),
        pytest.param(b'{"id": 0, "resu', True, id="a line cut short"),
        pytest.param(b'{"id": 0, "result": {}}', True, id="a line but for its end"),
        pytest.param(b"x" * 10 * LIMIT_BYTES, False, id="a line too long"),
        pytest.param(b"not json\n", False, id="no JSON"),
    ],
)
async def test_a_call_fails_when_the_trainers_lines_break_off(
    last_words: bytes, ends: bool
) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=LIMIT_BYTES)
        channel = ControlChannel(reader, writer, silence_s=600.0, on_silent=lambda: None)
        theirs.sendall(READY)
        await channel.ready(SOON_S)
        call = asyncio.create_task(channel.call("flush_steps", 600.0))
        await asyncio.get_running_loop().run_in_executor(None, theirs.recv, LIMIT_BYTES)
        theirs.sendall(last_words)
        if ends:
            theirs.shutdown(socket.SHUT_RDWR)
        with pytest.raises(TrainerGone):
            await asyncio.wait_for(call, SOON_S)
        with pytest.raises(TrainerGone):
            await channel.call("flush_steps", SOON_S)
        if not ends:
            assert theirs.recv(1) == b""  # hung up: what cannot be understood ends
        await asyncio.wait_for(channel.close(), SOON_S)
