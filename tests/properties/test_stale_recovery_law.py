"""Dropped groups and surplus executions while processes die: real scheduler loops and cell agents.

`training_audit` holds the laws of training and recovery over each run; here the bound is held too,
through restores that give claimed groups back, and with two schedulers that decide at once.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve
from gyre.core.staleness import group_staleness
from gyre.testkit.specs import job_spec
from gyre.testkit.training_audit import audit
from gyre.testkit.training_world import JOB, Strike, TrainingWorld
from gyre.testkit.virtual_time import run_virtual

DROPS: dict[str, Any] = {"phi": 1.0, "mu": 1, "max_staleness": 1, "on_stale": "drop"}
# Long enough for several steps to pass meanwhile.
SLOW_S = 40.0


class SlowStarts(TrainingWorld):
    """One execution in nine gets going late, by its name."""

    async def _execute(self, order: dict[str, str]) -> None:
        if crc32(order["execution"].encode()) % 9 == 0:
            await asyncio.sleep(SLOW_S)
        await super()._execute(order)


def live(seed: int, strikes: tuple[Strike, ...], **schedule: Any) -> TrainingWorld:
    fixed = {"executions_per_group": 2, "groups_per_step": 3, "num_steps": 6, "tau_s": 0.0}
    with tempfile.TemporaryDirectory() as home:
        world = SlowStarts(
            spec=job_spec(cells=3, capacity=8, heldout=False, **fixed, **schedule),
            home=Path(home),
            seed=seed,
            strikes=strikes,
            num_schedulers=2,
            micro_step_s=0.2,
            execution_s=1.0,
        )
        run_virtual(world.run())
    audit(world)
    return world


def folded(world: TrainingWorld) -> JobState:
    state = JobState(job=JOB)
    for fact in world.log:
        if fact.job == JOB:
            evolve(state, fact.sequence, fact.body)
    return state


def count(world: TrainingWorld, kind: type) -> int:
    return sum(isinstance(fact.body, kind) for fact in world.log)


def core_dies(after: str, nth: int) -> tuple[Strike, ...]:
    return (Strike(after=after, nth=nth, delay_s=0.05, victim="trainer", cell=0),)


@pytest.mark.parametrize(
    "strikes",
    [(), core_dies("group_dropped", 1), core_dies("batch_opened", 4)],
    ids=["undisturbed", "core lost at a drop", "core lost in a later step"],
)
def test_what_is_dropped_is_replaced_and_the_bound_holds_through_restores(
    strikes: tuple[Strike, ...],
) -> None:
    world = live(4, strikes, **DROPS)
    state = folded(world)
    assert state.num_groups_dropped == count(world, sched.GroupDropped) > 0
    assert count(world, sched.Restored) >= bool(strikes)
    trained = [group for group in state.groups.values() if not group.dropped]
    ages = [group_staleness(group) for group in trained]
    assert len(trained) == 6 * 3
    assert all(age is not None and age <= 1 for age in ages)
    assert not any(group.claimed_version for group in state.groups.values() if group.dropped)


def test_oversampled_groups_do_not_wait_for_the_slow_ones_and_survive_the_cores_loss() -> None:
    world = live(4, core_dies("group_claimed", 7), phi=1 / 3, mu=2, executions_started=4)
    state = folded(world)
    assert count(world, sched.SurplusCancelled) > 0
    assert state.training.dispatched == state.training.terminated == 6 * 3 * 4
