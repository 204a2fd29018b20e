"""Wakes tasks that wait for something to change, by key, so that one fact wakes only whom it
concerns. A wake-up says "look again", never what there is to see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager


class Signal:
    """Wakes the one task that waits for it, in the event loop's next round. What `asyncio.Event`
    with a time-out does, at a third of its cost: every call waits several times.

    listener: called at each `set`, for who has to look at once.
    """

    __slots__ = ("_is_set", "_waiting", "listener")

    def __init__(self) -> None:
        self.listener: Callable[[], None] | None = None
        self._is_set = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Whoever waits, or the next one to wait, goes on."""
        self._is_set = True
        _end(self._waiting)
        if self.listener is not None:
            self.listener()

    async def wait_until(self, deadline: float) -> bool:
        """Waits up to `deadline` on the loop's clock, and clears. False: it was late."""
        loop = asyncio.get_running_loop()
        if not self._is_set:
            assert self._waiting is None, "one task waits for a signal"
            self._waiting = loop.create_future()
            timer = loop.call_at(deadline, _end, self._waiting)
            try:
                await self._waiting
            finally:
                timer.cancel()
                self._waiting = None
        was_set, self._is_set = self._is_set, False
        return was_set


def _end(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class Watch:
    """Signals by key. Mutated by `registered` only."""

    def __init__(self) -> None:
        self._signals: dict[Hashable, set[Signal]] = {}

    def wake(self, keys: Iterable[Hashable]) -> None:
        """Sets every signal registered under one of `keys`."""
        for key in keys:
            for signal in tuple(self._signals.get(key, ())):
                signal.set()

    @contextmanager
    def registered(self, signal: Signal, keys: Iterable[Hashable]) -> Iterator[None]:
        """`signal` is set at each wake-up of `keys` while the context lasts."""
        wanted = tuple(keys)
        for key in wanted:
            self._signals.setdefault(key, set()).add(signal)
        try:
            yield
        finally:
            for key in wanted:
                signals = self._signals[key]
                signals.discard(signal)
                if not signals:
                    del self._signals[key]
