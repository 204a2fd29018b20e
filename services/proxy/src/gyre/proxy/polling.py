"""Busy polling: while calls are open the event loop asks for news and never sleeps.

A process that sleeps is woken on a processor whose caches hold somebody else's data, and each call
wakes the proxy some ten times. Polling keeps one processor for the proxy: worth it where there are
processors to spare, harmful where engines or agents want that one.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class BusyPolling:
    """Entered once for each open request; polls from the first one's entry to the last one's exit.

    Within one event loop, not thread-safe."""

    def __init__(self) -> None:
        self._num_open = 0
        self._is_polling = False

    def __enter__(self) -> Self:
        self._num_open += 1
        if not self._is_polling:
            self._is_polling = True
            self._poll(asyncio.get_running_loop())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._num_open -= 1

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        """A callback that is due at once: a loop that has one looks for news without waiting."""
        self._is_polling = self._num_open > 0
        if self._is_polling:
            loop.call_soon(self._poll, loop)
