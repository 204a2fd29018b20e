"""On a CPU a server with nothing to do leaves the cores to the trainer of its cell."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from gyre.cell_agent.engine.base import EngineClient
from gyre.testkit.engine_fixtures import SharedEngines

WATCHED_S = 3.0
# Its other processes look after themselves now and then; one that polls spends WATCHED_S each time.
SPENT_S = 0.5
# What was asked of it before may still be put away at first.
WINDOWS = 5


def cpu_s(pid: int) -> float:
    """Of a process and all below it, since they began."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


@pytest.mark.parametrize("paused", [False, True], ids=["idle", "paused"])
async def test_a_server_without_work_sleeps(
    shared_engines: SharedEngines, first: EngineClient, paused: bool
) -> None:
    """A cell's engine is paused as long as the cell trains."""
    if paused:
        await first.pause("in_place")
    pid = shared_engines.alive("sglang", 0).process.pid
    spent: list[float] = []
    while len(spent) < WINDOWS and min(spent, default=WATCHED_S) >= SPENT_S:
        before = cpu_s(pid)
        await asyncio.sleep(WATCHED_S)
        spent.append(cpu_s(pid) - before)
    assert min(spent) < SPENT_S, f"seconds of CPU in windows of {WATCHED_S:g} s: {spent}"
