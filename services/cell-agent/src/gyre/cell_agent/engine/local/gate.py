"""Who may enter the engine: pause, and the lock between generation and weight updates.

Lives in the event loop. A request enters when the engine is neither paused nor updating, nor
about to (a waiting update goes first, else a busy engine would never update); an update that
needs the engine idle waits until all have left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Gate:
    """`num_inside` counts requests between admission and their answer."""

    def __init__(self) -> None:
        self.paused = False
        self.num_inside = 0
        self._num_updates = 0
        self._changed = asyncio.Event()
        self._update_turn = asyncio.Lock()

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Hold a place among the running requests."""
        await self._until(lambda: not self.paused and self._num_updates == 0)
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1
            self._announce()

    @asynccontextmanager
    async def update(self) -> AsyncIterator[None]:
        """Hold the engine idle; while paused, updates apply at once beside what is held."""
        if self.paused:
            yield
            return
        self._num_updates += 1
        try:
            async with self._update_turn:
                await self.empty()
                yield
        finally:
            self._num_updates -= 1
            self._announce()

    async def empty(self) -> None:
        """Wait until no request is inside."""
        await self._until(lambda: self.num_inside == 0)

    async def opened(self, timeout_s: float) -> bool:
        """Wait until not paused; False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._until(lambda: not self.paused)
        except TimeoutError:
            return False
        return True

    def set_paused(self, paused: bool) -> None:
        """Close or open the gate for new requests."""
        self.paused = paused
        self._announce()

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            await self._changed.wait()

    def _announce(self) -> None:
        """Wake all waiters, each of which looks again; later changes are a new event."""
        self._changed.set()
        self._changed = asyncio.Event()
