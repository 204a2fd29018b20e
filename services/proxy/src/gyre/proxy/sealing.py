"""Seals executions that are over: nothing of theirs follows, evaluation and training may begin.

consumes: executions that terminated
produces: calls_sealed{num_calls, last_seq}, once an execution
waits for: the execution's open calls to be recorded as aborted; the log
is unblocked by: the generations' stop, the log's coming back
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gyre.adapters.eventlog.base import EventLogError, SequenceConflict
from gyre.adapters.logging import get_logger
from gyre.proxy.live import Live
from gyre.proxy.recorder import CallLog


class Sealer:
    """Seals each execution in a task of its own: one that is slow to end holds up no other."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[CallLog, Live | None, Callable[[], None]]] = (
            asyncio.Queue()
        )

    def add(self, log: CallLog, live: Live | None, done: Callable[[], None]) -> None:
        """`done` is called after the seal is in the log. The caller adds an execution once."""
        self._queue.put_nowait((log, live, done))

    async def run(self) -> None:
        """Seals what is added, for ever. Raises what makes sealing impossible."""
        async with asyncio.TaskGroup() as group:
            while True:
                log, live, done = await self._queue.get()
                group.create_task(_seal(log, live, done))


async def _seal(log: CallLog, live: Live | None, done: Callable[[], None]) -> None:
    if live is not None:
        await _close_calls(live)
    while not log.sealed:
        try:
            await log.seal()
        except SequenceConflict as conflict:
            # Another writer, against the law of one: what it wrote cannot be told from here.
            get_logger().error("seal_conflict", execution=log.execution, error=str(conflict))
            raise
        except EventLogError as error:  # CallLog has been patient already; the seal must come
            get_logger().error("seal_retried", execution=log.execution, error=str(error))
    get_logger().info("calls_sealed", execution=log.execution, num_calls=log.num_calls)
    done()


async def _close_calls(live: Live) -> None:
    """Open calls are recorded as aborted with what they sampled. No new one begins: the key of a
    terminated execution is refused."""
    for call in live.open.values():
        call.generation.stop("the execution is over")
    while live.open or live.background:
        tasks = {call.task for call in live.open.values() if call.task} | live.background
        await asyncio.wait(tasks)
