"""An execution with a record that is lost, its seal perhaps: the evaluator excludes it and scores
every other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

import gyre.adapters.journal as journal_module
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.contracts.codec import BodyElsewhere, NewerEvent, decode, encode, make_envelope
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallsSealed
from gyre.contracts.events.scores import Evaluated, ExecutionExcluded
from gyre.contracts.job import EvaluationSection
from gyre.core.evaluation import CallSummary, Pending, decide
from gyre.evaluator.bootstrap import build
from gyre.evaluator.service import Evaluator
from gyre.evaluator.settings import EvaluatorSettings
from gyre.testkit.execution_world import ExecutionWorld, until
from gyre.testkit.facts import terminated

# Every call is larger than this, no seal is.
SMALL = 450


async def two_executions(world: ExecutionWorld) -> None:
    """Both have called and ended; nothing is scored yet."""
    world.add_task("train", "sum", 'echo 1 > "$LOGS_DIR/verifier/reward.txt"')
    await world.submit()
    for execution in ("e0", "e1"):
        await world.run(execution, "sum")
        await world.call(execution, f"n-{execution}")


def evaluator_of(world: ExecutionWorld) -> Evaluator:
    settings = EvaluatorSettings(
        nats_url="nats://nowhere",
        database_url="postgresql://nowhere",
        home=world.home,
        key_secret=SecretStr("s"),
    )
    return build(settings, world.log, SystemClock())


async def scores_of(
    world: ExecutionWorld, meanwhile: Callable[[], Awaitable[None]] | None = None
) -> tuple[Body, Body]:
    """What a running evaluator says of the two. meanwhile: done once it has caught up."""
    ready = asyncio.Event()
    running = asyncio.create_task(evaluator_of(world).run(ready.set))
    try:
        await asyncio.wait_for(ready.wait(), 20)
        if meanwhile is not None:
            await meanwhile()

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
    assert f"a record of its calls is lost: GYRE_CALLS event {sequence} on {subject}" in lost.reason
    assert isinstance(sound, Evaluated)


@pytest.mark.parametrize("is_caught_up", [False, True])
async def test_the_evaluator_excludes_one_whose_seal_is_no_event(
    is_caught_up: bool, tmp_path: Path
) -> None:
    world = ExecutionWorld(tmp_path, MemoryEventLog())
    await two_executions(world)

    async def end() -> None:
        await world.end("e1", "completed")
        await world.end("e0", "completed", seal=False)
        await world.log.append("calls.j1.exec.e0", b"{}", event_id="garbage", expected=None)

    if is_caught_up:
        await end()
        lost, sound = await scores_of(world)
    else:
        lost, sound = await scores_of(world, meanwhile=end)
    assert isinstance(lost, ExecutionExcluded)
    assert lost.reason.startswith("a record of its calls is lost: GYRE_CALLS event ")
    assert isinstance(sound, Evaluated)


async def test_a_damaged_record_of_a_running_execution_waits_for_its_end(tmp_path: Path) -> None:
    world = ExecutionWorld(tmp_path, MemoryEventLog())
    await two_executions(world)
    await world.end("e1", "completed")

    async def damage() -> None:
        await world.log.append("calls.j1.exec.e0", b"{}", event_id="garbage", expected=None)
        await until(lambda: _scored(world, "e1"), 20)
        assert await world.scores("e0") == []
        await world.end("e0", "completed", seal=False)

    lost, _ = await scores_of(world, meanwhile=damage)
    assert isinstance(lost, ExecutionExcluded)


async def _scored(world: ExecutionWorld, execution: str) -> bool:
    return bool(await world.scores(execution))


@pytest.mark.parametrize("subject", ["facts.j1.exec.e0.run", "facts.j1.exec.e0.score"])
@pytest.mark.parametrize("is_caught_up", [False, True])
async def test_an_execution_that_has_lost_a_fact_is_not_scored_and_every_other_is(
    is_caught_up: bool, subject: str, tmp_path: Path
) -> None:
    world = ExecutionWorld(tmp_path, MemoryEventLog())
    await two_executions(world)

    async def end() -> None:
        await world.log.append(subject, b"{}", event_id="garbage", expected=None)
        for execution in ("e0", "e1"):
            await world.end(execution, "completed")

    if is_caught_up:
        await end()
    ready = asyncio.Event()
    running = asyncio.create_task(evaluator_of(world).run(ready.set))
    await ready.wait()
    if not is_caught_up:
        await end()
    await until(lambda: _scored(world, "e1"), 20)
    running.cancel()
    [result] = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError), result
    assert not any(isinstance(body, Evaluated) for body in await world.scores("e0"))


@pytest.mark.parametrize("is_caught_up", [False, True])
async def test_a_seal_of_a_later_release_stops_the_evaluator(
    is_caught_up: bool, tmp_path: Path
) -> None:
    world = ExecutionWorld(tmp_path, MemoryEventLog())
    await two_executions(world)
    await world.end("e0", "completed", seal=False)
    seal = make_envelope(
        CallsSealed(execution="e0", num_calls=1, last_seq=1),
        identity="later",
        job="j1",
        aggregate="calls.j1.exec.e0",
        time=0.0,
        causation="",
    )
    data = encode(seal).replace(b'"version":1', b'"version":99', 1)

    async def say() -> None:
        await world.log.append("calls.j1.exec.e0", data, event_id="later", expected=None)

    if is_caught_up:
        await say()
    ready = asyncio.Event()
    running = asyncio.create_task(evaluator_of(world).run(ready.set))
    if not is_caught_up:
        await ready.wait()
        await say()
    [result] = await asyncio.wait_for(asyncio.gather(running, return_exceptions=True), 20)
    found = result if is_caught_up else result.exceptions[0]  # type: ignore[union-attr]
    assert isinstance(found, NewerEvent)


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
        execution="e", reason="a record of its calls is lost: gone"
    )
