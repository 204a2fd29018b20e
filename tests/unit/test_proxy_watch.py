"""A task's wake-up: nothing that is said before it waits, or while it waits, is missed."""

from __future__ import annotations

import asyncio

from gyre.proxy.watch import Signal, Watch


def in_a_while(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_what_was_said_before_is_heard_once() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    assert await signal.wait_until(in_a_while(10))
    assert not await signal.wait_until(in_a_while(0.01))


async def test_who_waits_is_woken_and_not_at_the_deadline() -> None:
    signal = Signal()
    waiting = asyncio.create_task(signal.wait_until(in_a_while(60)))
    await asyncio.sleep(0)
    signal.set()
    assert await asyncio.wait_for(waiting, 5)


async def test_a_deadline_that_is_over_is_late_and_what_comes_after_it_is_kept() -> None:
    signal = Signal()
    assert not await signal.wait_until(in_a_while(-1))
    signal.set()
    assert await signal.wait_until(in_a_while(-1))


async def test_who_is_cancelled_waits_no_more_and_another_may() -> None:
    signal = Signal()
    waiting = asyncio.create_task(signal.wait_until(in_a_while(60)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    signal.set()
    assert await signal.wait_until(in_a_while(10))


async def test_a_listener_hears_each_time_at_once() -> None:
    heard = 0

    def listen() -> None:
        nonlocal heard
        heard += 1

    signal = Signal()
    signal.listener = listen
    signal.set()
    signal.set()
    assert heard == 2


async def test_a_wake_up_reaches_who_is_registered_under_its_key_and_nobody_after() -> None:
    watch, mine, other = Watch(), Signal(), Signal()
    with watch.registered(mine, ("a", "b")), watch.registered(other, ("c",)):
        watch.wake(("b",))
        assert await mine.wait_until(in_a_while(10))
        assert not await other.wait_until(in_a_while(0))
    watch.wake(("a", "b", "c"))
    assert not await mine.wait_until(in_a_while(0))
