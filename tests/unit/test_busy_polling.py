"""A loop sleeps when it asks its selector to wait; one that polls never does."""

from __future__ import annotations

import asyncio
import selectors

from gyre.proxy.polling import BusyPolling


class WatchedSelector(selectors.DefaultSelector):
    """Notes how long the loop would have slept, in seconds; None: until something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.waits.append(timeout)
        return super().select(timeout)


def test_the_loop_never_sleeps_while_a_call_is_open_and_does_after_the_last() -> None:
    selector = WatchedSelector()

    async def play() -> tuple[list[float | None], list[float | None]]:
        polling = BusyPolling()
        with polling:
            with polling:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0)  # entered twice, left once: still polling
            selector.waits.clear()
            await asyncio.sleep(0.01)
            during = list(selector.waits)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        selector.waits.clear()
        await asyncio.sleep(0.01)
        return during, list(selector.waits)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        during, after = runner.run(play())
    assert len(during) > 1
    assert set(during) == {0}
    assert any(wait is None or wait > 0 for wait in after)
    assert len(after) <= 3  # a timer, and no rounds in between


def test_polling_that_ended_begins_again_with_the_next_call() -> None:
    selector = WatchedSelector()

    async def play() -> list[float | None]:
        polling = BusyPolling()
        for _ in range(2):
            with polling:
                pass
        await asyncio.sleep(0.001)
        with polling:
            selector.waits.clear()
            await asyncio.sleep(0.01)
            return list(selector.waits)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        assert set(runner.run(play())) == {0}
