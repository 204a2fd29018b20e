"""An asyncio event loop whose clock is virtual: it jumps to the next timer instead of waiting.

Real coroutines, deadlines included, run through hours of their time in seconds of ours, and the
same seed gives the same run. Nothing in it may wait for the outside world: no sockets, no threads.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

# An arbitrary moment: unix seconds when a virtual run begins.
EPOCH_S = 1_700_000_000.0


class NothingToWaitFor(Exception):
    """No timer is set and nothing is ready: the program would wait for ever."""


class _JumpingSelector(selectors.SelectSelector):
    """Its `select` takes no time and finds nothing, since nothing outside is waited for: the time
    is added to the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingToWaitFor("no timer is set and nothing is ready")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """time() is in virtual seconds from 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class VirtualClock:
    """Implements Clock on the running loop's time."""

    def now(self) -> float:
        return EPOCH_S + asyncio.get_running_loop().time()


def run_virtual(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
