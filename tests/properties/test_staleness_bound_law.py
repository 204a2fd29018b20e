"""The bound on staleness: no group is trained past it, by waiting or by dropping."""

from __future__ import annotations

import math
import random
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallsSealed
from gyre.contracts.events.executions import Started
from gyre.contracts.events.groups import GroupClaimed
from gyre.contracts.events.scheduling import (
    BatchOpened,
    BurstStarted,
    Dispatched,
    GroupDropped,
    GroupPlan,
    JobStarted,
    JobSubmitted,
    PhaseStarted,
    StartOrder,
    StartOrdered,
)
from gyre.contracts.events.scores import ExecutionExcluded
from gyre.core.explain import waiting_for
from gyre.core.groups import JobGroups, evolve, leaves_room, next_draw, next_ready
from gyre.core.scheduling import JobState, ledger
from gyre.core.scheduling import evolve as evolve_job
from gyre.core.scheduling.rules.groups import drop_stale
from gyre.core.staleness import group_staleness
from gyre.testkit.scheduling_world import Timings, World
from gyre.testkit.specs import job_spec
from gyre.testkit.trajectory_world import small_spec

POLICIES: dict[str, dict[str, Any]] = {
    "gyre": {},
    "whole bursts": {"streaming": False},
    "async": {"policy": "async", "training_cells": 1},
    "colocate": {"policy": "colocate", "pool_count": 2, "pool_capacity": 9},
}


@st.composite
def tight_schedules(draw: st.DrawFn) -> dict[str, Any]:
    """The smallest bound that phi and mu allow, or one more."""
    phi, mu = draw(st.sampled_from([0.0, 0.5, 1.0, 1.5])), draw(st.integers(1, 3))
    schedule = {
        "cells": draw(st.integers(2, 4)),
        "capacity": draw(st.integers(3, 9)),
        "groups_per_step": draw(st.sampled_from([2, 4])),
        "executions_per_group": 2,
        "phi": phi,
        "mu": mu,
        "num_steps": draw(st.integers(2, 9)),
        "max_staleness": math.ceil(phi) + mu - 1 + draw(st.integers(0, 1)),
    }
    return schedule | POLICIES[draw(st.sampled_from(sorted(POLICIES)))]


def live(schedule: dict[str, Any], seed: int) -> World:
    """One in twelve executions takes forty times as long as it should."""
    source = random.Random(seed)
    lengths = [
        source.lognormvariate(0.5, 0.7) * (40.0 if source.random() < 1 / 12 else 1.0)
        for _ in range(2000)
    ]
    timings = Timings(micro_step=source.choice([0.1, 1.0]), switch=source.choice([0.1, 2.0]))
    world = World(job_spec(**schedule), lengths.__getitem__, timings)
    world.run()
    return world


each_bounded_job = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@each_bounded_job
@given(schedule=tight_schedules(), seed=st.integers(0, 10_000))
def test_by_waiting_every_group_is_trained_within_the_bound(
    schedule: dict[str, Any], seed: int
) -> None:
    world = live({**schedule, "on_stale": "wait"}, seed)
    ages = [group_staleness(group) for group in world.state.groups.values()]
    assert len(ages) == schedule["num_steps"] * schedule["groups_per_step"]
    assert all(age is not None and age <= schedule["max_staleness"] for age in ages)
    assert not world.decisions(GroupDropped)


@each_bounded_job
@given(schedule=tight_schedules(), seed=st.integers(0, 10_000))
def test_by_dropping_every_group_is_trained_within_the_bound_or_replaced(
    schedule: dict[str, Any], seed: int
) -> None:
    world = live({**schedule, "on_stale": "drop"}, seed)
    groups, bound = world.state.groups, schedule["max_staleness"]
    dropped = [event.group for event in world.decisions(GroupDropped)]
    assert len(set(dropped)) == len(dropped) == world.state.num_groups_dropped
    for name, group in groups.items():
        age = group_staleness(group)
        assert (age is None) == (name in dropped)
        assert age is None or age <= bound
    for event in world.decisions(GroupDropped):
        assert event.staleness > bound
    assert len(groups) - len(dropped) == schedule["num_steps"] * schedule["groups_per_step"]
    training = world.state.training
    assert training.dispatched == training.started == training.terminated == 2 * len(groups)
    assert ledger.running(world.state) == 0


def test_some_jobs_do_drop_and_a_short_burst_ends_early_for_the_replacement() -> None:
    """In the last burst nothing else is left to dispatch: it ends with what it has."""
    schedule = {
        "cells": 3,
        "capacity": 6,
        "groups_per_step": 2,
        "executions_per_group": 2,
        "phi": 1.0,
        "mu": 2,
        "num_steps": 6,
        "max_staleness": 2,
        "on_stale": "drop",
    }
    short = 0
    for seed in range(30):
        world = live(schedule, seed)
        steps = [body.step for body in world.decisions(BatchOpened)]
        assert steps == list(range(6))
        bursts = world.decisions(BurstStarted)
        for burst, following in pairwise(bursts):
            short += following.first_step < burst.first_step + burst.num_steps
    assert short > 0


