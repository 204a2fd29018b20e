"""Seals executions that are over: nothing of theirs follows, evaluation and training may begin.

consumes: executions that terminated
produces: calls_sealed{num_calls, last_seq}, once an execution
waits for: the execution's calls to be recorded as what became of them; the log; where another proxy
may be serving the execution, that one's seal, for a while
is unblocked by: the generations' stop, the log's coming back
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gyre.adapters.eventlog.base import EventLogError, SequenceConflict
from gyre.adapters.logging import get_logger
from gyre.proxy.recorder import CallLog

# Between tries while the log stays away longer than it is patient itself: twice as long each time.
RETRY_S = 1.0
LONGEST_RETRY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """log: as this process knows it, None when it serves no call of the execution. close: returns
    when nothing more is to be said of its calls. reread: its log as it is now, which needs no body
    of its events. done: called after the seal is in the log."""

    log: CallLog | None
    close: Callable[[], Awaitable[None]]
    reread: Callable[[], Awaitable[CallLog]]
    done: Callable[[], None]


class Sealer:
    """Seals each execution in a task of its own: one that is slow to end holds up no other.

    owner_patience_s: how long an execution that another proxy may own is left to it."""

    def __init__(self, owner_patience_s: float) -> None:
        self._owner_patience_s = owner_patience_s
        self._queue: asyncio.Queue[Seal] = asyncio.Queue()

    def add(self, seal: Seal) -> None:
        """The caller adds an execution once."""
        self._queue.put_nowait(seal)

    async def run(self) -> None:
        """Seals what is added, for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._seal(await self._queue.get()))

    async def _seal(self, seal: Seal) -> None:
        log = seal.log
        if log is not None:
            await seal.close()
        pause_s = RETRY_S
        while log is None or not log.sealed:
            try:
                if log is None or log.lost:
                    await asyncio.sleep(self._owner_patience_s)
                    log = await seal.reread()
                else:
                    await log.seal()
            except SequenceConflict as conflict:
                get_logger().warning("seal_conflict", error=str(conflict))
            except EventLogError as error:  # evaluation waits for it: it comes when the log does
                if pause_s == RETRY_S:
                    get_logger().error("seal_delayed", error=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_RETRY_S)
        get_logger().info("calls_sealed", execution=log.execution, num_calls=log.num_calls)
        seal.done()
