"""Wakes tasks that wait for something to change, by key, so that one fact wakes only whom it
concerns. A wake-up says "look again", never what there is to see."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager


class Watch:
    """Events by key. Mutated by `registered` only."""

    def __init__(self) -> None:
        self._events: dict[Hashable, set[asyncio.Event]] = {}

    def wake(self, keys: Iterable[Hashable]) -> None:
        """Sets every event registered under one of `keys`."""
        for key in keys:
            for event in self._events.get(key, ()):
                event.set()

    @contextmanager
    def registered(self, event: asyncio.Event, keys: Iterable[Hashable]) -> Iterator[None]:
        """`event` is set at each wake-up of `keys` while the context lasts."""
        wanted = tuple(keys)
        for key in wanted:
            self._events.setdefault(key, set()).add(event)
        try:
            yield
        finally:
            for key in wanted:
                events = self._events[key]
                events.discard(event)
                if not events:
                    del self._events[key]


async def wait_until(event: asyncio.Event, deadline: float) -> bool:
    """Waits for `event` up to `deadline` on the loop's clock, and clears it. False: it was late."""
    try:
        async with asyncio.timeout_at(deadline):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
