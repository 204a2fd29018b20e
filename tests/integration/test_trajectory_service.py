"""The trajectory service on an in-memory log: dispatch to closed stream, and every restart."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

import gyre.adapters.journal as journal_module
from gyre.adapters.eventlog import Stream
from gyre.contracts import subjects
from gyre.contracts.events.calls import CallsSealed
from gyre.contracts.events.groups import (
    ExecutionQuarantined,
    GroupClaimed,
    GroupReady,
    MicroStepEmitted,
    StreamClosed,
)
from gyre.contracts.events.scheduling import (
    Restored,
)
from gyre.core.tree import fold
from gyre.testkit.execution_world import until
from gyre.testkit.trajectory_bed import JOB, Bed, a_batch_is_ready, trained
from gyre.testkit.trajectory_world import Caller, calls_of, small_spec


async def test_a_batch_from_dispatch_to_the_closed_stream() -> None:
    bed = Bed()
    await a_batch_is_ready(bed)
    await bed.settle()
    ready = {body.group: body for body in await bed.facts(GroupReady)}
    assert sorted(ready) == [f"job-g{number:04}" for number in range(4)]
    assert [body.zero_weight for _, body in sorted(ready.items())] == [False, True, False, False]
    assert [one.disposition for one in ready["job-g0000"].outcomes] == [
        "valid",
        "excluded",
        "valid",
        "valid",
    ]
    claimed = [body.group for body in await bed.facts(GroupClaimed)]
    assert claimed == ["job-g0000", "job-g0001", "job-g0002"]
    (closed,) = await bed.facts(StreamClosed)
    steps = await bed.micro_steps()
    assert closed.groups == tuple(claimed)
    assert closed.num_micro_steps == len(steps) > 0
    assert closed.num_targets == sum(step.num_targets for step in steps)
    assert {step.normalizer for step in steps} == {3 * 4}
    assert [step.index for step in steps] == list(range(len(steps)))


async def test_the_log_says_what_micro_steps_carry_and_what_flat_rows_would() -> None:
    """Four executions, each with four calls of 23 tokens below a call of 23: four paths of 46 or
    one tree of 115. Each has 5 calls of 8 sampled tokens. Rows of 92 cut that tree into two."""
    bed = Bed()
    bed.world.spec = small_spec(
        groups_per_step=1, admission={"row_tokens": 92, "tokens_per_micro_step": 92}
    )
    await bed.world.submit()
    await bed.world.dispatch(range(1))
    for place, execution in enumerate(bed.world.plan(0).executions):
        caller = Caller(execution, random.Random(place))
        first = caller.call(None)
        for _ in range(4):
            caller.call(first)
        seal = CallsSealed(execution=execution, num_calls=5, last_seq=0)
        await bed.world.finish(execution, float(place % 2), calls=[*caller.events, seal])
    await bed.world.open_batch("l1-s0000")
    await bed.settle()
    emitted = await bed.facts(MicroStepEmitted)
    assert sum(body.num_paths for body in emitted) == 4 * 4
    assert sum(body.num_path_tokens for body in emitted) == 4 * (4 * 46)
    assert sum(body.num_tokens for body in emitted) == 4 * (115 + 23)
    assert sum(body.num_repeated_tokens for body in emitted) == 4 * 23
    steps = await bed.micro_steps()
    assert [body.num_tokens for body in emitted] == [step.num_tokens for step in steps]
    assert {step.window_rows for step in steps} == {1}
    (closed,) = await bed.facts(StreamClosed)
    assert closed.num_admitted_targets == closed.num_targets == 4 * 5 * 8


async def test_calls_too_large_for_the_log_are_trained_as_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = Bed(seed=3), Bed(seed=3)
    await a_batch_is_ready(small)
    await small.settle()
    monkeypatch.setattr(journal_module, "MAX_EVENT_BYTES", 600)
    await a_batch_is_ready(large)
    await large.settle()  # lives again after each event, so that it reads the calls again too
    calls = [recorded.data async for recorded in large.log.read(Stream.CALLS)]
    assert sum(b',"blob":' in data for data in calls) > len(calls) / 3
    assert await large.facts(GroupReady) == await small.facts(GroupReady)
    assert await large.micro_steps() == await small.micro_steps() != []


async def test_each_target_is_trained_once_with_its_own_logprob() -> None:
    bed = Bed(seed=5)
    await a_batch_is_ready(bed)
    await bed.settle()
    logprobs: dict[str, list[float]] = {}
    homes: Counter[str] = Counter()
    for step in await bed.micro_steps():
        homes.update(info.execution for info in step.executions)
        for block in step.blocks:
            execution = step.executions[block.execution].execution
            logprobs.setdefault(execution, []).extend(block.behaviour_logprobs)
    valid = [f"job-g0000-e{n}" for n in (0, 2, 3)] + [f"job-g0002-e{n}" for n in range(4)]
    assert sorted(homes) == valid
    assert set(homes.values()) == {1}
    for execution in valid:
        tree = fold(calls_of(execution, 5))
        sampled = [
            value
            for node in tree.targets(1)
            if node.sampled and node.sampled.request_role != "other"
            for value in node.sampled.logprobs
        ]
        assert sorted(logprobs[execution]) == sorted(sampled)


async def test_a_restart_after_every_append_changes_nothing() -> None:
    restarted, steady = Bed(seed=3), Bed(seed=3)
    for bed in (restarted, steady):
        await a_batch_is_ready(bed)
    await restarted.settle()  # a new life for each event
    service = steady.life()
    running = asyncio.create_task(service.run(lambda: None))
    async with asyncio.timeout(30):
        while not await steady.facts(StreamClosed):
            await steady.claim_all()
            await asyncio.sleep(0)
    running.cancel()
    assert await restarted.micro_steps() == await steady.micro_steps()
    assert await restarted.facts(StreamClosed) == await steady.facts(StreamClosed)
    assert len(service.trees) == 4  # the fourth group waits for its batch


async def test_a_batch_without_any_target_closes_with_no_micro_step() -> None:
    bed = Bed()
    await bed.world.submit()
    await bed.world.dispatch(range(3))
    for number in range(2):
        await bed.world.finish_group(number, (0.0, 0.0, 0.0, 0.0))
    for execution in bed.world.plan(2).executions:
        await bed.world.placeholder(execution)
    await bed.world.open_batch("l1-s0000")
    await bed.settle()
    (closed,) = await bed.facts(StreamClosed)
    assert (closed.num_micro_steps, closed.num_targets, len(closed.groups)) == (0, 0, 3)


async def test_groups_come_back_after_a_restore_and_are_trained_again() -> None:
    bed = Bed(seed=2)
    await a_batch_is_ready(bed)
    await bed.settle()
    before = await bed.micro_steps()
    claimed = tuple(body.group for body in await bed.facts(GroupClaimed))
    restored = Restored(
        based_on=0, now=0.0, lineage=2, version=0, checkpoint="c", returned_groups=claimed
    )
    await bed.world.say(subjects.sched(JOB), restored)
    await bed.world.open_batch("l2-s0000", lineage=2)
    await bed.settle()
    again = (await bed.micro_steps())[len(before) :]
    assert trained(again) == trained(before)
    assert {step.batch for step in again} == {"l2-s0000"}
    assert len(await bed.facts(StreamClosed)) == 2


async def test_damaged_records_quarantine_their_execution_alone() -> None:
    bed = Bed()
    await bed.world.submit()
    await bed.world.dispatch(range(3))
    victim = bed.world.plan(0).executions[0]
    orphan = calls_of("stranger", 0)[0].model_copy(
        update={"execution": victim, "parent": "unknown", "call": "orphan"}
    )
    await bed.world.say(subjects.calls(JOB, victim), orphan)
    for number in range(3):
        await bed.world.finish_group(number, (1.0, 0.0, 1.0, 0.0))
    await bed.world.open_batch("l1-s0000")
    await bed.settle()
    trained_executions = {
        info.execution for step in await bed.micro_steps() for info in step.executions
    }
    everybody = {e for number in range(3) for e in bed.world.plan(number).executions}
    assert trained_executions == everybody - {victim}
    assert len(await bed.facts(StreamClosed)) == 1


@pytest.mark.parametrize("is_event", [True, False])
async def test_damage_is_said_as_soon_as_it_is_found(is_event: bool) -> None:
    bed = Bed()
    await bed.world.submit()
    await bed.world.dispatch(range(1))
    victim = bed.world.plan(0).executions[0]
    subject = subjects.calls(JOB, victim)
    ready = asyncio.Event()
    running = asyncio.create_task(bed.life().run(ready.set))
    await ready.wait()
    if is_event:
        await bed.world.say(subject, calls_of("stranger", 0)[0])
    else:
        await bed.log.append(subject, b"{}", event_id="garbage", expected=None)

    async def said() -> bool:
        return bool(await bed.facts(ExecutionQuarantined))

    await until(said, 10)
    running.cancel()
    [one] = await bed.facts(ExecutionQuarantined)
    assert one.execution == victim


@pytest.mark.parametrize("is_event", [True, False])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_comes_behind_the_seal_of_a_ready_group_changes_nothing(
    is_restarted: bool, is_event: bool
) -> None:
    bed = Bed()
    bed.world.spec = small_spec(groups_per_step=1)
    await bed.world.submit()
    await bed.world.dispatch(range(1))
    await bed.world.finish_group(0, (1.0, 0.0, 1.0, 0.0))
    running = asyncio.create_task(bed.life().run(lambda: None))

    async def is_ready() -> bool:
        return bool(await bed.facts(GroupReady))

    await until(is_ready, 10)
    victim = bed.world.plan(0).executions[0]
    if is_event:
        await bed.world.say(subjects.calls(JOB, victim), calls_of(victim, 0)[0])
    else:
        subject = subjects.calls(JOB, victim)
        await bed.log.append(subject, b"{}", event_id="garbage", expected=None)
    if is_restarted:
        running.cancel()
        running = asyncio.create_task(bed.life().run(lambda: None))
    await bed.world.open_batch("l1-s0000")

    async def closed() -> bool:
        await bed.claim_all()
        return bool(await bed.facts(StreamClosed))

    await until(closed, 10)
    running.cancel()
    assert await bed.facts(ExecutionQuarantined) == []
    assert victim in trained(await bed.micro_steps())
