"""A recorded call whose body the blob store has lost: its execution is out, every other goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

import gyre.adapters.journal as journal_module
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import ManualClock, SystemClock
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.microsteps import decode_microstep
from gyre.contracts import subjects
from gyre.contracts.codec import BodyElsewhere, decode
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallsSealed
from gyre.contracts.events.groups import GroupReady, MicroStepEmitted, StreamClosed
from gyre.contracts.events.scores import Evaluated, ExecutionExcluded
from gyre.contracts.job import EvaluationSection
from gyre.core.evaluation import CallSummary, Pending, decide
from gyre.evaluator.bootstrap import build
from gyre.evaluator.settings import EvaluatorSettings
from gyre.testkit.execution_world import ExecutionWorld, until
from gyre.testkit.facts import terminated
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


async def _ready(bed: Bed) -> bool:
    return len(await bed.facts(GroupReady)) == 2


async def two_executions(world: ExecutionWorld) -> None:
    """Both have called and ended; nothing is scored yet."""
    world.add_task("train", "sum", 'echo 1 > "$LOGS_DIR/verifier/reward.txt"')
    await world.submit()
    for execution in ("e0", "e1"):
        await world.run(execution, "sum")
        await world.call(execution, f"n-{execution}")


async def scores_of(world: ExecutionWorld) -> tuple[Body, Body]:
    """What a running evaluator says of the two."""
    settings = EvaluatorSettings(
        nats_url="nats://nowhere",
        database_url="postgresql://nowhere",
        home=world.home,
        key_secret=SecretStr("s"),
    )
    running = asyncio.create_task(build(settings, world.log, SystemClock()).run(lambda: None))
    try:

        async def scored() -> bool:
            return all([await world.scores(execution) for execution in ("e0", "e1")])

        await until(scored, 20)
    finally:
        running.cancel()
        [result] = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError), result
    [lost], [sound] = await world.scores("e0"), await world.scores("e1")
    return lost, sound


async def test_the_evaluator_excludes_it_and_scores_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_EVENT_BYTES", SMALL)
    world = ExecutionWorld(tmp_path, MemoryEventLog())
    await two_executions(world)
    for execution in ("e0", "e1"):
        await world.end(execution, "completed")
    store = DirectoryBlobStore(world.home / "blobs")
    [first, *_] = [r async for r in world.log.read(Stream.CALLS, subjects=("calls.j1.exec.e0",))]
    with pytest.raises(BodyElsewhere) as elsewhere:
        decode(first.data)
    digest = elsewhere.value.reference.digest
    store.path(digest).unlink()
    lost, sound = await scores_of(world)
    assert lost == ExecutionExcluded(
        execution="e0", reason=f"a record of its calls is lost: blob {digest}"
    )
    assert isinstance(sound, Evaluated)
    assert sound.branch == "n-e1"


async def test_the_evaluator_excludes_one_whose_record_is_no_event(tmp_path: Path) -> None:
    world = ExecutionWorld(tmp_path, MemoryEventLog())
    await two_executions(world)
    subject = "calls.j1.exec.e0"
    await world.end("e1", "completed")
    await world.end("e0", "completed", seal=False)
    sequence = await world.log.append(subject, b"{}", event_id="garbage", expected=None)
    await world.say(subject, CallsSealed(execution="e0", num_calls=1, last_seq=sequence))
    lost, sound = await scores_of(world)
    assert isinstance(lost, ExecutionExcluded)
    assert f"a record of its calls is lost: event {sequence} on {subject}" in lost.reason
    assert isinstance(sound, Evaluated)


def test_what_the_scheduler_ended_is_out_for_that_reason() -> None:
    seal = CallsSealed(execution="e", num_calls=1, last_seq=1)
    ended = terminated("e", "surplus", attempt=1)
    state = Pending(job="j", execution="e", attempts={1: "w"}, terminated=ended, sealed=seal)
    lost = CallSummary(lost="gone")
    assert decide(state, lost, EvaluationSection(), now=0.0) == ExecutionExcluded(
        execution="e", reason="surplus"
    )
    done = replace(state, terminated=terminated("e", "completed", attempt=1))
    assert decide(done, lost, EvaluationSection(), now=0.0) == ExecutionExcluded(
        execution="e", reason="gone"
    )
