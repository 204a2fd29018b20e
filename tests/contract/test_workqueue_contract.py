"""One contract for every work queue: memory and JetStream on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from gyre.adapters.eventlog.base import EventLogError
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.workqueue.base import WorkQueue
from gyre.adapters.workqueue.jetstream import JetStreamWorkQueue
from gyre.adapters.workqueue.memory import MemoryWorkQueue
from gyre.testkit.nats_server import NatsServer

Scenario = Callable[[WorkQueue], Awaitable[None]]
Run = Callable[[Scenario], None]
ACK_WAIT_S = 1.0
LIMIT_S = 30


@pytest.fixture(params=["memory", "jetstream"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """Runs a scenario against a fresh, empty queue."""
    server = NatsServer(tmp_path).start() if request.param == "jetstream" else None

    async def on_fresh_queue(scenario: Scenario) -> None:
        queue: WorkQueue = MemoryWorkQueue(ack_wait_s=ACK_WAIT_S)
        if server is not None:
            await ensure_streams(server.url)
            queue = JetStreamWorkQueue(server.url, ack_wait_s=ACK_WAIT_S)
        async with asyncio.timeout(LIMIT_S):
            await scenario(queue)
        await queue.close()

    yield lambda scenario: asyncio.run(on_fresh_queue(scenario))
    if server is not None:
        server.stop()


def test_a_ticket_is_taken_in_order_acked_and_gone(run: Run) -> None:
    async def scenario(queue: WorkQueue) -> None:
        for i in range(3):
            assert await queue.put("work.start.j", b"%d" % i, f"t{i}") == i + 1
        items = await queue.take("work.start.>", "starts", 10, 1.0)
        assert [(i.subject, i.data, i.msg_id, i.sequence, i.deliveries) for i in items] == [
            ("work.start.j", b"0", "t0", 1, 1),
            ("work.start.j", b"1", "t1", 2, 1),
            ("work.start.j", b"2", "t2", 3, 1),
        ]
        for item in items:
            assert await item.ack()
        assert await queue.take("work.start.>", "starts", 10, ACK_WAIT_S + 0.3) == []

    run(scenario)


def test_take_returns_at_most_a_batch_and_each_ticket_goes_to_one_taker(run: Run) -> None:
    async def scenario(queue: WorkQueue) -> None:
        for i in range(6):
            await queue.put("work.start.j", b"", f"t{i}")
        first = await queue.take("work.start.>", "starts", 2, 1.0)
        rest = await queue.take("work.start.>", "starts", 10, 1.0)
        assert [item.msg_id for item in first + rest] == [f"t{i}" for i in range(6)]
        assert len(first) == 2

    run(scenario)


def test_take_waits_for_the_first_ticket(run: Run) -> None:
    async def scenario(queue: WorkQueue) -> None:
        taking = asyncio.create_task(queue.take("work.start.>", "starts", 5, 5.0))
        await asyncio.sleep(0.1)
        await queue.put("work.start.j", b"late", "t")
        assert [item.data for item in await taking] == [b"late"]

    run(scenario)


def test_take_without_work_is_empty_after_its_timeout(run: Run) -> None:
    async def scenario(queue: WorkQueue) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        assert await queue.take("work.start.>", "starts", 5, 0.3) == []
        assert 0.25 <= loop.time() - begin < 10.0

    run(scenario)


def test_a_repeated_msg_id_is_one_ticket(run: Run) -> None:
    async def scenario(queue: WorkQueue) -> None:
        assert await queue.put("work.start.j", b"a", "t") == 1
        assert await queue.put("work.start.j", b"a", "t") == 1
        assert len(await queue.take("work.start.>", "starts", 5, 0.5)) == 1

    run(scenario)


def test_a_ticket_that_nobody_acks_comes_again_and_again(run: Run) -> None:
    async def scenario(queue: WorkQueue) -> None:
        await queue.put("work.start.j", b"", "t")
        for delivery in (1, 2, 3):
            [item] = await queue.take("work.start.>", "starts", 5, ACK_WAIT_S + 2)
            assert item.deliveries == delivery

    run(scenario)


def test_nak_brings_a_ticket_back_after_its_delay(run: Run) -> None:
    async def scenario(queue: WorkQueue) -> None:
        await queue.put("work.start.j", b"", "t")
        [item] = await queue.take("work.start.>", "starts", 5, 1.0)
        await item.nak()
        [item] = await queue.take("work.start.>", "starts", 5, 1.0)
        await item.nak(1.0)
        assert await queue.take("work.start.>", "starts", 5, 0.1) == []
        [item] = await queue.take("work.start.>", "starts", 5, 5.0)
        assert item.deliveries == 3

    run(scenario)


def test_extend_keeps_a_ticket_with_its_taker(run: Run) -> None:
    async def scenario(queue: WorkQueue) -> None:
        await queue.put("work.start.j", b"", "t")
        [item] = await queue.take("work.start.>", "starts", 5, 1.0)
        for _ in range(5):
            await asyncio.sleep(0.3 * ACK_WAIT_S)
            await item.extend()
        assert await queue.take("work.start.>", "starts", 5, 0.05) == []
        await item.ack()

    run(scenario)


def test_disjoint_filters_take_their_own_tickets(run: Run) -> None:
    async def scenario(queue: WorkQueue) -> None:
        await queue.put("work.start.a", b"", "a")
        await queue.put("work.start.b", b"", "b")
        [b] = await queue.take("work.start.b", "starts-b", 5, 1.0)
        [a] = await queue.take("work.start.a", "starts-a", 5, 1.0)
        assert (a.msg_id, b.msg_id) == ("a", "b")

    run(scenario)


def test_only_work_subjects_are_tickets(run: Run) -> None:
    async def scenario(queue: WorkQueue) -> None:
        with pytest.raises(EventLogError):
            await queue.put("facts.j.sched", b"", "t")

    run(scenario)


def test_tickets_outlive_a_killed_server_and_every_one_is_done(tmp_path: Path) -> None:
    server = NatsServer(tmp_path).start()
    count = 120
    done: list[str] = []

    async def work(queue: WorkQueue) -> None:
        while len(set(done)) < count:
            for item in await queue.take("work.start.>", "starts", 4, 0.5):
                await asyncio.sleep(0.005)
                done.append(item.msg_id)
                await item.ack()

    async def scenario() -> None:
        await ensure_streams(server.url)
        queue = JetStreamWorkQueue(server.url, ack_wait_s=ACK_WAIT_S)
        async with asyncio.timeout(LIMIT_S):
            workers = [asyncio.create_task(work(queue)) for _ in range(2)]
            for i in range(count):
                await queue.put("work.start.j", b"", f"t{i}")
                if i % 40 == 20:
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
            await asyncio.gather(*workers)
        await queue.close()
        assert set(done) == {f"t{i}" for i in range(count)}

    try:
        asyncio.run(scenario())
    finally:
        server.stop()
