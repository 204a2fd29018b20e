"""Was the harness cut off: calls that did not arrive, and a proxy that does not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.runner.delivery import has_undelivered_call, own_proxy_answers, proxy_answers
from gyre.testkit.execution_world import JOB, ExecutionWorld
from gyre.testkit.nats_server import free_port


async def test_an_undelivered_call_belongs_to_the_attempt_that_made_it(tmp_path: Path) -> None:
    world = ExecutionWorld(tmp_path, MemoryEventLog())
    await world.call("e0", "n1", attempt=1)
    await world.call("e0", "n2", attempt=2)
    await world.lose_answer("e0", "n1")
    await world.call("e1", "n3", attempt=2)
    await world.lose_answer("e1", "n3")

    async def undelivered(execution: str, attempt: int) -> bool:
        return await has_undelivered_call(
            world.journal, job=JOB, execution=execution, attempt=attempt
        )

    assert await undelivered("e0", 1)
    assert not await undelivered("e0", 2)
    assert await undelivered("e1", 2)
    assert not await undelivered("e2", 1)


async def serve(answer: bytes | None) -> asyncio.Server:
    """A listener that answers every connection with `answer`, with None never."""

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is not None:
            writer.write(answer)
        else:
            await reader.read()
        writer.close()

    return await asyncio.start_server(on_connect, "127.0.0.1", 0)


async def test_a_proxy_answers_or_it_does_not() -> None:
    answers = {
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok": True,
        b"HTTP/1.1 503 Service Unavailable\r\n\r\n": False,
        b"": False,
        None: False,
    }
    for answer, expected in answers.items():
        server = await serve(answer)
        port = server.sockets[0].getsockname()[1]
        assert await proxy_answers(f"http://127.0.0.1:{port}/v1", deadline_s=1.0) is expected
        server.close()
        await server.wait_closed()
    assert not await proxy_answers(f"http://127.0.0.1:{free_port()}", deadline_s=1.0)


async def test_what_counts_is_the_proxy_that_the_attempt_was_led_to() -> None:
    server = await serve(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    up = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    down = f"http://127.0.0.1:{free_port()}"
    assert await own_proxy_answers(None, [up, down])
    assert not await own_proxy_answers(None, [down, up])
    assert await own_proxy_answers(up, [down, up])
    assert not await own_proxy_answers(down, [up, down])
    assert not await own_proxy_answers(None, [])
    server.close()
    await server.wait_closed()
