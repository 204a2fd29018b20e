"""A cell's ranks answer, refuse and end together; one that hangs ends them all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import pytest

from gyre.cell_agent.group import TrainerGroup
from gyre.cell_agent.pace import Pace
from gyre.cell_agent.trainer.process.client import TrainerGone, TrainerRefused, TrainerTimeout
from gyre.testkit.light_rank import light_rank

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

CALL_S = 20.0


@contextlib.asynccontextmanager
async def running(
    size: int = 2, *, silence_s: float = 30.0, pace: Pace | None = None
) -> AsyncIterator[TrainerGroup]:
    group = TrainerGroup(
        [light_rank(rank, silence_s=silence_s) for rank in range(size)], pace, refusal_s=0.5
    )
    try:
        await group.start(CALL_S)
        yield group
    finally:
        group.kill()
        await group.wait()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_the_answer_is_rank_0s_once_all_have_answered() -> None:
    async with running(3) as group:
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await group.call("work", CALL_S, seconds={"2": 0.5})
        assert loop.time() - began >= 0.5
        assert (answer["rank"], answer["pid"]) == (0, group.pids[0])
        assert len(set(group.pids)) == 3


async def test_every_rank_gets_the_same_commands_in_the_same_order() -> None:
    async with running(3) as group:
        names = [f"c{number}" for number in range(20)]
        answers = await asyncio.gather(*(group.call(name, CALL_S) for name in names))
        assert answers[-1]["log"] == ["status", *names]
        # Of the other ranks nothing is told but that they keep step: one that did not would refuse.
        for rank in group._ranks:
            told = await rank.call("told", CALL_S)
            assert told["log"] == ["status", *names, "told"]


async def test_what_all_refuse_alike_is_refused_and_all_live() -> None:
    async with running() as group:
        refuse = {"0": "peer_lost", "1": "peer_lost"}
        with pytest.raises(TrainerRefused, match="at rank 0") as refused:
            await group.call("work", CALL_S, refuse=refuse, seconds={"1": 0.2})
        assert refused.value.kind == "peer_lost"
        assert (await group.call("work", CALL_S))["rank"] == 0


@pytest.mark.parametrize(
    ("refuse", "seconds"),
    [
        ({"1": "wrong_state"}, {}),
        ({"1": "wrong_state"}, {"0": 60.0}),
        ({"0": "peer_lost", "1": "wrong_state"}, {}),
    ],
    ids=["the other answered", "the other waits", "the other refused otherwise"],
)
async def test_ranks_that_are_out_of_step_all_end(
    refuse: dict[str, str], seconds: dict[str, float]
) -> None:
    async with running() as group:
        with pytest.raises(TrainerGone, match=r"not all refused, rank . *: "):
            await group.call("work", CALL_S, refuse=refuse, seconds=seconds)
        await group.wait()
        assert all(gone(pid) for pid in group.pids)


async def test_a_rank_that_dies_takes_the_others_with_it_and_is_named() -> None:
    async with running(3) as group:
        with pytest.raises(TrainerGone, match="rank 1: "):
            await group.call("work", CALL_S, die=[1], seconds={"0": 60.0, "2": 60.0})
        assert await group.wait() == 7
        assert group.how_it_ended == "rank 1: ended with exit status 7"
        assert all(gone(pid) for pid in group.pids)


async def test_a_rank_killed_while_none_has_work_ends_the_group() -> None:
    async with running() as group:
        os.kill(group.pids[1], signal.SIGKILL)
        assert await group.wait() == -9
        assert group.how_it_ended == "rank 1: ended with signal 9"
        assert gone(group.pids[0])


async def test_a_stopped_rank_is_silent_and_ends_the_group_busy_or_idle() -> None:
    async with running(silence_s=1.5) as group:
        # Work is no silence: a rank beats from a thread of its own.
        await group.call("work", CALL_S, seconds={"0": 2.5, "1": 2.5})
        os.kill(group.pids[1], signal.SIGSTOP)
        with pytest.raises(TrainerGone, match=r"rank 1: .*said nothing for 1.5 s"):
            await group.call("finish_batch", 60.0, seconds={"0": 60.0})
        await group.wait()
        assert group.how_it_ended == "rank 1: said nothing for 1.5 s and was killed"


async def test_a_micro_step_that_takes_far_longer_than_others_has_taken_ends_the_group() -> None:
    pace = Pace(floor_s=0.4, factor=3.0)
    async with running(pace=pace) as group:
        # The first has nothing to be compared with; what waits for other cells never is.
        await group.call("flush_steps", CALL_S, seconds={"0": 0.3})
        await group.call("finish_batch", CALL_S, seconds={"0": 1.5})
        with pytest.raises(TrainerTimeout, match="rank 1: flush_steps: no answer within"):
            await group.call("flush_steps", CALL_S, seconds={"1": 60.0})
        await group.wait()
    # The same one has more time in the next life, should it have been slow and not hung: more than
    # its caller would give one of which nothing was known.
    async with running(pace=pace) as group:
        await group.call("flush_steps", 0.5, seconds={"1": 1.5})


async def test_a_question_to_a_busy_rank_is_given_up_and_ends_nobody() -> None:
    async with running() as group:
        first = group._ranks[0]
        working = asyncio.create_task(first.call("work", CALL_S, seconds={"0": 1.0}))
        await asyncio.sleep(0)  # it is sent: a task writes before it waits
        with pytest.raises(TrainerTimeout, match="memory"):
            await group.ask_first("memory", 0.2)
        assert (await working)["rank"] == 0
        assert (await group.call("work", CALL_S))["log"][-2:] == ["memory", "work"]
        assert not any(gone(pid) for pid in group.pids)
        assert group.pids_here == group.pids


async def test_what_ranks_cannot_start_for_is_the_groups_refusal() -> None:
    group = TrainerGroup([light_rank(rank, can_start=False) for rank in range(2)])
    with pytest.raises(TrainerRefused, match=r"^bad_model: rank 0 has no model$"):
        await group.start(CALL_S)
    assert await group.wait() == 2
    assert all(gone(pid) for pid in group.pids)


async def test_one_rank_that_cannot_start_ends_the_others_and_is_named() -> None:
    group = TrainerGroup([light_rank(0), light_rank(1, can_start=False)], refusal_s=0.5)
    with pytest.raises(TrainerGone, match="rank 1: bad_model: rank 1 has no model"):
        await group.start(CALL_S)
    await group.wait()
    assert all(gone(pid) for pid in group.pids)


async def test_a_rank_that_does_not_start_is_a_group_that_does_not() -> None:
    group = TrainerGroup([light_rank(0), light_rank(-1)])
    with pytest.raises(TrainerGone, match="rank 1: "):
        await group.start(CALL_S)
    await group.wait()
    assert all(gone(pid) for pid in group.pids)
