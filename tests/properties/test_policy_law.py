"""Policies: the baselines run on the same decider, and each keeps to what its name says."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState
from gyre.core.scheduling.ledger import rollout_capacity
from gyre.testkit.scheduling_world import World
from gyre.testkit.specs import job_spec

SCHEDULES: dict[str, dict[str, Any]] = {
    "gyre": {},
    "gyre, whole bursts": {"streaming": False},
    "gyre, pool": {"cells": 1, "pool_count": 1, "pool_capacity": 10},
    "async": {"policy": "async", "training_cells": 1},
    "async, two train, whole bursts": {
        "policy": "async",
        "training_cells": 2,
        "streaming": False,
    },
    "colocate, global": {"policy": "colocate", "phi": 0, "mu": 3},
    "colocate, coarse": {"policy": "colocate", "pool_count": 2, "pool_capacity": 9},
    "colocate, coarse, whole bursts": {
        "policy": "colocate",
        "pool_count": 1,
        "pool_capacity": 16,
        "streaming": False,
    },
}
each_schedule = pytest.mark.parametrize("name", list(SCHEDULES))


def live(schedule: dict[str, Any], watch: Any = None, seed: int = 3) -> World:
    source = random.Random(seed)
    lengths = [source.lognormvariate(1.0, 0.7) for _ in range(4000)]
    world = World(job_spec(**schedule), lengths.__getitem__)
    if watch is not None:
        world.on_fact = watch
    world.run()
    return world


@each_schedule
def test_every_policy_ends_the_job_with_every_group_used_once(name: str) -> None:
    world = live(SCHEDULES[name])
    state, schedule = world.state, world.spec.schedule
    assert state.status == "succeeded"
    assert state.num_steps_done == schedule.num_steps
    claimed = [group.claimed_version for group in state.groups.values()]
    assert len(claimed) == schedule.num_steps * schedule.groups_per_step
    assert None not in claimed


@each_schedule
def test_the_kept_capacity_is_the_sum_over_serving_cells(name: str) -> None:
    def watch(state: JobState, body: Body, now: float) -> None:
        assert rollout_capacity(state) == sum(c.capacity for c in state.everyone if c.serving)

    live(SCHEDULES[name], watch)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if "whole bursts" in name])
def test_without_streaming_a_burst_waits_for_all_its_groups(name: str) -> None:
    def watch(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.BurstStarted):
            assert state.num_ready_unclaimed >= body.num_steps * groups

    groups = job_spec().schedule.groups_per_step
    live(SCHEDULES[name], watch)


@pytest.mark.parametrize("name", ["async", "async, two train, whole bursts"])
def test_a_fixed_split_never_changes_between_first_dispatch_and_last_step(name: str) -> None:
    fixed = SCHEDULES[name]["training_cells"]

    def watch(state: JobState, body: Body, now: float) -> None:
        steps_left = state.num_steps_done < state.required_spec.schedule.num_steps
        if state.num_groups_dispatched and steps_left:
            roles = [cell.role for cell in state.in_order]
            assert roles == ["training"] * fixed + ["rollout"] * (len(roles) - fixed)

    live(SCHEDULES[name], watch)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if "colocate" in name])
def test_colocated_cells_leave_only_when_the_pool_holds_what_is_left(name: str) -> None:
    def watch(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.TransitionStarted):
            assert body.waterlevel <= sum(cell.capacity for cell in state.in_pool)

    world = live(SCHEDULES[name], watch)
    assert world.decisions(sched.TransitionStarted)


@each_schedule
def test_pool_cells_only_ever_serve(name: str) -> None:
    def watch(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.TransitionStarted):
            assert body.cell not in state.pool
        if state.phase == "training":
            assert all(cell.role == "rollout" for cell in state.in_pool)

    live(SCHEDULES[name], watch)
