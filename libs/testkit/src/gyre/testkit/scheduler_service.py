"""A real scheduler loop with its API over a log, in virtual time, for tests that ask by HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
from pydantic import SecretStr

from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.scheduler.api import create_app
from gyre.scheduler.loop import SchedulerLoop
from gyre.testkit.lagging_log import LaggingLog
from gyre.testkit.scheduler_world import Cells, RecordedQueue
from gyre.testkit.virtual_time import VirtualClock, run_virtual

TOKEN = "api-token"


class Service:
    """One scheduler with its API over `log`."""

    def __init__(self, log: MemoryEventLog | LaggingLog) -> None:
        self.queue = RecordedQueue()
        self.journal = Journal(log, VirtualClock())
        self.loop = SchedulerLoop(self.journal, self.queue, VirtualClock())
        self.cells = Cells(self.journal)
        app = create_app(self.loop, self.journal, SecretStr(TOKEN))
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://scheduler",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        ready = asyncio.Event()
        task = asyncio.create_task(self.loop.run(ready))
        try:
            await ready.wait()
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await self.http.aclose()

    async def submit(self, raw: dict[str, Any]) -> str:
        answer = await self.http.post("/v1/jobs", json=raw)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def facts(self, kind: type | None = None) -> list[Any]:
        return [
            fact.body
            async for fact in self.journal.read(Stream.FACTS)
            if kind is None or isinstance(fact.body, kind)
        ]

    async def until(self, holds: Callable[[SchedulerLoop], bool], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not holds(self.loop):
                await asyncio.sleep(0.05)

    async def orders(self, num: int) -> None:
        await self.until(lambda _: len(self.queue.puts) >= num)


def scenario(body: Callable[[Service], Coroutine[Any, Any, None]]) -> None:
    """Run `body` against a fresh scheduler with three cells online."""

    async def main() -> None:
        async with Service(MemoryEventLog(clock=VirtualClock())).running() as service:
            await service.cells.register()
            await service.until(lambda loop: len(loop.state.online) == 3)
            await body(service)

    run_virtual(main())
