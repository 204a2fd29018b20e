"""A recorded call whose body the blob store has lost: its execution trains nothing, others do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import gyre.adapters.journal as journal_module
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import ManualClock
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.microsteps import decode_microstep
from gyre.contracts import subjects
from gyre.contracts.codec import BodyElsewhere, decode
from gyre.contracts.envelope import Body
from gyre.contracts.events.groups import (
    ExecutionQuarantined,
    GroupReady,
    MicroStepEmitted,
    StreamClosed,
)
from gyre.contracts.events.steps import MicroStepClaimed
from gyre.testkit.execution_world import until
from gyre.testkit.trajectory_world import World, small_spec
from gyre.trajectory.handlers import Trajectories

JOB = "job"
# Every call is larger than this, no seal is.
SMALL = 450


class Bed:
    """Groups of one job with the calls' bodies in a blob store. LOST: whose bodies are gone."""

    LOST = f"{JOB}-g0000-e1"

    def __init__(self, root: Path) -> None:
        self.log = MemoryEventLog()
        self.blobs = DirectoryBlobStore(root / "blobs")
        self.journal = Journal(self.log, ManualClock(), self.blobs)
        self.world = World(self.journal, JOB, small_spec(groups_per_step=2), seed=1)

    async def lose_bodies(self) -> None:
        """Of the calls of LOST."""
        subject, lost = subjects.calls(JOB, self.LOST), 0
        async for recorded in self.log.read(Stream.CALLS, subjects=(subject,)):
            try:
                decode(recorded.data)
            except BodyElsewhere as elsewhere:
                self.blobs.path(elsewhere.reference.digest).unlink()
                lost += 1
        assert lost

    async def finish(self) -> None:
        await self.world.submit()
        await self.world.dispatch(range(2))
        await self.world.finish_group(0, (1.0, 0.0, 0.0, 1.0))
        await self.world.finish_group(1, (0.0, 1.0, 1.0, 1.0))

    async def open(self) -> None:
        await self.world.open_batch("l1-s0000")
        await self.world.join("l1-s0000", 0)

    async def facts(self, kind: type[Body]) -> list[Body]:
        found = [fact.body async for fact in self.journal.read(Stream.FACTS)]
        return [body for body in found if isinstance(body, kind)]

    async def closed(self) -> bool:
        return bool(await self.facts(StreamClosed))

    async def until_closed(self) -> None:
        """Claims each micro-step as it comes, as a cell does."""
        claimed = 0

        async def done() -> bool:
            nonlocal claimed
            for _ in (await self.facts(MicroStepEmitted))[claimed:]:
                await self.world.claim("l1-s0000", claimed)
                claimed += 1
            return await self.closed()

        await until(done, 20)

    async def trained(self) -> dict[str, int]:
        """Targets by execution of every micro-step."""
        found: dict[str, int] = {}
        for body in await self.facts(MicroStepEmitted):
            assert isinstance(body, MicroStepEmitted)
            for one in decode_microstep(self.blobs.get(body.digest)).executions:
                found[one.execution] = one.num_targets
        return found


class Service:
    """The trajectory service, while the block lasts; its errors are the test's."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed

    async def __aenter__(self) -> None:
        ready = asyncio.Event()
        service = Trajectories(self._bed.journal, self._bed.blobs)
        self._task = asyncio.create_task(service.run(ready.set))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({self._task, waiting}, return_when="FIRST_COMPLETED", timeout=10)
        assert ready.is_set()

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        [result] = await asyncio.gather(self._task, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError), result


@pytest.mark.parametrize("is_folded", [False, True])
async def test_the_trajectory_service_trains_the_others(
    is_folded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_EVENT_BYTES", SMALL)
    bed = Bed(tmp_path)
    await bed.finish()
    if is_folded:  # by an earlier life
        async with Service(bed):
            await until(lambda: _ready(bed), 20)
    await bed.lose_bodies()
    await bed.open()
    async with Service(bed):
        await bed.until_closed()
    whole = {f"{JOB}-g000{group}-e{place}" for group in (0, 1) for place in range(4)}
    trained = {name for name, targets in (await bed.trained()).items() if targets}
    assert trained == whole - {bed.LOST}


async def test_a_tree_that_is_in_memory_is_trained_though_its_bodies_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_EVENT_BYTES", SMALL)
    bed = Bed(tmp_path)
    async with Service(bed):
        await bed.finish()
        await until(lambda: _ready(bed), 20)
        await bed.lose_bodies()
        await bed.open()
        await bed.until_closed()
    assert (await bed.trained())[bed.LOST] > 0


async def test_what_was_emitted_counts_as_it_was_chosen_though_its_bodies_are_lost_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_EVENT_BYTES", SMALL)
    bed = Bed(tmp_path)
    bed.world.spec = small_spec(
        groups_per_step=2, admission={"row_tokens": 128, "tokens_per_micro_step": 128}
    )
    await bed.finish()
    await bed.open()
    async with Service(bed):
        await until(lambda: _emitted(bed), 20)
    assert not await bed.closed()
    await bed.lose_bodies()
    async with Service(bed):
        await bed.until_closed()
    [closed] = await bed.facts(StreamClosed)
    assert isinstance(closed, StreamClosed)
    trained = await bed.trained()
    assert trained[bed.LOST] > 0
    assert closed.num_admitted_targets == closed.num_targets == sum(trained.values())
    assert await bed.facts(ExecutionQuarantined) == []


async def _emitted(bed: Bed) -> bool:
    """Whether the execution is out whose bodies will be lost; claims, so that it comes."""
    for body in await bed.facts(MicroStepEmitted):
        assert isinstance(body, MicroStepEmitted)
        if bed.LOST in body.executions:
            return True
    emitted, claimed = await bed.facts(MicroStepEmitted), await bed.facts(MicroStepClaimed)
    for index in range(len(claimed), len(emitted)):
        await bed.world.claim("l1-s0000", index)
    return False


async def _ready(bed: Bed) -> bool:
    return len(await bed.facts(GroupReady)) == 2
