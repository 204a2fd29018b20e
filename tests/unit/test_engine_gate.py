"""The gate between requests, pauses and weight updates."""

from __future__ import annotations

import asyncio

from gyre.cell_agent.engine.local.gate import Gate


async def settle() -> None:
    """Let every task that can move, move."""
    for _ in range(10):
        await asyncio.sleep(0)


async def hold(gate: Gate, release: asyncio.Event, log: list[str], name: str) -> None:
    async with gate.request():
        log.append(f"+{name}")
        await release.wait()
        log.append(f"-{name}")


async def update(gate: Gate, log: list[str]) -> None:
    async with gate.update():
        log.append("update")


async def test_an_update_waits_for_those_inside_and_goes_before_later_ones() -> None:
    gate, release, log = Gate(), asyncio.Event(), []
    tasks = [asyncio.create_task(hold(gate, release, log, "a"))]
    await settle()
    tasks.append(asyncio.create_task(update(gate, log)))
    await settle()
    tasks.append(asyncio.create_task(hold(gate, release, log, "b")))
    await settle()
    assert log == ["+a"]
    release.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert log == ["+a", "-a", "update", "+b", "-b"]


async def test_a_paused_gate_lets_updates_through_and_requests_wait() -> None:
    gate, release, log = Gate(), asyncio.Event(), []
    inside = asyncio.create_task(hold(gate, release, log, "a"))
    await settle()
    gate.set_paused(True)
    waiting = asyncio.create_task(hold(gate, release, log, "b"))
    await asyncio.wait_for(update(gate, log), 5)
    await settle()
    assert log == ["+a", "update"]
    assert not await gate.opened(0.01)
    gate.set_paused(False)
    assert await gate.opened(0.01)
    release.set()
    await asyncio.wait_for(asyncio.gather(inside, waiting), 5)
    assert gate.num_inside == 0


async def test_a_cancelled_request_leaves_the_gate() -> None:
    gate, log = Gate(), []
    task = asyncio.create_task(hold(gate, asyncio.Event(), log, "a"))
    await settle()
    task.cancel()
    await asyncio.wait_for(gate.empty(), 5)
    await asyncio.gather(task, return_exceptions=True)
    assert gate.num_inside == 0