# --- packing's choice ---


class Buffer:
    """Groups of one execution each, ready on demand; a batch of B = 2 at any version."""

    def __init__(self, bound: int, on_stale: str) -> None:
        self.state = JobGroups(job="j")
        self._sequence = count(1)
        spec = small_spec(
            executions_per_group=1, groups_per_step=2, max_staleness=bound, on_stale=on_stale
        )
        self.say(JobSubmitted(spec=spec, train_tasks=("t",), heldout_tasks=()))

    def say(self, body: Body) -> None:
        evolve(self.state, next(self._sequence), body)
        while (ready := next_ready(self.state)) is not None:
            evolve(self.state, next(self._sequence), ready)

    def dispatch(self, *names: str, version: int) -> None:
        plans = tuple(GroupPlan(group=n, task="t", executions=(f"{n}-e",)) for n in names)
        self.say(
            Dispatched(based_on=0, now=0, kind="training", groups=plans, version=version, lineage=1)
        )

    def make_ready(self, *names: str) -> None:
        for name in names:
            self.say(ExecutionExcluded(execution=f"{name}-e", reason="r"))
            self.say(CallsSealed(execution=f"{name}-e", num_calls=0, last_seq=0))

    def open(self, version: int) -> None:
        self.say(
            BatchOpened(
                based_on=0,
                now=0,
                batch=f"b{version}",
                step=version,
                version=version,
                lineage=1,
                num_groups=2,
            )
        )

    def draw(self) -> str | None:
        group, batch = next_draw(self.state), self.state.batch
        if group is None or batch is None:
            return None
        self.say(GroupClaimed(group=group.group, batch=batch.batch))
        return group.group


def test_a_place_is_kept_for_a_group_that_the_next_step_could_not_train() -> None:
    buffer = Buffer(bound=1, on_stale="wait")
    buffer.dispatch("old", version=0)
    buffer.dispatch("a", "b", version=1)
    buffer.make_ready("a", "b")
    buffer.open(1)
    assert [buffer.draw(), buffer.draw()] == ["a", None]
    buffer.make_ready("old")
    assert buffer.draw() == "old"


def test_places_of_later_steps_are_kept_too() -> None:
    """Three groups of version 0 and a bound of 1 need both places of one step and one of another:
    drawing only young ones at version 0 would leave three for the two places at version 1."""
    buffer = Buffer(bound=1, on_stale="wait")
    buffer.dispatch("o1", "o2", "o3", version=-1)
    buffer.dispatch("y1", "y2", version=0)
    buffer.make_ready("y1", "y2")
    buffer.open(-1)
    assert [buffer.draw(), buffer.draw()] == ["y1", None]


def test_more_groups_at_their_bound_than_places_are_drawn_first_and_never_dead_lock() -> None:
    buffer = Buffer(bound=0, on_stale="wait")
    buffer.dispatch("o1", "o2", "o3", version=0)
    buffer.dispatch("young", version=0)
    buffer.make_ready("young", "o3")
    buffer.open(0)
    assert [buffer.draw(), buffer.draw()] == ["o3", "young"]
    buffer.dispatch("later", version=1)
    buffer.make_ready("later")
    buffer.open(1)
    assert buffer.draw() is None
    buffer.make_ready("o1", "o2")
    assert [buffer.draw(), buffer.draw()] == ["o1", "o2"]


def test_packing_leaves_a_group_past_the_bound_to_be_dropped() -> None:
    buffer = Buffer(bound=0, on_stale="drop")
    buffer.dispatch("old", version=0)
    buffer.dispatch("new", version=1)
    buffer.make_ready("old", "new")
    buffer.open(1)
    assert [buffer.draw(), buffer.draw()] == ["new", None]
    buffer.say(GroupDropped(based_on=0, now=0, group="old", staleness=1, queued=(), running=()))
    assert buffer.state.groups["old"].dropped
    assert not buffer.state.drawable
    assert not buffer.state.undrawn


def test_a_group_that_becomes_ready_behind_its_drop_is_not_drawn() -> None:
    buffer = Buffer(bound=0, on_stale="drop")
    buffer.dispatch("old", version=0)
    buffer.say(
        GroupDropped(based_on=0, now=0, group="old", staleness=1, queued=(), running=("old-e",))
    )
    buffer.make_ready("old")
    buffer.open(0)
    assert buffer.draw() is None
    assert buffer.state.groups["old"].ready is None


