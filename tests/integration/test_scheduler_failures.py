"""A scheduler that starts anew, one that has a double, and one whose log is slow or silent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.testkit.lagging_log import LaggingLog
from gyre.testkit.scheduler_service import Service, scenario
from gyre.testkit.scheduler_world import sound_job
from gyre.testkit.virtual_time import VirtualClock, run_virtual


def test_nothing_is_decided_before_the_head_at_start_is_folded(tmp_path: Path) -> None:
    async def main() -> None:
        inner = MemoryEventLog(clock=VirtualClock())
        async with Service(inner).running() as service:
            await service.cells.register()
            await service.until(lambda loop: len(loop.state.online) == 3)
            job = await service.submit(sound_job(tmp_path))
            await service.cells.boot(job)
            await service.orders(6)
            known = service.loop.state.jobs[job]
        head = await inner.head(Stream.FACTS)
        watched = _Watched(inner, head)
        async with Service(watched).running() as second:
            assert watched.appended_at == []
            assert second.loop.state.sequence >= head
            assert second.loop.state.jobs[job] == known
            await second.orders(6)
            await asyncio.sleep(5.0)
        assert {name for *_, name in second.queue.puts} == {name for *_, name in service.queue.puts}
        assert await inner.head(Stream.FACTS) == head

    run_virtual(main())


def test_two_schedulers_take_each_decision_once(tmp_path: Path) -> None:
    async def main() -> None:
        inner = MemoryEventLog(clock=VirtualClock())
        source = random.Random(7)
        logs = [LaggingLog(inner, source, 0.3) for _ in range(2)]
        async with Service(logs[0]).running() as first, Service(logs[1]).running() as second:
            await first.cells.register()
            await first.until(lambda loop: len(loop.state.online) == 3)
            job = await first.submit(sound_job(tmp_path, heldout=True))
            await first.cells.boot(job)
            for cell in range(3):
                await first.cells.say(job, cell, cell_events.WorldJoined(cell=cell, epoch=1))
            await first.orders(1)
            await asyncio.sleep(20.0)
            for kind in (sched.JobStarted, sched.WorldFormed, sched.PhaseStarted, sched.Dispatched):
                assert len(await first.facts(kind)) == 1, kind
            assert first.loop.state.jobs[job] == second.loop.state.jobs[job]
            sent = [name for service in (first, second) for *_, name in service.queue.puts]
            assert len(set(sent)) == 1

    run_virtual(main())


def test_a_log_that_does_not_answer_is_a_503() -> None:
    async def body(service: Service) -> None:
        async def silent(*_: object, **__: object) -> int:
            raise TimeoutError

        service.journal.append = silent  # type: ignore[method-assign]
        answer = await service.http.post("/v1/jobs", json=sound_job(Path("/tmp/gyre-503")))
        assert answer.status_code == 503
        assert answer.json()["error"]["field"] == "log"

    scenario(body)


class _Watched(LaggingLog):
    """Notes appends that come before the reader has delivered the head."""

    def __init__(self, inner: MemoryEventLog, head: int) -> None:
        super().__init__(inner, random.Random(1), 0.5)
        self._head = head
        self._delivered = 0
        self.appended_at: list[int] = []

    async def append(
        self, subject: str, data: bytes, *, event_id: str, expected: int | None
    ) -> int:
        if self._delivered < self._head:
            self.appended_at.append(self._delivered)
        return await super().append(subject, data, event_id=event_id, expected=expected)

    async def follow(self, stream: Stream, **where: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        async for recorded in super().follow(stream, **where):
            await asyncio.sleep(0.2)
            self._delivered = recorded.sequence
            yield recorded
