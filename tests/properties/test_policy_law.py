"""Policies: the baselines run on the same decider, and each keeps to what its name says."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from itertools import pairwise
from statistics import mean
from typing import Any, get_args

import pytest

from gyre.contracts.envelope import Body
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.schedule import FIXED_SPLIT, ONE_ROLE, PolicyName
from gyre.core.scheduling import JobState
from gyre.core.scheduling.ledger import rollout_capacity
from gyre.core.scheduling.policies import POLICIES
from gyre.core.scheduling.policies.colocate import Colocate
from gyre.core.scheduling.policies.fixed import Fixed
from gyre.core.staleness import expected_staleness, mean_staleness
from gyre.testkit.scheduling_world import World
from gyre.testkit.specs import job_spec

SCHEDULES: dict[str, dict[str, Any]] = {
    "gyre": {},
    "gyre, whole bursts": {"streaming": False},
    "gyre, pool": {"cells": 1, "pool_count": 1, "pool_capacity": 10},
    "gyre+": {"policy": "gyre+", "num_steps": 17, "mu": 3},
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


def test_the_job_file_and_the_decider_mean_the_same_policies() -> None:
    assert set(POLICIES) == set(get_args(PolicyName))
    assert [name for name, one in POLICIES.items() if isinstance(one, Fixed)] == [*FIXED_SPLIT]
    assert [name for name, one in POLICIES.items() if isinstance(one, Colocate)] == [*ONE_ROLE]


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


@pytest.mark.parametrize(
    ("phi", "mu"), [(0.0, 1), (0.0, 3), (0.5, 2), (0.5, 3), (1.5, 1), (1.0, 4)]
)
@pytest.mark.parametrize("num_steps", [1, 4, 11, 24])
def test_levelled_bursts_meet_the_staleness(phi: float, mu: int, num_steps: int) -> None:
    """Exactly where the last burst may take all that is in flight; below it, as the paper's bursts
    are, where more is in flight than a burst takes and the job's end cuts it."""
    world = live({"policy": "gyre+", "phi": phi, "mu": mu, "num_steps": num_steps})
    state = world.state
    sizes = [event.num_steps for event in world.decisions(sched.BurstStarted)]
    assert sum(sizes) == num_steps
    expected, seen = expected_staleness(phi, mu), mean_staleness(state.groups.values())
    assert seen is not None
    assert seen <= expected + 1e-9
    levelled = sizes[-1] == min(mu + 1, int(2 * expected + 1)) and len(sizes) > 1
    if levelled:
        assert set(sizes[1:-1]) <= {mu}
    if levelled and phi <= 0.5:
        assert seen == pytest.approx(expected, abs=1e-9)


def test_longest_first_is_by_what_the_log_says_of_each_task() -> None:
    """Recomputed at each dispatch from the executions that had ended before it."""
    world = live({"policy": "gyre+", "num_steps": 12, "mu": 2, "phi": 1})
    seen: dict[str, list[float]] = defaultdict(list)
    task_of: dict[str, str] = {}
    num_reordered = 0
    for _, _, body in world.log:
        if isinstance(body, sched.Dispatched) and body.kind == "training":
            everything = [value for values in seen.values() for value in values]
            overall = mean(everything) if everything else 0.0
            expected = [mean(seen[p.task]) if seen[p.task] else overall for p in body.groups]
            assert all(a >= b - 1e-9 for a, b in pairwise(expected))
            numbers = [int(plan.group.rpartition("g")[2]) for plan in body.groups]
            num_reordered += numbers != sorted(numbers)
            task_of |= {e: plan.task for plan in body.groups for e in plan.executions}
        if isinstance(body, run_events.Terminated) and body.execution in task_of:
            seen[task_of[body.execution]].append(math.log(body.duration_s))
    assert num_reordered > 2