@given(
    undrawn=st.dictionaries(st.integers(0, 5), st.integers(1, 6), min_size=1),
    slots=st.integers(1, 4),
    bound=st.integers(0, 4),
    data=st.data(),
)
def test_a_draw_that_leaves_room_keeps_every_inequality(
    undrawn: dict[int, int], slots: int, bound: int, data: st.DataObject
) -> None:
    """If all that is due fits before it, it fits after it; and the oldest may always be drawn."""
    batch, version = 4, 5

    def fits(groups: dict[int, int], places: int) -> bool:
        return all(
            sum(n for other, n in groups.items() if other <= dispatched)
            <= places + batch * max(0, dispatched + bound - version)
            for dispatched in groups
        )

    candidate = data.draw(st.sampled_from(sorted(undrawn)))
    room = leaves_room(undrawn, candidate, version=version, bound=bound, slots=slots, batch=batch)
    after = {**undrawn, candidate: undrawn[candidate] - 1}
    if fits(undrawn, slots):
        assert room == fits({v: n for v, n in after.items() if n}, slots - 1)
    if candidate == min(undrawn):
        assert room


# --- the scheduler's rule ---


def stale_job(*, ready: bool) -> JobState:
    """A job at version 2 of bound 1 with one group of version 0: two executions, one of them
    running, or both over and the group ready."""
    spec = job_spec(
        cells=2, capacity=1, executions_per_group=2, groups_per_step=1, phi=0, mu=2, num_steps=4
    )
    schedule = spec.schedule.model_copy(update={"max_staleness": 1, "on_stale": "drop"})
    spec = spec.model_copy(update={"schedule": schedule})
    state = JobState(job="job")
    plan = GroupPlan(group="g", task="t", executions=("e0", "e1"))
    order = StartOrder(execution="e0", group="g", task="t", cell=1, seed=0)
    bodies: list[Body] = [
        JobSubmitted(spec=spec, train_tasks=("t",), heldout_tasks=()),
        JobStarted(based_on=0, now=0, cells=(0, 1), lineage=1),
        PhaseStarted(based_on=0, now=0, phase="training"),
        Dispatched(based_on=0, now=0, kind="training", groups=(plan,), version=0, lineage=1),
        StartOrdered(based_on=0, now=0, orders=(order,)),
        Started(execution="e0", group="g", task="t"),
    ]
    for sequence, body in enumerate(bodies, start=1):
        evolve_job(state, sequence, body)
    state.groups["g"].ready = ready
    state.num_ready_unclaimed = int(ready)
    state.version = state.num_steps_done = state.published = state.durable_version = 2
    return state


@pytest.mark.parametrize("ready", [True, False])
def test_a_group_past_the_bound_is_dropped_ready_or_not(ready: bool) -> None:
    state = stale_job(ready=ready)
    event = drop_stale(state, 5.0)
    assert event == GroupDropped(
        based_on=6, now=5.0, group="g", staleness=2, queued=("e1",), running=("e0",)
    )
    evolve_job(state, 7, event)
    assert state.num_ready_unclaimed == 0
    assert not state.queue
    assert (state.training.ordered, state.training.started, state.training.terminated) == (2, 2, 1)
    assert state.num_replacements_due == 1
    assert drop_stale(state, 5.0) is None


def test_a_claim_behind_the_drop_is_void_and_a_drop_behind_the_claim_too() -> None:
    for drop_first in (True, False):
        state = stale_job(ready=True)
        drop = drop_stale(state, 5.0)
        assert drop is not None
        opened = BatchOpened(
            based_on=0, now=5.0, batch="b", step=2, version=2, lineage=1, num_groups=1
        )
        claim = GroupClaimed(group="g", batch="b")
        evolve_job(state, 7, opened)
        for place, body in enumerate((drop, claim) if drop_first else (claim, drop)):
            evolve_job(state, 8 + place, body)
        assert state.groups["g"].dropped == drop_first
        assert (state.groups["g"].batch is None) == drop_first
        assert state.num_ready_unclaimed == 0
        assert state.num_groups_dropped == int(drop_first)


def test_a_batch_that_keeps_places_says_for_whom() -> None:
    """In every world: at each moment at which groups are ready and none may be drawn."""
    told: list[str] = []

    def watch(state: JobState, body: Body, now: float) -> None:
        waiting = waiting_for(state)
        if waiting is not None and "bound on staleness" in waiting.what:
            assert state.num_ready_unclaimed > 0
            assert waiting.version is not None
            assert waiting.num_missing > 0
            told.append(waiting.what)

    schedule = {"groups_per_step": 2, "executions_per_group": 2, "phi": 1.0, "mu": 1}
    source = random.Random(3)
    lengths = [20.0 if source.random() < 1 / 8 else 1.0 for _ in range(500)]
    world = World(job_spec(**schedule, num_steps=9, max_staleness=1), lengths.__getitem__)
    world.on_fact = watch
    world.run()
    assert told
