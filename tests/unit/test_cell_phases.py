"""The phases of a role change: measured, bounded, undone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest

from gyre.cell_agent.cell_memory import CellMemory
from gyre.cell_agent.deadlines import Deadlines
from gyre.cell_agent.engine.errors import (
    EngineError,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnreachableError,
)
from gyre.cell_agent.phases import (
    DEADLINES_S,
    PhaseFailed,
    Phases,
    deadline_s,
    undo_deadline_s,
)
from gyre.cell_agent.process_memory import resident_bytes
from gyre.cell_agent.trainer.process.client import TrainerRefused, TrainerTimeout
from gyre.cell_agent.weights.opening import DIGESTS_TIMEOUT_S, STALL_TIMEOUT_S
from gyre.core.switch_phases import ORDER
from gyre.testkit.virtual_time import run_virtual

MB = 2**20
SMALL = Deadlines(num_bytes=0, num_tokens=0, flops=1.0)
LARGE = Deadlines(num_bytes=10 * 2**30, num_tokens=0, flops=1.0)


async def nothing() -> None:
    pass


async def memory() -> CellMemory:
    return CellMemory(engine_bytes=7, trainer_bytes=None)


def undoing(done: list[str], name: str) -> Callable[[], Awaitable[None]]:
    async def undo() -> None:
        done.append(name)

    return undo


def test_every_phase_of_a_change_has_a_deadline() -> None:
    assert set(DEADLINES_S) == set(ORDER)


def test_each_phase_leaves_its_seconds_and_the_memory_at_its_end() -> None:
    async def run() -> Phases:
        phases = Phases(memory, SMALL, 100.0)
        async with phases("drain"):
            await asyncio.sleep(2.0)
        async with phases("release_engine"):
            await asyncio.sleep(0.5)
        return phases

    records = run_virtual(run()).records
    assert [record.name for record in records] == ["drain", "release_engine"]
    assert [record.seconds for record in records] == pytest.approx([2.0, 0.5])
    assert [record.engine_bytes for record in records] == [7, 7]
    assert not any(record.undone for record in records)


def test_what_failed_is_undone_with_all_that_came_before_it_the_last_first() -> None:
    undone: list[str] = []

    async def run() -> Phases:
        phases = Phases(memory, SMALL, 100.0)
        async with phases("stop_admitting", undo=undoing(undone, "stop_admitting")):
            pass
        async with phases("drain"):
            pass
        with pytest.raises(PhaseFailed) as failed:
            async with phases("release_engine", undo=undoing(undone, "release_engine")):
                raise EngineRefusedError("/release", 400, "busy")
        assert (failed.value.phase, undone) == ("release_engine", [])
        await phases.undo()
        return phases

    records = run_virtual(run()).records
    assert undone == ["release_engine", "stop_admitting"]
    assert [record.undone for record in records] == [False, False, True]


@pytest.mark.parametrize(
    ("phase", "limit_s", "kind"),
    [
        ("drain", 1000.0, EngineTimeoutError),
        ("drain", 3.0, EngineTimeoutError),
        ("restore_trainer", 1000.0, TrainerTimeout),
    ],
)
def test_a_phase_ends_at_its_own_deadline_or_at_the_jobs(
    phase: str, limit_s: float, kind: type[Exception]
) -> None:
    async def run() -> float:
        phases = Phases(memory, SMALL, limit_s)
        with pytest.raises(PhaseFailed) as failed:
            async with phases(phase):
                await asyncio.sleep(10_000.0)
        assert isinstance(failed.value.cause, kind)
        return phases.records[0].seconds

    assert run_virtual(run()) == pytest.approx(min(DEADLINES_S[phase], limit_s))


def test_a_phase_that_moves_the_models_bytes_has_time_by_their_number() -> None:
    assert {name: deadline_s(name, SMALL) for name in ORDER} == dict(DEADLINES_S)
    more = {name: deadline_s(name, LARGE) - DEADLINES_S[name] for name in ORDER}
    still = {"stop_admitting", "reroute", "drain", "register", "warm", "open_routes"}
    assert {name for name in ORDER if more[name] == 0} == still
    assert min(more[name] for name in set(ORDER) - still) >= LARGE.moving_s(1)
    does_again = {"stop_admitting": "receive_weights", "resume_engine": "release_engine"}
    for undone, again in does_again.items():
        assert undo_deadline_s(undone, LARGE) - undo_deadline_s(undone, SMALL) >= more[again]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_trainer_that_waits_for_digests_says_so_before_its_deadline_ends_it(
    size: Deadlines,
) -> None:
    patience_s = DIGESTS_TIMEOUT_S + STALL_TIMEOUT_S
    assert patience_s < size.pull_s < deadline_s("pull_weights", size)


@pytest.mark.parametrize("phase", ["release_engine", "resume_engine", "receive_weights", "warm"])
def test_an_engine_that_may_have_changed_and_did_not_say_so_is_not_undone(phase: str) -> None:
    async def run() -> Phases:
        phases = Phases(memory, SMALL, 1000.0)
        with pytest.raises(EngineTimeoutError, match=phase):
            async with phases(phase):
                await asyncio.sleep(10_000.0)
        return phases

    (record,) = run_virtual(run()).records
    assert (record.name, record.undone) == (phase, True)


def test_an_undoing_has_the_time_of_what_it_does_again() -> None:
    undone: list[str] = []

    async def loads_all_weights() -> None:
        await asyncio.sleep(DEADLINES_S["receive_weights"])
        undone.append("stop_admitting")

    async def run() -> None:
        phases = Phases(memory, SMALL, 100.0)
        async with phases("stop_admitting", undo=loads_all_weights):
            pass
        await phases.undo()

    run_virtual(run())
    assert undone == ["stop_admitting"]


def test_what_a_trainer_refuses_is_undone_and_a_dead_engine_is_not() -> None:
    async def run() -> None:
        phases = Phases(memory, SMALL, 100.0)
        with pytest.raises(PhaseFailed, match="no_memory"):
            async with phases("restore_trainer"):
                raise TrainerRefused("no_memory", "full")
        with pytest.raises(EngineUnreachableError):
            async with phases("drain"):
                raise EngineUnreachableError("gone")
        assert [record.name for record in phases.records] == ["restore_trainer"]

    run_virtual(run())


def test_who_does_not_take_its_undoing_is_given_up() -> None:
    async def stuck() -> None:
        await asyncio.sleep(10_000.0)

    async def run() -> None:
        phases = Phases(memory, SMALL, 100.0)
        async with phases("stop_admitting", undo=stuck):
            pass
        with pytest.raises(EngineError, match="stop_admitting was not undone"):
            await phases.undo()

    run_virtual(run())


def test_memory_is_counted_with_all_descendants_and_unknown_of_nobody() -> None:
    child = "b = bytearray(64 * 2**20); print(1, flush=True); input()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        found = resident_bytes(process.pid)
        process.stdin.write(b"\n")
        process.stdin.close()
        process.wait()
    assert found is not None
    assert 64 * MB < found < 200 * MB
    assert resident_bytes(process.pid) is None
    assert resident_bytes(None) is None
