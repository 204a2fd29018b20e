"""What the trajectory service keeps nothing of: held-out, surplus and dropped executions."""

from __future__ import annotations

import asyncio

from gyre.adapters.eventlog import Stream
from gyre.contracts import subjects
from gyre.contracts.events.groups import (
    GroupClaimed,
    GroupReady,
    StreamClosed,
)
from gyre.contracts.events.scheduling import (
    GroupDropped,
    JobFinished,
    SurplusCancelled,
)
from gyre.testkit.trajectory_bed import JOB, Bed, trained
from gyre.testkit.trajectory_world import calls_of, small_spec
from gyre.trajectory.inbox import Incoming


async def test_held_out_executions_get_no_group_and_leave_no_tree() -> None:
    bed = Bed()
    await bed.world.submit()
    await bed.world.dispatch(range(2), kind="heldout")
    service = bed.life()
    running = asyncio.create_task(service.run(lambda: None))
    for number in range(2):
        await bed.world.finish_group(number, (1.0, 0.0, 1.0, 0.0))
    await asyncio.sleep(0.05)
    running.cancel()
    assert await bed.facts(GroupReady) == []
    assert len(service.trees) == 0


async def test_a_finished_job_is_forgotten() -> None:
    bed = Bed()
    await bed.world.submit()
    await bed.world.dispatch(range(3))
    await bed.world.finish_group(0, (1.0, 0.0, 1.0, 0.0))
    finished = JobFinished(based_on=0, now=0.0, status="cancelled", reason="test")
    await bed.world.say(subjects.sched(JOB), finished)
    await bed.world.open_batch("l1-s0000")
    service = await bed.settle()
    assert await bed.facts(GroupReady) == []
    assert len(service.trees) == 0


async def an_oversampled_group(bed: Bed) -> tuple[str, ...]:
    """Six executions for N = 4: four end, one is left in the queue, one runs."""
    bed.world.spec = small_spec(groups_per_step=1, executions_started=6)
    await bed.world.submit()
    await bed.world.dispatch(range(2))
    names = bed.world.plan(0).executions
    for place, name in enumerate(names[:4]):
        await bed.world.terminate(name)
        await bed.world.finish(name, float(place % 2))
    return names


async def test_a_group_is_ready_without_its_surplus_which_is_trained_by_nobody() -> None:
    bed = Bed()
    names = await an_oversampled_group(bed)
    await bed.settle()
    (ready,) = await bed.facts(GroupReady)
    assert [one.disposition for one in ready.outcomes] == ["valid"] * 4 + ["surplus"] * 2
    assert [one.advantage for one in ready.outcomes[4:]] == [0.0, 0.0]
    await bed.world.open_batch("l1-s0000")
    await bed.settle()
    steps = await bed.micro_steps()
    assert set(trained(steps)) <= set(names[:4])
    assert {step.normalizer for step in steps} == {1 * 4}


async def test_the_calls_of_a_running_surplus_execution_are_kept_by_nobody() -> None:
    """It calls until the runner has ended it, behind the group's `group_ready`."""
    bed = Bed()
    names = await an_oversampled_group(bed)
    service = bed.life()
    await service.catch_up()
    heads = {stream: await bed.journal.head(stream) for stream in Stream}
    assert await service.pay_one() is not None
    cancelled = SurplusCancelled(
        based_on=0, now=0.0, group=f"{JOB}-g0000", queued=names[4:5], running=names[5:]
    )
    await bed.world.say(subjects.sched(JOB), cancelled)
    for event in calls_of(names[5], 1):
        await bed.world.say(subjects.calls(JOB, names[5]), event)
    await bed.world.terminate(names[5], "surplus")
    for stream in (Stream.FACTS, Stream.CALLS):
        async for fact in bed.journal.read(stream, after=heads[stream]):
            service.fold(Incoming(stream=stream, fact=fact))
    assert len(service.trees) == 4
    assert await service.pay_one() is None


async def test_a_dropped_group_is_never_ready_whatever_comes_of_its_executions() -> None:
    bed = Bed()
    bed.world.spec = small_spec(groups_per_step=1, max_staleness=0, on_stale="drop")
    await bed.world.submit()
    await bed.world.dispatch(range(2))
    first, *others = bed.world.plan(0).executions
    await bed.world.finish(first, 1.0)
    dropped = GroupDropped(
        based_on=0,
        now=0.0,
        group=f"{JOB}-g0000",
        staleness=1,
        queued=tuple(others[:2]),
        running=tuple(others[2:]),
    )
    await bed.world.say(subjects.sched(JOB), dropped)
    for name in others[2:]:
        await bed.world.terminate(name, "dropped")
        await bed.world.finish(name, None)
    await bed.world.finish_group(1, (1.0, 0.0, 0.0, 0.0))
    await bed.world.open_batch("l1-s0000", version=0)
    service = await bed.settle()
    assert [body.group for body in await bed.facts(GroupReady)] == [f"{JOB}-g0001"]
    assert [body.group for body in await bed.facts(GroupClaimed)] == [f"{JOB}-g0001"]
    assert len(await bed.facts(StreamClosed)) == 1
    assert len(service.trees) == 0
